"""Runs the sections of a report, each in a process that may crash, hang or lose its device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import field, frozen

from inferno.contracts import Device
from inferno.errors import OptionError
from inferno.plan import find_device
from inferno_gpu_report.report import GpuReport, Section, SectionResult, write

SANITIZER = "compute-sanitizer"
MEMORY_FAULT = 86
"""Exit code of compute-sanitizer if it found a fault."""
_FAULTS = ("Invalid __", "Race reported", "hazard", "Program hit")
"""Words in its lines about faults."""
_LEAST = 2.0
"""A section is not started with fewer seconds than this: importing torch takes some."""
GRACE = 5.0
"""Seconds that a section may exceed its budget, to write its figures."""
_TAIL = 4
"""Lines of a failed section's output that the report keeps."""


def _sections() -> tuple[Section, ...]:
    def section(name: str, weight: float, title: str, run: str, tool: str = "") -> Section:
        return Section(
            name=name, title=title, run=f"inferno_gpu_report.{run}", weight=weight, tool=tool
        )

    checks = "checks:small"
    return (
        section("machine", 3, "The machine", "machine:measure"),
        section("checks", 5, "Kernels at small shapes, against float64", checks),
        section("memcheck", 5, "The same under memcheck", "checks:sanitized", "memcheck"),
        section("racecheck", 5, "The same under racecheck", "checks:sanitized", "racecheck"),
        section("numerics", 4, "Kernels at real sizes, against float64", "checks:real"),
        section("decode-attention", 8, "Attention in decode", "attention:decode"),
        section("products", 8, "Matrix products, by layout", "products:measure"),
        section("contexts", 4, "Attention over uneven contexts and 8 bits", "attention:contexts"),
        section("steps", 8, "Decode steps", "serving:steps"),
        section("mixed-steps", 6, "Steps with a part of a prompt", "serving:mixed_steps"),
        section("ragged", 14, "Ragged requests, as in nano-vllm's benchmark", "serving:ragged"),
        section("single-stream", 12, "One stream", "serving:single_stream"),
        section("kv-cache", 8, "An 8-bit cache", "serving:kv_cache"),
        section("peers", 14, "Other programs", "peers:measure"),
    )


@frozen(kw_only=True)
class ReportPlan:
    """The sections of a report, its device and its file."""

    device: Device
    budget: float
    """Seconds for all sections."""
    output: Path
    """The JSON file."""
    small: bool
    """Tiny sizes, to show that every section runs."""
    sections: Sequence[Section] = field(factory=_sections)
    say: Callable[[str], None] = lambda line: None
    """Called with one line for each section."""


def sections_of(names: Sequence[str]) -> tuple[Section, ...]:
    """Return the named sections in the report's order, or all if no name is given. Raises
    OptionError for an unknown name."""
    known = _sections()
    if unknown := set(names) - {section.name for section in known}:
        raise OptionError(
            f"there is no section {', '.join(sorted(unknown))}",
            f"There are {', '.join(section.name for section in known)}.",
        )
    return tuple(each for each in known if not names or each.name in names)


def plan_of(
    device: str | None, budget: float, output: Path, names: Sequence[str] = ()
) -> ReportPlan:
    """Choose the device. Raises OptionError if there is no GPU, unless `device` is cpu."""
    target = find_device(device or "auto")
    if target.kind == "cpu" and device != "cpu":
        raise OptionError(
            "no GPU was found", "--device cpu runs every section on the CPU with tiny sizes."
        )
    if not output.absolute().parent.is_dir():
        raise OptionError(f"the folder of {output} does not exist", "Make it first.")
    return ReportPlan(
        device=target,
        budget=budget,
        output=output,
        small=target.kind == "cpu",
        sections=sections_of(names),
    )


