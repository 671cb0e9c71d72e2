"""The report of `inferno gpu-report`: every section on a CPU with tiny sizes, sections that
crash, hang or find nothing installed, and what is left of them."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import attrs
import pytest

from inferno.catalog import load_catalog
from inferno.contracts import lazy
from inferno.errors import OptionError
from inferno.plan import find_device
from inferno.testing import alike, run_python
from inferno_gpu_report import parent
from inferno_gpu_report.command import seconds_of
from inferno_gpu_report.job import Job, Limits
from inferno_gpu_report.parent import ReportPlan, make_report, sections_of
from inferno_gpu_report.report import Figure, GpuReport, Section, SectionResult, to_markdown

SECTIONS = [section for section in sections_of(()) if section.name != "racecheck"]
PLAIN = load_catalog(disable=("inferno-flex",))
"""Without attention that compiles for minutes."""


def job_in(folder: Path, result: SectionResult, seconds: float = 100.0) -> Job:
    return Job(
        device=find_device("cpu"),
        small=True,
        end=time.monotonic() + seconds,
        folder=folder,
        limits=Limits(gigabytes=30.0, teraflops=0.5),
        write=result.read,
    )


@alike
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_section_runs_on_a_cpu(section: Section, tmp_path: Path) -> None:
    result = SectionResult(section.name, section.title)
    job = job_in(tmp_path, result)
    job.catalog = PLAIN
    job.run(lazy.resolved(lazy.function(section.run)))
    assert (result.status, result.reason) == ("done", "")
    assert result.figures, "it measured something"
    assert all(math.isfinite(figure.value) and figure.unit for figure in result.figures)
    allowed = ("it runs on CUDA devices", "is not installed", "pages", "FlashAttention")
    assert [note for note in result.notes if not any(word in note for word in allowed)] == []


ODD = """
import os, time

def fine(job):
    job.fact("device", job.device)
    job.figure("copy on the device", 40.0, "GB/s")

def crash(job):
    job.figure("before", 1.0, "ms", 0.5, lower=True)
    os.kill(os.getpid(), 11)

def hang(job):
    job.figure("before", 2.0, "ms")
    while True:
        time.sleep(1)

def fail(job):
    raise ValueError("a kernel failed")

def after(job):
    job.figure("limit", job.limits.gigabytes, "GB/s")

def lacking(job):
    job.need("size", "400B")

def inexact(job):
    job.error("product", 0.5, 0.1)
    job.error("sum", float("nan"), 0.1)
