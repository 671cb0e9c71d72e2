"""Products of few rows of activations with matrices, in every layout that a scheme packs.

Suffixes: T tokens, O rows, I columns.
"""

from __future__ import annotations

from functools import partial

import torch
from attrs import define, field

from inferno.catalog import Offer
from inferno.contracts import LINEAR, KernelNeed, KernelProvider, QuantScheme, lazy
from inferno.nn import Dense, Weight
from inferno_gpu_report.job import Job
from inferno_gpu_report.timing import timed

TOKENS = (1, 4, 16, 64)
_PACKED_ROWS = 64
"""Rows that are quantized. The others repeat them, which does not change the time."""
_COLD = 256 << 20
"""Total bytes of all copies of a matrix: more than fits in a device's caches."""


_few: dict[tuple[str, int, int, str], Weight] = {}
"""Quantized rows, by scheme, rows, columns and device: a large model has hundreds of matrices of a
few widths, and each would take a tenth of a second or more."""


def packed(scheme: QuantScheme, rows: int, columns: int, device: str) -> Weight:
    """Return a matrix of random values that the scheme quantized, on the device."""
    assert scheme.pack is not None, "the caller asks those that can"
    some = min(_PACKED_ROWS, rows & -rows)  # the largest power of two in it
    if (first := _few.get(key := (scheme.name, some, columns, device))) is None:
        generator = torch.Generator().manual_seed(0)
        weight_OI = (torch.randn(some, columns, generator=generator) / columns**0.5).bfloat16()
        first = _few[key] = scheme.pack(weight_OI).to(device)
    whole = first.concatenate([first] * (rows // some - 1)) if rows > some else first
    assert whole is not None and whole.shape == (rows, columns), "equal layouts are stacked"
    return whole


@define(eq=False)
class Matrix:
    """A matrix in one layout, and the kernel that multiplies by it."""

    name: str
    job: Job
    rows: int
    columns: int
    scheme: QuantScheme | None
    """None: a dense matrix."""
    nbytes: int = field(init=False)
    provider: str = field(init=False, default="torch")

    def __attrs_post_init__(self) -> None:
        shape = (self.rows, self.columns)
        self.nbytes = 2 * self.rows * self.columns
        if self.scheme is not None and self.scheme.packs is not None:
            self.nbytes = self.scheme.packs(shape, "bfloat16").nbytes

    def build(self) -> Weight:
        """Return it on the device, in its scheme's layout."""
        device = self.job.device.torch_name
        if self.scheme is not None:
            return packed(self.scheme, self.rows, self.columns, device)
        shape = (self.rows, self.columns)
        return Dense(torch.randn(shape, device=device, dtype=torch.bfloat16) / self.columns**0.5)

    @property
    def has_kernel(self) -> bool:
        """Whether a provider multiplies by it. Otherwise torch does."""
        return self._offer(self.name if self.scheme is None else self.scheme.layout) is not None

    def _offer(self, layout: str) -> Offer[KernelProvider] | None:
        shape, device = (self.rows, self.columns), self.job.device
        need = KernelNeed(op=LINEAR, dtype="bfloat16", device=device, layout=layout, shape=shape)
        return self.job.catalog.kernel(need)[0]

    def bound(self, weight: Weight) -> Weight:
        """Return the matrix bound to the chosen kernel, or as it is if every provider refuses."""
        if (offer := self._offer(weight.layout)) is not None:
            built: Weight | None = lazy.resolved(offer.item.ops[LINEAR])(weight)
            if built is not None:
                self.provider = offer.item.name
                return built
        self.provider = "torch"
        return weight.for_matmul()


def matrices(job: Job, rows: int, columns: int) -> list[Matrix]:
    """Return a dense matrix, and one of each layout that a scheme can pack in this shape: those
    that have a kernel first."""
    kinds = [Matrix("bfloat16", job, rows, columns, None)]
    for offer in job.catalog.of("inferno_quant_schemes"):
        if offer.item.pack is not None:
            try:
                kinds.append(Matrix(offer.item.name, job, rows, columns, offer.item))
            except ValueError as refused:  # `contracts.Refused`
                job.note(f"{offer.item.name}: {refused}")
    return sorted(kinds, key=lambda matrix: (not matrix.has_kernel, matrix.scheme is not None))


def measure(job: Job) -> None:
    """Report the bandwidth that products of 1 to 64 rows reach in each layout: of 1 where torch
    unpacks the matrix first."""
    rows, columns = (512, 256) if job.small else (12_288, 4_096)
    job.fact("matrix", f"{rows} x {columns}, as many copies in turn as caches do not hold")
    for matrix in matrices(job, rows, columns):
        job.check_time(f"products with {matrix.name}")
        job.attempt(matrix.name, partial(_speed, job, matrix))
    job.mention_missing("scheme")


def _speed(job: Job, matrix: Matrix) -> None:
    count = 2 if job.small else max(1, -(-_COLD // matrix.nbytes))
    copies = [matrix.bound(matrix.build()) for _ in range(count)]
    unpacked = matrix.scheme is not None and matrix.provider == "torch"
    for tokens in TOKENS[:1] if unpacked else TOKENS[:2] if job.small else TOKENS:
        x_TI = torch.randn(tokens, matrix.columns, device=job.device.torch_name).bfloat16()

        def multiply(x_TI: torch.Tensor = x_TI) -> None:
            for weight in copies:
                weight.matmul(x_TI)

        took = timed(multiply, job.device)
        each = took.seconds / count
        flops = 2 * tokens * matrix.rows * matrix.columns
        least = job.limits.seconds(matrix.nbytes)
        computing = job.limits.seconds(0, flops)
        floor = None
        if least is not None and computing is not None:
            floor = matrix.nbytes / max(least, computing) / 1e9
        detail = f"{each * 1e6:.1f} us, {matrix.provider}"
        name = f"{matrix.name}, {tokens} row{'s' * (tokens > 1)}"
        speed = matrix.nbytes / each / 1e9
        job.figure(name, speed, "GB/s", floor, detail=f"{detail} {took.detail}".strip())
