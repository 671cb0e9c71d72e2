"""Whatever a checkpoint is, `inferno verify` ends, and says why in a sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hostile_checkpoints as hostile
import pytest
from click.testing import CliRunner

from inferno.catalog import load_catalog
from inferno.cli import cli
from inferno_verify.command import results
from inferno_verify.survey import survey
from inferno_verify.trial import Result, _read

SECONDS = 10.0
MEMORY = 4 * 2**30


def tried(refs: Sequence[Path | str], **options: Any) -> dict[str, dict[str, Any]]:
    lines = results([str(ref) for ref in refs], SECONDS, MEMORY, load=options.get("load", True))
    return {Path(verdict["ref"]).name: verdict for verdict in map(json.loads, lines)}


def check(found: dict[str, Any]) -> str:
    """Return what is wrong about a result: nothing, mostly."""
    if found["ended"] not in ("fine", "refused"):
        return f"{found['ended']}: {found['sentence']}"
    if found["seconds"] > SECONDS:
        return f"it took {found['seconds']:.1f} s"
    if found["ended"] == "refused" and not (
        10 < len(found["sentence"]) < 700 and "Traceback" not in found["sentence"]
    ):
        return f"no sentence: {found['sentence']!r}"
    return ""


@pytest.mark.slow
def test_a_hundred_hostile_checkpoints_each_end_in_a_sentence(tmp_path: Path) -> None:
    names = hostile.folders()
    for number, change in enumerate(names.values()):
        change(hostile.copy(tmp_path / str(number)))
    (tmp_path / "gguf").mkdir()
    files = hostile.gguf_files(tmp_path / "gguf", 30)
    assert len(names) + len(files) >= 100
    verdicts = tried([*(tmp_path / str(i) for i in range(len(names))), *files])
    by_name = {name: verdicts[str(i)] for i, name in enumerate(names)}
    by_name |= {f"gguf: {file.name}": verdicts[file.name] for file in files}
    wrong = {name: problem for name, each in by_name.items() if (problem := check(each))}
    assert wrong == {}
    assert sum(each["ended"] == "refused" for each in by_name.values()) > 60


def test_a_good_one_is_fine_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    bad = hostile.copy(tmp_path / "bad")
    hostile.edit("config.json", **hostile.CONFIGS["a huge hidden size"])(bad)
    done = CliRunner().invoke(cli, ["verify", str(hostile.MODEL), str(bad)])
    assert done.exit_code == 3, done.output
    good, refused = done.output.split(f"{bad}:")
    assert "fine" in good and "tensors have the names" in good
    assert "refused" in refused and "unusual" not in refused


@pytest.mark.slow
def test_a_trial_is_confined_where_a_sandbox_works(tmp_path: Path) -> None:
    """A link to a file elsewhere, which is as good as the model's own, is not followed."""
    catalog = load_catalog()
    able = [o for o in catalog.of("inferno_sandboxes") if o.item.refuses("cpu") is None]
    linked, elsewhere = hostile.copy(tmp_path / "linked"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = linked / "config.json"
    file.rename(elsewhere / file.name)
    file.symlink_to(elsewhere / file.name)
    verdicts = tried([hostile.MODEL, linked], load=False)
    good, other = verdicts[hostile.MODEL.name], verdicts["linked"]
    assert good["ended"] == "fine" and bool(good["sandbox"]) == bool(able)
    assert other["ended"] == ("refused" if able else "fine")
    assert "Permission denied" in other["sentence"] or not able


def test_what_is_unusual_among_files_is_named(tmp_path: Path) -> None:
    folder = hostile.copy(tmp_path / "model")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (folder / "secret.json").symlink_to("/etc/passwd")
    (folder / "nowhere").symlink_to("nothing")
    os.mkfifo(folder / "pipe.json")
    hostile.edit("config.json", auto_map={"AutoModel": "modeling_evil.Evil"})(folder)
    report = " ".join(survey(folder))
    for part in (
        "modeling_evil.py is Python code: it is never run.",
        "pytorch_model.bin may be a pickle",
        "secret.json is a link that leads out of the folder, to /etc/passwd.",
        "nowhere is a link that leads nowhere.",
        "pipe.json is no file",
        "config.json asks for code of its own",
    ):
        assert part in report
    assert list(survey(hostile.MODEL)) == []


@pytest.mark.slow
def test_a_tokenizer_that_may_hang_is_named(tmp_path: Path) -> None:
    hangs = ("nested repeats", "alternatives", "a group of groups", "a large repeat")
    for name in hangs:
        hostile.split_by(hostile.PATTERNS[name])(hostile.copy(tmp_path / name))
    verdicts = tried([hostile.MODEL, *(tmp_path / name for name in hangs)], load=False)
    assert all("may take very long" in " ".join(verdicts[name]["odd"]) for name in hangs)
    assert verdicts[hostile.MODEL.name]["odd"] == []


def test_a_hub_s_folder_of_links_is_usual(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    shutil.copy(hostile.MODEL / "config.json", blobs / "1234")
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    assert list(survey(snapshot)) == []


@pytest.mark.slow
def test_the_trial_sees_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does a checkpoint's process that runs code: here in place of an import."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(' '.join(os.environ))\n"
    )
    assert tried([tmp_path / "nothing"])["nothing"]["ended"] == "refused"
    assert "HF_TOKEN" not in (tmp_path / "seen").read_text()


def test_a_process_that_ends_in_the_middle_of_a_line_is_read_to_there() -> None:
    result = Result("x")
    lines = b'{"stage": "plan"}\n{"done": "a"}\n{"stage": "load"}\n{"done": "tr'
    assert _read(result, lines) == "load" and result.done == {"plan": "a"}
