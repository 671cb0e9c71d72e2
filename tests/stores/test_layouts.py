"""What a store's folder has of an engine's layout and of others, without reading blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
from tests.forked import Forks
from tests.stores.test_stored_caches import answers

from inferno.errors import OutOfMemoryError
from inferno.host import format_bytes
from inferno.plan import Options, Plan, open_model, resolve
from inferno.plan.devices import Machine
from inferno.stores import layouts
from inferno.stores.layouts import Difference, Survey, differences
from inferno.testing.tiny import run_python

SIZES: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 160,
    "memory": "2GiB",
}
DEEP = '{"a":' + "[" * 600 + "1" + "]" * 600 + "}"
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "made by": [["attention", "a", "1"], ["scheme", "b", "1"]],
}


def survey(folder: Path, **options: Any) -> Survey:
    given = SIZES | {"device": "cpu", "threads": 1, "block_size": 16} | options
    with open_model("demo", Options(kv_store=str(folder), **given)) as opened:
        result = layouts.survey(opened)
    assert result is not None
    return result


def test_the_layout_of_a_plan_is_that_of_its_engine(tmp_path: Path) -> None:
    answers("demo", [list(range(40))], kv_store=str(tmp_path))
    report = survey(tmp_path)
    [only] = report.layouts
    assert report.knows_files and not only.differences
    assert only.stored.nbytes > 2 * 32768


def test_a_change_of_layout_is_named(tmp_path: Path) -> None:
    answers("demo", [list(range(40))], kv_store=str(tmp_path))
    [only] = survey(tmp_path, dtype="float32").layouts
    assert str(only.differences[0]) == "dtype bfloat16 instead of float32"
    assert [each.field for each in only.differences[-2:]] == ["cache", "groups"]


def test_a_models_files_are_compared_once_they_are_hashed(tmp_path: Path) -> None:
    answers("demo", [list(range(40))], kv_store=str(tmp_path))
    for memo in tmp_path.glob("*.memo"):
        memo.unlink()
    report = survey(tmp_path)
    assert not report.knows_files and not report.layouts[0].differences
    assert not list(tmp_path.glob("*.memo")), "nothing is hashed for it"


def test_a_folder_that_is_missing_stays_missing(tmp_path: Path) -> None:
    assert survey(tmp_path / "kv") == Survey((), knows_files=False)
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (ENGINE, []),
        (ENGINE | {"files": ["ab"]}, []),
        (ENGINE | {"dtype": None}, ["dtype none instead of float32"]),
        (ENGINE | {"isq": {"a": {"b": 1}}}, ["isq a b 1 instead of none"]),
        (
            ENGINE | {"made by": [["scheme", "b", "1"], ["attention", "a", "2"]]},
            ["made by attention a 2 instead of attention a 1"],
        ),
        (
            ENGINE | {"made by": [["scheme", "b", "1"], ["attention", "a", "1"]]},
            ["made by scheme b 1 attention a 1 instead of attention a 1 scheme b 1"],
        ),
        (ENGINE | {"x": "\x1b[31m\ud800"}, ["x ?[31m? instead of none"]),
        (ENGINE | {"x": "y" * 100}, [f"x {'y' * 60}… instead of none"]),
    ],
)
def test_fields_that_differ_are_named(stored: dict[str, Any], named: list[str]) -> None:
    engine: dict[str, Any] = ENGINE | ({"isq": {"a": None}} if "isq" in stored else {})
    assert [str(each) for each in differences(json.dumps(stored), engine)] == named


@pytest.mark.parametrize("stored", ["", "7", "[", "[" * 100_000, DEEP])
def test_what_is_no_layout_is_another(stored: str) -> None:
    assert differences(stored, ENGINE) == (
        Difference("layout", "that cannot be read", "this engine's"),
    )


# --- explain --------------------------------------------------------------------------------------


Explain = Callable[..., str]


@pytest.fixture
def explain(forks: Forks, tmp_path: Path) -> Explain:
    def explain(*arguments: str) -> str:
        done = forks.run(["explain", "demo", *arguments], os.environ, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return explain


def explain_without_torch(*arguments: str) -> str:
    code = "import atexit, sys; from inferno.cli import main; "
    code += "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); main()"
    done = run_python(code, "explain", "demo", *arguments)
    assert done.returncode == 0 and done.stderr.endswith("False\n"), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kv")
    answers("demo", [list(range(40))], kv_store=str(folder))
    answers("demo", [list(range(40))], kv_store=str(folder), dtype="float32")
    return folder


def test_explain_shows_tiers_and_what_a_folder_has(folder: Path) -> None:
    shown = explain_without_torch("--kv-store", str(folder), "--cpu-mem-fold", "2")
    lines = shown.splitlines()
    tiers = lines.index("Tiers of the cache")
    assert [line.split()[0] for line in lines[tiers + 1 : tiers + 4]] == ["memory", "host", "disk"]
    assert all("2.0 KiB a token" in line for line in lines[tiers + 1 : tiers + 4])
    blocks = lines.index(f"Blocks in {folder}")
    other, own, total = lines[blocks + 1 : blocks + 4]
    assert "another layout: dtype float32 instead of bfloat16" in other
    assert own.endswith("this engine's layout")
    assert total.split()[0] == "others" and total.split()[1] == other.split()[1]


def test_explain_shows_a_link_beside_tiers(explain: Explain, folder: Path) -> None:
    pytest.importorskip("inferno_disaggregated")
    shown = explain("--kv-store", str(folder), "--decode-with", "shm://pair")
    lines = [line.split() for line in shown.splitlines() if line]
    [link] = [words for words in lines if words[0] == "link"]
    [store] = [words for words in lines if words[:2] == ["block", "store"]]
    assert link[1] == "disaggregated:" and "[inferno-disaggregated" in link
    assert store[2] == "offload" and store[3] == "[inferno-offload"
    assert "Tiers of the cache" in shown and "this engine's layout" in shown
    alone = explain("--decode-with", "shm://pair")
    assert "disaggregated:" in alone and "block store" not in alone and "Tiers" not in alone


def test_explain_as_json_has_the_same(explain: Explain, folder: Path) -> None:
    document = json.loads(explain("--kv-store", str(folder), "--json"))
    assert [tier["tier"] for tier in document["tiers"]] == ["memory", "disk"]
    assert {tier["bytes_per_token"] for tier in document["tiers"]} == {2048}
    other, own = document["stored"]["layouts"]
    assert own["differences"] == [] and own["used"] < other["used"] < time()
    assert {"field": "dtype", "stored": "float32", "engine": "bfloat16"} in other["differences"]
    files = [path for path in Path(other["path"]).rglob("*") if path.is_file()]
    assert other["nbytes"] == sum(path.stat().st_size for path in files)


def test_explain_without_a_store_shows_no_tiers(explain: Explain) -> None:
    assert "tiers" not in json.loads(explain("--json"))


def test_a_folder_without_the_engines_layout_says_so(explain: Explain, folder: Path) -> None:
    shown = explain("--kv-store", str(folder), "--block-size", "64")
    assert "it would begin with no stored blocks" in shown
    assert shown.count("another layout: block_size 16 instead of 64") == 2


def test_a_host_tier_fits_into_the_machine(tmp_path: Path) -> None:
    def tier(total: int, *, elsewhere: bool = False, **given: Any) -> tuple[Plan, int]:
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{total}")
        machine = Machine(root=tmp_path, elsewhere=elsewhere)
        options = Options(device="cpu", cpu_mem_fold=1000, max_model_len=512, **given)
        plan = resolve("demo", options, machine=machine)
        assert plan.store is not None
        return plan, plan.store.host_bytes(plan.groups)

    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    plan, nbytes = tier(8 << 30)
    cache = sum(group.nbytes for group in plan.groups)
    assert nbytes + sum(item.nbytes for item in plan.memory) == (8 << 30) * 90 // 100
    [note] = [note for note in plan.notes if "host tier" in note]
    assert note.startswith(f"host tier lowered from {format_bytes(1000 * cache)} to 6")
    assert tier(8 << 30, dp=2)[1] < nbytes / 2
    assert tier(8 << 30, elsewhere=True, memory="64GiB")[1] == 1000 * cache, "of another machine"
    with pytest.raises(OutOfMemoryError, match=r"--cpu-mem-fold 1000: .* leaves nothing.*\nLower"):
        tier(600 << 20, memory="100%")
