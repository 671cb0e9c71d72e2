"""A start with packed weights on disk computes what a start without them does, whatever happened to
the files meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.test_replay import EXPERTS, UNTIED, made

import inferno.weights.packing as packing
from inferno.core.engine import Engine
from inferno.nn import Dense, Wrapper
from inferno.plan import Options, open_model, stages
from inferno.process.prepare import prepared
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.weights.packed import PackedStore

pytest.importorskip("inferno_cpu._native", reason="the native kernels are not compiled here")

TIED = {**UNTIED, "tie_word_embeddings": True}


@pytest.fixture(autouse=True)
def small_models_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "KEPT_FROM", 0)
    monkeypatch.setattr(packing, "_DELAY", 0.0)
    monkeypatch.setattr("inferno.weights.packed.digest._SETTLED_NS", -(10**18))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def started(model: Path, folder: Path | str, **options: Any) -> tuple[list[int], bool]:
    """Start an engine. Returns the tokens it draws, and whether it found packed weights."""
    given = {"dtype": "bfloat16", "device": "cpu", "max_model_len": 256, **options}
    with (
        open_model(str(model), Options(packed_cache=str(folder), **given)) as opened,
        prepared(opened) as packed,
    ):
        engine = Engine.load(opened, packed=packed)
    for thread in threading.enumerate():
        if thread.name == "inferno packed weights":
            thread.join(60)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engine.submit(Request(id="1", token_ids=tuple(range(3, 40)), params=params))
    ids = []
    while engine.busy:
        ids += [output.token_id for output in engine.step() if output.token_id is not None]
    return ids, packed is not None and packed.found


@pytest.mark.parametrize("config", [UNTIED, TIED, EXPERTS], ids=["untied", "tied", "experts"])
@pytest.mark.parametrize("isq", [None, "q8_0"])
def test_the_second_start_reads_what_the_first_packed(
    config: dict[str, Any], isq: str | None, tmp_path: Path, folder: Path
) -> None:
    model = made(config, tmp_path / "model")
    expected, hit = started(model, "none", isq=isq)
    assert not hit
    assert started(model, folder, isq=isq) == (expected, False)
    [entry] = PackedStore(folder).entries()
    assert entry.about["model"] == str(model) and entry.about["isq"] == isq
    assert started(model, folder, isq=isq) == (expected, True)


def test_a_second_start_reads_no_matrix_of_the_checkpoint(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferno.builtin.safetensors import SafetensorsCheckpoint

    model = made(TIED, tmp_path / "model")
    started(model, folder)
    read: list[str] = []
    really = SafetensorsCheckpoint.read

    def noted(self: SafetensorsCheckpoint, name: str) -> Any:
        read.append(name)
        return really(self, name)

    monkeypatch.setattr(SafetensorsCheckpoint, "read", noted)
    assert started(model, folder)[1]
    assert read and all("norm" in name or "bias" in name for name in read)


@pytest.mark.parametrize("shared", [True, False], ids=["merged", "separate"])
def test_permuted_columns_are_kept_with_their_order(
    shared: bool, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of act-order, where q, k and v have the same order, and where they do not."""
    from inferno.builtin.safetensors import SafetensorsCheckpoint

    pytest.importorskip("inferno_gptq")
    model = with_act_order(made(TIED, tmp_path / "model"), shared=shared)
    expected, _ = started(model, "none")
    assert started(model, folder) == (expected, False)
    read: list[str] = []
    really = SafetensorsCheckpoint.read

    def noted(self: SafetensorsCheckpoint, name: str) -> Any:
        read.append(name)
        return really(self, name)

    monkeypatch.setattr(SafetensorsCheckpoint, "read", noted)
    assert started(model, folder) == (expected, True)
    assert not [name for name in read if "qweight" in name or "g_idx" in name]


