"""The rows of `quality.py`'s table and picture."""

from __future__ import annotations

from attrs import frozen

from inferno_eval.passes import Pass

KINDS = {
    "file": "the file as it is, in Q4_1",
    "gguf": "GGUF files, made from its values",
    "folder": "folders of safetensors, made from its values",
    "loaded": "quantized while loading",
}
"""What a row is made of, in the table's order."""


@frozen(kw_only=True)
class Row:
    """One model beside the reference."""

    name: str
    kind: str
    """A key of `KINDS`."""
    bits: float
    """Per weight of a matrix."""
    perplexity: float
    error: float
    ratio: float
    """Of its perplexity to the reference's."""
    ratio_error: float
    kl: float
    """The mean divergence of a token, in nats."""
    kl_error: float
    p99: float
    same: float
    """Share of tokens whose most likely one is the reference's."""

    @classmethod
    def of(cls, name: str, kind: str, result: Pass, reference: Pass) -> Row:
        divergence, perplexity = result.divergence(reference), result.perplexity
        return cls(
            name=name,
            kind=kind,
            bits=round(32 * result.weights / reference.weights, 2),
            perplexity=round(perplexity.value, 3),
            error=round(perplexity.error, 3),
            ratio=round(divergence.perplexity_ratio, 4),
            ratio_error=round(divergence.ratio_error, 4),
            kl=round(divergence.mean, 6),
            kl_error=round(divergence.error, 6),
            p99=round(divergence.p99, 4),
            same=round(divergence.top1, 4),
        )

    def shown(self) -> str:
        cells = (
            f"{self.bits:.2f}",
            f"{self.perplexity:.2f} ± {self.error:.2f}",
            f"{self.ratio:.4f} ± {self.ratio_error:.4f}",
            f"{self.kl:.5f} ± {self.kl_error:.5f}",
            f"{self.p99:.3f}",
            f"{100 * self.same:.1f} %",
        )
        return f"| {self.name} | {' | '.join(cells)} |"
