"""What each quantization costs the demo model: the table in `docs/how-to/quality.md`.

    python benchmarks/quality.py
    python benchmarks/quality.py --also NAME=REF

Evaluates the demo model against itself, on text that it was not trained on: as every writer of
`inferno convert` writes it, under every scheme that quantizes while loading and that no writer has,
and as any checkpoint of it that is named. Writers that calibrate do so on the project's own prose.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from inferno.catalog import load_catalog
from inferno.convert import convert
from inferno.evaluation import Report, evaluate
from inferno.plan import Options

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


def written(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the demo model with every writer whose matrices are not plain; with its calibration
    too, if it has one. Yields a name and the path of each."""
    prose, pages = folder / "prose.txt", sorted(ROOT.glob("docs/*/*.md"))
    prose.write_text("\n".join(page.read_text(encoding="utf-8") for page in pages))
    for offer in load_catalog().of("inferno_writers"):
        name = offer.item.name
        if name not in PLAIN + WEIGHTED:
            convert("demo", name, folder / name)
            yield f"`--to {name}`", folder / name
            if offer.item.calibrated:
                calibrated = folder / f"{name}-calibrated"
                convert("demo", name, calibrated, calibrate=prose)
                yield f"`--to {name}`, calibrated", calibrated


def rows(text: Path, also: Mapping[str, str], limit: int | None) -> Iterator[Row]:
    """Evaluate each, those with the most bits first."""

    def compared(ref: str, isq: str | None = None) -> Report:
        options = Options(device="cpu", isq=isq)
        return evaluate(ref, text=text, against="demo", options=options, limit=limit, by="none")

    plain = compared("demo")
    elements = plain.weights / 2  # stored in bfloat16
    found, files = [Row("bfloat16", 16, plain)], list(also.items())
    with tempfile.TemporaryDirectory() as folder:
        for name, ref in [*written(Path(folder)), *files]:
            report = compared(str(ref))
            found.append(Row(name, 8 * report.weights / elements, report))
    for offer in load_catalog().of("inferno_quant_schemes"):
        name = offer.item.name
        if offer.item.pack is not None:
            report = compared("demo", isq=name)
            found.append(Row(f"`--isq {name}`", 8 * report.weights / elements, report))
    yield from sorted(found, key=lambda row: -row.bits)


def main() -> None:
    from inferno_demo import path

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, default=path().parent / "heldout.txt")
    parser.add_argument("--limit", type=int, help="most windows; then nothing is written")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=REF")
    options = parser.parse_args()
    also = dict(each.split("=", 1) for each in options.also)
    found = list(rows(options.text, also, options.limit))
    table = HEAD + "".join(f"{row.shown()}\n" for row in found)
    print(table)
    if options.limit is None:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