"""


def odd(name: str) -> Section:
    named = "machine" if name == "fine" else name
    return Section(name=named, title=name, run=f"odd:{name}", weight=0.5 if name == "hang" else 1)


@pytest.mark.slow
def test_what_a_section_does_costs_only_that_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(parent, "GRACE", 0.5)
    names = ("fine", "crash", "hang", "fail", "lacking", "inexact", "after")
    seen = list[list[str]]()
    output = tmp_path / "report.json"

    def say(line: str) -> None:
        document = json.loads(output.read_text())
        seen.append([section["status"] for section in document["sections"]])

    plan = ReportPlan(
        device=find_device("cpu"),
        budget=24,
        output=output,
        small=True,
        sections=[odd(name) for name in names],
        say=say,
    )
    begin = time.monotonic()
    report = make_report(plan)
    assert time.monotonic() - begin < 40
    status = {section.name: section.status for section in report.sections}
    assert status == {
        "machine": "done",
        "crash": "failed",
        "hang": "stopped",
        "fail": "failed",
        "lacking": "not installed",
        "inexact": "failed",
        "after": "done",
    }
    assert seen[0] == ["waiting"] * len(names), "the file is whole before the first section"
    assert seen[2][:2] == ["done", "failed"], "and after each"
    sections = {each["name"]: each for each in json.loads(output.read_text())["sections"]}
    [before] = sections["crash"]["figures"]
    assert (before["value"], before["share"]) == (1.0, 0.5), "what it measured is kept"
    assert "SIGSEGV" in sections["crash"]["reason"]
    assert sections["hang"]["figures"][0]["value"] == 2.0
    assert sections["fail"]["reason"] == "ValueError: a kernel failed"
    assert "no plugin has the size 400B. Install a plugin" in sections["lacking"]["reason"]
    assert sections["inexact"]["reason"] == "not exact: product, sum"
    assert sections["after"]["figures"][0]["value"] == 40.0, "the machine's figures are floors"


def test_a_size_that_nothing_has_says_what_to_install(tmp_path: Path) -> None:
    result = SectionResult("steps", "Steps")
    job = job_in(tmp_path, result)
    job.catalog = attrs.evolve(load_catalog(only=("inferno-index",)), plugins=())
    job.run(lazy.resolved(lazy.function("inferno_gpu_report.serving:steps")))
    assert result.status == "not installed"
    assert "`pip install inferno-qwen3`" in result.reason


def test_an_attempt_that_takes_too_long_is_interrupted_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferno_gpu_report.job._LEAST_ATTEMPT", 1.0)
    result = SectionResult("x", "X")
    job = job_in(tmp_path, result, seconds=1.0)

    def forever() -> None:
        while True:
            time.sleep(0.01)

    begin = time.monotonic()
    job.attempt("first", forever, "slow")
    job.attempt("second", forever, "slow")
    assert time.monotonic() - begin < 20
    assert result.notes == ["first: interrupted after 1 s"]


def test_without_a_gpu_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "from inferno.cli import main; main(['gpu-report', '--output', sys.argv[1]])"
    )
    done = run_python(code, str(tmp_path / "report.json"))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "Error: no GPU was found",
        "--device cpu runs every section on the CPU with tiny sizes.",
    ]


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    code = "import sys; from inferno.cli import main; main(sys.argv[1:])"
    output = tmp_path / "report.json"
    done = run_python(
        code, "gpu-report", "--device", "cpu", "--budget", "60s",
        "--section", "machine", "--output", str(output),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "A run on a CPU with tiny sizes" in done.stdout
    document = json.loads(output.read_text())
    assert document["cpu_run"] and document["sections"][0]["status"] == "done"
    for figure in document["sections"][0]["figures"]:
        assert f"| {figure['name']} |" in done.stdout
    assert "machine: done" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["report.json"]


def test_shares_are_of_the_floor() -> None:
    fast = Figure("speed", 30.0, "GB/s", 40.0)
    slow = Figure("step", 8.0, "ms", 2.0, lower=True)
    error = Figure("error", 0.01, "error", 0.04, lower=True)
    assert [each.share for each in (fast, slow, error)] == [0.75, 0.25, 0.25]
    section = SectionResult("x", "A title", "done", figures=[fast, slow], notes=["a | b"])
    shown = to_markdown(GpuReport("cuda:0", False, 60, "today", [section]))
    assert "| speed | 30 | GB/s | 40 | 75 % |  |" in shown
    assert "run on a CPU" not in shown


def test_the_ragged_load_is_nano_vllms() -> None:
    from inferno.cli.ragged import ragged_load

    load = ragged_load()
    assert (load.prompt_tokens, load.output_tokens) == (142_827, 133_966)


@pytest.mark.parametrize(
    ("size", "count"),
    [("0.6B", 596_049_920), pytest.param("8B", 8_190_735_360, marks=pytest.mark.slow)],
)
def test_random_checkpoints_have_the_published_number_of_weights(
    size: str, count: int, tmp_path: Path
) -> None:
    from inferno.plan import Options
    from inferno_gpu_report.random_model import opened, size_of

    job = job_in(tmp_path, SectionResult("x", "X"))
    job.small = True
    assert "tiny" in size_of(job, size)[0]
    job.small = False
    name, config = size_of(job, size)
    assert size in name
    with opened(job, config, Options(device="cpu", max_model_len=64)) as model:
        assert sum(math.prod(each.shape) for each in model.checkpoint.tensors.values()) == count


def test_times_are_parsed_and_unknown_sections_refused() -> None:
    assert [seconds_of(text) for text in ("480s", "8m", "90", "0.5h")] == [480, 480, 90, 1800]
    with pytest.raises(OptionError, match="is not a time"):
        seconds_of("soon")
    with pytest.raises(OptionError, match="there is no section speed"):
        sections_of(("speed",))
