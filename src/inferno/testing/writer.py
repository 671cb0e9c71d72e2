"""Tests of every writer: a checkpoint that it writes can be read again, and generates the same
tokens as its dequantized values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.catalog import Catalog
from inferno.contracts import WriteOptions, Writer
from inferno.errors import OptionError
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno.testing.installed import Installed
from inferno.testing.quant_twins import assert_same_tokens, random_tensors
from inferno.testing.tiny import run_python, torch_only

EXACT = WriteOptions(dtype="float32")
TEXT = "abcdeab cabde eabc dabce " * 40


class WriterTests(Installed):
    """Set `writer` to its registered name, `tolerance` to the relative error of what it writes, and
    `config` to a model's."""

    writer: ClassVar[str]
    tolerance: ClassVar[float]
    options: ClassVar[WriteOptions] = WriteOptions(group=32)
    """What the toy's small matrices need."""
    config: ClassVar[dict[str, Any]]
    """A model of an installed family, of small sizes (`TOY_SIZES`)."""

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> Writer:
        return catalog.named(Writer, cls.writer).item

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return skewed_model(tmp_path_factory.mktemp("writer"), cls.config)

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("written") / "model.gguf"
        convert(str(source), cls.writer, path, cls.options)
        return path

    def test_it_is_listed_with_what_it_writes(self, item: Writer) -> None:
        assert item.describe and (item.output is None or item.encoding is None)

    @alike
    def test_declaring_it_imports_no_torch(self) -> None:
        code = (
            "import sys; from inferno.catalog import load_catalog\n"
            "load_catalog().of('inferno_writers')\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code)
        assert done.returncode == 0, done.stderr

    @alike
    def test_what_is_written_gives_the_tokens_of_its_values(
        self, written: Path, tmp_path: Path
    ) -> None:
        convert(str(written), "safetensors", tmp_path / "values", EXACT)
        assert_same_tokens((written, tmp_path / "values"), torch_only())

    def test_values_are_near_the_original(
        self, source: Path, written: Path, tmp_path: Path
    ) -> None:
        ours, theirs = values(written, tmp_path / "values"), load_file(source / FILE)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert distance(ours[name], tensor) < self.tolerance, name

    def test_a_second_run_writes_the_same_bytes(
        self, source: Path, written: Path, tmp_path: Path
    ) -> None:
        again = tmp_path / written.name
        convert(str(source), self.writer, again, self.options)
        if written.is_dir():
            assert all((again / f.name).read_bytes() == f.read_bytes() for f in written.iterdir())
        else:
            assert again.read_bytes() == written.read_bytes()

    @alike
    def test_calibration_lowers_the_error_of_the_output(
        self, item: Writer, source: Path, written: Path, tmp_path: Path
    ) -> None:
        """Of each layer's first products, on the inputs that it saw; others are refused."""
        text = tmp_path / "text.txt"
        text.write_text(TEXT)
        path = tmp_path / "calibrated"
        if not item.calibrated:
            with pytest.raises(OptionError, match="--calibrate"):
                convert(str(source), self.writer, path, self.options, calibrate=text)
            return
        made = convert(str(source), self.writer, path, self.options, calibrate=text)
        assert made.calibrated
        convert(str(path), "safetensors", tmp_path / "values", EXACT)
        assert_same_tokens((path, tmp_path / "values"), torch_only())
        nearest, seen = (
            output_error(source, variant, tmp_path / name)
            for variant, name in ((written, "nearest"), (path, "seen"))
        )
        assert seen < nearest


FILE = "model.safetensors"


def skewed_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a random model, with a tokenizer, whose layers have inputs with columns of unlike
    sizes: calibration has something to see. Returns its folder."""
    tensors = random_tensors(config, folder / "random")
    scale_D = torch.linspace(0.1, 3.0, config["hidden_size"])
    for name, tensor in tensors.items():
        if "norm" in name and len(tensor) == len(scale_D):
            tensors[name] = scale_D.clone()
    source = folder / "source"
    source.mkdir()
    save_file(tensors, source / FILE)
    (source / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    (source / "tokenizer.json").write_bytes(tiny_tokenizer())
    return source


def values(path: Path, folder: Path) -> dict[str, Tensor]:
    """Return the values of a checkpoint, in float32."""
    convert(str(path), "safetensors", folder, EXACT, force=True)
    tensors: dict[str, Tensor] = load_file(folder / FILE)
    return tensors


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def output_error(source: Path, path: Path, folder: Path) -> float:
    """Return how far the logits after the text's tokens are from the original's, by transformers'
    modelling code."""
    import tokenizers
    from transformers import AutoModelForCausalLM

    values(path, folder)
    encoded = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(TEXT)
    ids = torch.tensor([encoded.ids[:200]])
    with torch.inference_mode():
        ours, theirs = (
            AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)(ids).logits
            for checkpoint in (folder, source)
        )
    return distance(ours, theirs)
