"""What each quantization costs the demo model: the table in `docs/how-to/quality.md`.

    python benchmarks/quality.py
    python benchmarks/quality.py --also gptq-int4=FOLDER

Evaluates the demo model on text that it was not trained on: under every installed scheme that
quantizes while loading, and every checkpoint of it that is named, against the model itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from inferno.catalog import load_catalog
from inferno.evaluation import Report, evaluate
from inferno.plan import Options

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "quality.md"
BEGIN, END = "<!-- benchmarks/quality.py -->", "<!-- end -->"
HEAD = """\
| weights | bits | perplexity | ratio | mean KL | 99% | same top token |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
SAMPLE = (256, 512)
"""Rows and columns of the matrix whose packed size tells a scheme's bits per weight."""


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


def packed_bits() -> Mapping[str, float]:
    """The schemes that quantize while loading, with their bits per weight."""
    import torch

    matrix_OI = torch.randn(SAMPLE, generator=torch.Generator().manual_seed(0))
    found = {}
    for offer in load_catalog().of("inferno_quant_schemes"):
        if offer.item.pack is not None:
            weight = offer.item.pack(matrix_OI)
            nbytes = sum(tensor.nbytes for tensor in (*weight.buffers(), *weight.parameters()))
            found[offer.item.name] = 8 * nbytes / matrix_OI.numel()
    return found


def rows(text: Path, also: Mapping[str, str], limit: int | None) -> Iterator[Row]:
    """Evaluate each, those with the most bits first."""

    def compared(ref: str, **options: str) -> Report:
        given = Options(device="cpu", **options)  # type: ignore[arg-type]
        return evaluate(ref, text=text, against="demo", options=given, limit=limit, by="none")

    plain = compared("demo")
    elements = plain.weights / 2  # stored in bfloat16
    found = [Row("bfloat16", 16, plain)]
    found += [
        Row(f"`--isq {name}`", n, compared("demo", isq=name)) for name, n in packed_bits().items()
    ]
    for name, ref in also.items():
        report = compared(ref)
        found.append(Row(name, 8 * report.weights / elements, report))
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
