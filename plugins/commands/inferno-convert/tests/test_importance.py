"""An importance matrix weighs a conversion as it weighs quantization while loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.core.test_replay import made
from tests.weights.test_isq import WIDE, Q, imatrix, loaded

from inferno.errors import OptionError
from inferno.nn import Weight
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno_convert.convert import convert

pytest.importorskip("inferno_gguf")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made(WIDE, tmp_path_factory.mktemp("wide"))
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
    return folder


def test_converted_bytes_are_those_of_in_situ_quantization(wide: Path, tmp_path: Path) -> None:
    file = imatrix(tmp_path / "imatrix.dat", 1)
    made = convert(str(wide), "q3_k_m", tmp_path / "weighed.gguf", imatrix=file)
    convert(str(wide), "q3_k_m", tmp_path / "plain.gguf")
    in_situ = loaded(wide, "q3_k_m", imatrix=str(file))
    weighed, plain = (loaded(tmp_path / f"{name}.gguf", None) for name in ("weighed", "plain"))

    def same(ours: Mapping[str, Weight], theirs: Mapping[str, Weight], path: str) -> bool:
        return torch.equal(next(ours[path].buffers()), next(theirs[path].buffers()))

    assert weighed.keys() == in_situ.keys()
    assert all(same(weighed, in_situ, path) for path in in_situ)
    changed = {path for path in plain if not same(plain, weighed, path)}
    assert changed == {Q.format(0), Q.format(1)}
    assert any("without importance" in note for note in made.notes)


def test_a_resumed_run_is_not_that_of_another_matrix(wide: Path, tmp_path: Path) -> None:
    one, two = (imatrix(tmp_path / f"{seed}.dat", seed) for seed in (1, 2))
    out = tmp_path / "model.gguf"
    contents = []
    for file in (one, two, one):
        convert(str(wide), "q2_k_s", out, imatrix=file, force=True)
        contents.append(out.read_bytes())
    assert contents[0] == contents[2] != contents[1]


def test_refusals_say_what_to_do(wide: Path, tmp_path: Path) -> None:
    file, out = imatrix(tmp_path / "imatrix.dat", 1), tmp_path / "out"
    with pytest.raises(OptionError, match="weighs no columns") as caught:
        convert(str(wide), "bf16", out, imatrix=file)
    assert "--imatrix" in caught.value.remedy
    with pytest.raises(OptionError, match="needs the importance") as caught:
        convert(str(wide), "q2_k_s", out)
    assert "--imatrix" in caught.value.remedy
    with pytest.raises(OptionError, match="another model|columns"):
        convert(str(wide), "q4_0", out, imatrix=imatrix(tmp_path / "other.dat", 1, columns=64))
    with pytest.raises(OptionError, match="no such file"):
        convert(str(wide), "q4_0", out, imatrix=tmp_path / "missing")
    assert not out.exists()
