"""What each quantization costs the demo model: the table in `docs/how-to/quality.md`.

    python benchmarks/quality.py
    python benchmarks/quality.py --only 'nf4|hqq' --limit 4

Evaluates the demo model against itself, on text that it was not trained on: as every writer of
`inferno convert` writes it, in the schemes that inferno reads and no plugin writes
(`quality_schemes.py`), under every scheme that quantizes while loading, and as any checkpoint of it
that `--also NAME=REF` names. Writers that calibrate do so on the project's own prose. The whole
table takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from attrs import frozen
from quality_schemes import ENCODINGS, with_writers

from inferno.catalog import load_catalog
from inferno.convert import convert
from inferno.plan import Options
from inferno_eval.evaluate import evaluate
from inferno_eval.report import Report

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "quality.md"
PLAIN = ("safetensors", "f32", "f16", "bf16")
"""Writers of matrices that are not quantized."""
WEIGHTED = ("q2_k_s",)
"""Writers that need an importance matrix."""
BEGIN, END = "<!-- benchmarks/quality.py -->", "<!-- end -->"
HEAD = """\
| weights | bits | perplexity | ratio | mean KL | 99% | same top token |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


@frozen
class Row:
    name: str
    bits: float
    """Per weight of a matrix."""
    report: Report

    def shown(self) -> str:
        found, perplexity = self.report.divergence, self.report.perplexity
        assert found is not None, "every row is compared"
        cells = (
            f"{self.bits:.2f}",
            f"{perplexity.value:.3f} ± {perplexity.error:.3f}",
            f"{found.perplexity_ratio:.4f} ± {found.ratio_error:.4f}",
            f"{found.mean:.5f} ± {found.error:.5f}",
            f"{found.p99:.4f}",
            f"{100 * found.top1:.2f} %",
        )
        return f"| {self.name} | {' | '.join(cells)} |"


@frozen
class Model:
    """What is evaluated, of the demo model."""

    name: str
    make: Callable[[Path], tuple[str, str | None]]
    """make(folder) -> its reference, and what it is quantized to while it is loaded."""


def _given(ref: str, isq: str | None, folder: Path) -> tuple[str, str | None]:
    return ref, isq


def models(also: Mapping[str, str], prose: Path) -> Iterator[Model]:
    """Yield all but the reference."""
    catalog = with_writers(load_catalog())

    def converted(name: str, calibrate: Path | None, folder: Path) -> tuple[str, None]:
        convert("demo", name, folder / "made", calibrate=calibrate, catalog=catalog)
        return str(folder / "made"), None

    for offer in catalog.of("inferno_writers"):
        if (name := offer.item.name) in PLAIN + WEIGHTED:
            continue
        shown = name if name in ENCODINGS else f"`--to {name}`"
        yield Model(shown, partial(converted, name, None))
        if offer.item.calibrated:
            yield Model(f"{shown}, calibrated", partial(converted, name, prose))
    for offer in catalog.of("inferno_quant_schemes"):
        if offer.item.pack is not None:
            isq = offer.item.name
            yield Model(f"`--isq {isq}`", partial(_given, "demo", isq))
    for name, ref in also.items():
        yield Model(name, partial(_given, ref, None))


def rows(text: Path, also: Mapping[str, str], limit: int | None, only: str) -> Iterator[Row]:
    """Evaluate each whose name matches a pattern. Yields those with the most bits first."""

    def compared(ref: str, isq: str | None = None) -> Report:
        options = Options(device="cpu", isq=isq)
        return evaluate(ref, text=text, against="demo", options=options, limit=limit, by="none")

    plain = compared("demo")
    elements = plain.weights / 2  # stored in bfloat16
    found = [Row("bfloat16", 16, plain)]
    with tempfile.TemporaryDirectory() as folder:
        prose, pages = Path(folder) / "prose.txt", sorted(ROOT.glob("docs/*/*.md"))
        prose.write_text("\n".join(page.read_text(encoding="utf-8") for page in pages))
        for number, model in enumerate(models(also, prose)):
            if not re.search(only, model.name, re.IGNORECASE):
                continue
            own = Path(folder) / str(number)
            own.mkdir()
            report = compared(*model.make(own))
            found.append(Row(model.name, 8 * report.weights / elements, report))
            print(found[-1].shown(), flush=True)
    yield from sorted(found, key=lambda row: -row.bits)


def main() -> None:
    from inferno_demo import path

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, default=path().parent / "heldout.txt")
    parser.add_argument("--limit", type=int, help="most windows; then nothing is written")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=REF")
    parser.add_argument("--only", default="", help="a pattern of rows; then nothing is written")
    options = parser.parse_args()
    also = dict(each.split("=", 1) for each in options.also)
    found = list(rows(options.text, also, options.limit, options.only))
    table = HEAD + "".join(f"{row.shown()}\n" for row in found)
    print(table)
    if options.limit is None and not options.only:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
