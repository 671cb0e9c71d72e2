"""`benchmarks/quality.py`: what its writers write is read by the schemes' plugins; its page and
picture are those of its results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import quality
import quality_plot
from quality_rows import Row
from quality_schemes import ENCODINGS, with_writers
from safetensors.torch import load_file

from inferno.catalog import load_catalog
from inferno.contracts import WriteOptions
from inferno.testing import TOY_SIZES
from inferno.testing.writer import skewed_model
from inferno_convert.convert import convert

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TOY_SIZES, **SIZES}
ERROR = {"bitsandbytes int8": 0.02, "MXFP4": 0.2}
"""The most by which a matrix may differ, relative to its norm; of others with 4 bits 0.15."""


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_is_written_is_read_with_nearly_the_same_values(name: str, tmp_path: Path) -> None:
    source, catalog = skewed_model(tmp_path, LLAMA), with_writers(load_catalog())
    convert(str(source), name, tmp_path / "made", catalog=catalog)
    exact = WriteOptions(dtype="float32")
    convert(str(tmp_path / "made"), "safetensors", tmp_path / "values", exact)
    ours, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "values", source))
    assert ours.keys() == theirs.keys()
    changed = 0
    for tensor, before in theirs.items():
        distance = (ours[tensor] - before.float()).norm() / before.float().norm()
        assert distance < ERROR.get(name, 0.15), tensor
        changed += bool(distance > 1e-4)
    assert changed == 7, "all matrices of the layer, and nothing else"


def test_the_page_and_the_picture_are_those_of_the_results() -> None:
    about, rows = quality.load(quality.RESULTS)
    assert quality.table(about, rows) in quality.PAGE.read_text(encoding="utf-8")
    assert quality_plot.draw(about, rows.values()) == quality.PLOT.read_text(encoding="utf-8")


def test_the_picture_orders_rows_by_divergence_on_a_logarithmic_scale() -> None:
    rows = [row("`--to worse`", 0.1), row("better", 0.001), row("between", 0.01)]
    drawn = ElementTree.fromstring(quality_plot.draw({"tokens": 9, "package": "p 1"}, rows))
    dots = [each for each in drawn.iter() if each.tag.endswith("circle")][1:]  # after the legend's
    xs, ys = ([int(dot.attrib[name]) for dot in dots] for name in ("cx", "cy"))
    assert xs[1] - xs[0] == xs[2] - xs[1] > 0
    assert ys == sorted(ys)
    texts = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert [text for text in texts if text in ("worse", "better", "between")] == [
        "better",
        "between",
        "worse",
    ]


def test_rows_are_kept_and_loaded_as_they_were(tmp_path: Path) -> None:
    rows = {each.name: each for each in (row("a", 0.1), row("b", 0.2))}
    quality.keep(tmp_path / "new" / "rows.json", {"tokens": 9}, rows)
    assert quality.load(tmp_path / "new" / "rows.json") == ({"tokens": 9}, rows)


def row(name: str, kl: float) -> Row:
    return Row(
        name=name,
        kind="gguf",
        bits=4.5,
        perplexity=12.0,
        error=0.5,
        ratio=1.0,
        ratio_error=0.01,
        kl=kl,
        kl_error=0.001,
        p99=0.1,
        same=0.9,
    )