def with_act_order(model: Path, *, shared: bool) -> Path:
    """Replace the model's projections by random ones of GPTQ."""
    tensors, config = load_file(model / "model.safetensors"), model / "config.json"
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        rows, columns = tensors.pop(name).shape
        words = (-(2**31), 2**31)
        order = torch.Generator().manual_seed(columns if shared else len(tensors))
        tensors |= {
            name.replace("weight", part): tensor
            for part, tensor in {
                "qweight": torch.randint(*words, (columns // 8, rows), generator=generator).int(),
                "qzeros": torch.full((columns // 32, rows // 8), 0x77777777, dtype=torch.int32),
                "scales": torch.full((columns // 32, rows), 0.02, dtype=torch.float16),
                "g_idx": (torch.randperm(columns, generator=order) // 32).int(),
            }.items()
        }
    save_file(tensors, model / "model.safetensors")
    scheme = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": scheme}))
    return model


def test_a_changed_model_is_packed_again(tmp_path: Path, folder: Path) -> None:
    model, other = made(UNTIED, tmp_path / "model"), made(TIED, tmp_path / "other")
    started(model, folder)
    file = model / "model.safetensors"
    times, raw = file.stat(), bytearray(file.read_bytes())
    raw[-1000:] = bytes(reversed(raw[-1000:]))
    file.write_bytes(raw)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    expected, _ = started(model, "none")
    assert started(model, folder) == (expected, False)
    assert started(model, folder) == (expected, True)
    shutil.copytree(other, model, dirs_exist_ok=True)
    assert started(model, folder) == started(other, "none")


def test_a_copy_of_the_model_shares_its_packed_weights(tmp_path: Path, folder: Path) -> None:
    model = made(UNTIED, tmp_path / "model")
    expected, _ = started(model, folder)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert started(copy, folder) == (expected, False), "its content is not known yet"
    assert len(PackedStore(folder).entries()) == 1
    assert started(copy, folder) == (expected, True)


def test_other_options_have_other_packed_weights(tmp_path: Path, folder: Path) -> None:
    model = made(UNTIED, tmp_path / "model")
    started(model, folder)
    assert not started(model, folder, dtype="float32")[1]
    assert not started(model, folder, isq="q4_0")[1]
    assert started(model, folder)[1]
    assert len(PackedStore(folder).entries()) == 3


def test_parts_that_cannot_be_read_are_packed_from_the_checkpoint(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferno.weights.packed import PackedFile

    model = made(EXPERTS, tmp_path / "model")
    expected, _ = started(model, folder)

    def unreadable(self: PackedFile, name: str, to: memoryview, start: int = 0) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(PackedFile, "read_into", unreadable)
    assert started(model, folder) == (expected, True)


def test_a_damaged_file_is_replaced(tmp_path: Path, folder: Path) -> None:
    model = made(UNTIED, tmp_path / "model")
    expected, _ = started(model, folder)
    [path] = folder.glob("*.packed")
    os.truncate(path, path.stat().st_size // 2)
    assert started(model, folder) == (expected, False)
    assert started(model, folder) == (expected, True)


def test_a_folder_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    model = made(UNTIED, tmp_path / "model")
    (tmp_path / "file").write_text("")
    expected, _ = started(model, "none")
    assert started(model, tmp_path / "file" / "packed") == (expected, False)


def test_an_engine_that_stops_leaves_no_half_file(tmp_path: Path, folder: Path) -> None:
    model = made(UNTIED, tmp_path / "model")
    options = Options(packed_cache=str(folder), dtype="bfloat16", device="cpu", max_model_len=256)
    with open_model(str(model), options) as opened, prepared(opened) as packed:
        Engine.load(opened, packed=packed)
        assert packed is not None
        packed.stop()
    for thread in threading.enumerate():
        if thread.name == "inferno packed weights":
            thread.join(60)
    assert not list(folder.glob("*.packed")) and not list(folder.glob(".*"))


def test_small_models_are_not_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    started(made(UNTIED, tmp_path / "model"), folder)
    assert not folder.exists()


def test_a_composite_is_kept_by_what_it_is_made_of(tmp_path: Path, folder: Path) -> None:
    """The same two files in another arrangement are another model."""
    main, other = made(UNTIED, tmp_path / "main"), made(UNTIED, tmp_path / "other", seed=1)
    tokens = {}
    for pattern in ("model.layers.0.*", "model.layers.1.*"):
        given = {"overrides": {pattern: str(other)}}
        tokens[pattern] = started(main, "none", **given)[0]
        assert started(main, folder, **given) == (tokens[pattern], False)
        assert started(main, folder, **given) == (tokens[pattern], True)
    assert len(PackedStore(folder).entries()) == 2
    assert started(main, folder) == (started(main, "none")[0], False)


def test_only_what_a_packing_can_write_of_stored_matrices_is_noted(folder: Path) -> None:
    packed = packing.PackedWeights(
        store=PackedStore(folder), packings={"cpu": cast(Any, None)}, about={}, key={}, states={}
    )
    weight = Dense(torch.zeros(2, 3))
    packed.keep("linear", ["a", ""], "cpu", weight)
    packed.keep("linear", ["a"], "another", weight)
    packed.keep("linear", ["a"], "cpu", Wrapper(weight))
    assert not packed._kept
    packed.keep("linear", ["a"], "cpu", weight)
    assert len(packed._kept) == 1