def make_report(plan: ReportPlan) -> GpuReport:
    """Run the sections, and write the JSON file before the first one and after each. If a section
    fails or runs out of time, its figures so far are kept."""
    end = time.monotonic() + plan.budget
    results = [SectionResult(section.name, section.title) for section in plan.sections]
    report = GpuReport(
        device=str(plan.device),
        cpu_run=plan.small,
        budget_seconds=plan.budget,
        started=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        sections=results,
    )
    write(report, plan.output)
    with tempfile.TemporaryDirectory(prefix="inferno.report.") as folder:
        for i, (section, result) in enumerate(zip(plan.sections, results, strict=True)):
            left = end - time.monotonic()
            weights = [each.weight for each in plan.sections[i:]]
            budget = left * section.weight / sum(weights)
            if section is not plan.sections[-1]:  # an early one may borrow from those after it
                budget = min(left, 1.5 * budget)
            _run(section, result, plan, Path(folder), budget)
            plan.say(_line(result))
            (Path(folder) / "limits.json").write_text(json.dumps(_limits(report)))
            write(report, plan.output)
    return report


def _line(result: SectionResult) -> str:
    reason = f": {result.reason}" if result.reason else ""
    return (
        f"{result.name}: {result.status}, {len(result.figures)} figures, "
        f"{result.seconds:.0f} s{reason}"
    )


def _limits(report: GpuReport) -> dict[str, float]:
    """Return the figures of the section `machine`, from which floors are computed."""
    measured = [each for each in report.sections if each.name == "machine"]
    return {figure.name: figure.value for each in measured for figure in each.figures}


def _run(
    section: Section, result: SectionResult, plan: ReportPlan, folder: Path, budget: float
) -> None:
    result.budget_seconds = round(budget, 1)
    if budget < _LEAST:
        result.status, result.reason = "skipped", "no time was left: raise --budget"
        return
    prefix = list[str]()
    if section.tool:
        wrapper, result.reason = _sanitizer(section.tool, plan.device)
        if not wrapper:
            result.status = "skipped"
            return
        prefix = wrapper
    lines, log = folder / f"{section.name}.jsonl", folder / f"{section.name}.log"
    lines.touch()
    command = [
        *prefix,
        sys.executable,
        "-uc",
        f"import sys; sys.path[:] = {sys.path!r}; from inferno_gpu_report.job import main;"
        " main(*sys.argv[1:])",
        section.run,
        plan.device.torch_name,
        str(int(plan.small)),
        f"{budget:.1f}",
        str(folder),
        str(lines),
    ]
    begin = time.monotonic()
    with log.open("wb") as stream:
        code = _wait(command, stream.fileno(), budget + GRACE)
    result.seconds = round(time.monotonic() - begin, 1)
    for line in lines.read_text(encoding="utf-8").splitlines():
        result.read(line)
    if code == 0 and result.status != "waiting":
        return  # it said how it ended
    tail = _last_lines(log)
    if code is None:
        result.status, result.reason = "stopped", f"it took more than {budget:.0f} s"
    elif code == MEMORY_FAULT and section.tool:
        result.status, result.reason = "failed", f"{section.tool} found faults: {tail}"
    else:
        result.status, result.reason = "failed", f"{_ended(code)}: {tail}"
    if section.tool:
        faults = sum(any(word in line for word in _FAULTS) for line in _lines(log))
        result.notes.append(f"{section.tool} reported {faults} faults")


def _ended(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _wait(command: Sequence[str], output: int, seconds: float) -> int | None:
    """Run a process and its children for at most this time. Returns its exit code, or None if the
    time was over."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=max(0.1, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _sanitizer(tool: str, device: Device) -> tuple[list[str], str]:
    """Return the beginning of a command that runs compute-sanitizer, and why it cannot run."""
    if device.kind != "cuda":
        return [], f"{SANITIZER} checks kernels on NVIDIA's GPUs"
    program = shutil.which(SANITIZER) or shutil.which(SANITIZER, path="/usr/local/cuda/bin")
    if program is None:
        return [], f"{SANITIZER} is not installed: it comes with the CUDA toolkit"
    return [program, "--tool", tool, "--error-exitcode", str(MEMORY_FAULT)], ""


def _last_lines(log: Path) -> str:
    return " / ".join(_lines(log)[-_TAIL:]) or "it said nothing"


def _lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
