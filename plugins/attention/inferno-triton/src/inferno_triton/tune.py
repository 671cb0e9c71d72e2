"""Measures tiles on this machine's GPU and keeps the fastest: `python -m inferno_triton.tune`.

Each entry of the chip's table is measured at one problem size. Then tiles that differ from the best
one in one number are measured, until none of them is faster. Tiles that do not fit into shared
memory or do not compile are skipped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import attrs
import torch
from torch import Tensor

from inferno.contracts import AttentionNeed, Device
from inferno.nn import Dense, IntGroups
from inferno.nn.batch import Batch
from inferno_triton import attention, chips, experts, linear, tuned
from inferno_triton.attend import TritonAttend
from inferno_triton.tiles import Chip, Product, Tile, Work, chip_of

Entry = TypeVar("Entry", Tile, Product)

Measure = Callable[[Callable[[], object]], float | None]
"""Returns the seconds that a call takes, or None if it cannot run."""

GAIN = 0.97
"""A tile replaces the best one if it takes less than this share of its time."""

RANGES: Mapping[str, tuple[int, int]] = {
    "rows": (16, 128),
    "outputs": (16, 256),
    "columns": (32, 256),
    "warps": (1, 8),
    "stages": (1, 5),
}
"""Minimum and maximum of each number that is tuned. Stages change by one, other numbers by a factor
of two. The tokens of a product are its key in the table, and are not tuned; nor are the keys of
attention, on which the order of its sums depends."""


def neighbours(entry: Entry, fixed: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Yield the tiles that differ in one number, except those in `fixed`."""
    for name, (least, greatest) in RANGES.items():
        if not hasattr(entry, name) or name in fixed:
            continue
        value = getattr(entry, name)
        for other in (value - 1, value + 1) if name == "stages" else (value // 2, value * 2):
            if least <= other <= greatest:
                changes: Any = {name: other}
                yield attrs.evolve(entry, **changes)


def best(
    entry: Entry,
    run: Callable[[Entry], Callable[[], object]],
    measure: Measure,
    *,
    fixed: tuple[str, ...] = (),
    until: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Entry, float | None]:
    """Search from a tile, and return the fastest one and its seconds. A tile that cannot run is
    returned as it is. `run(tile)` returns the call to measure. The search stops at the time
    `until`."""
    fastest = measure(run(entry))
    known = {entry}
    better = fastest is not None
    while better and clock() < until:
        better = False
        for other in neighbours(entry, fixed):
            if other in known or clock() >= until:
                continue
            known.add(other)
            seconds = measure(run(other))
            if seconds is not None and fastest is not None and seconds < GAIN * fastest:
                entry, fastest, better = other, seconds, True
                break
    return entry, fastest


class Runs(Protocol):
    """The measurement for each entry of a chip's tables."""

    def attention(self, work: Work, dim: int) -> Callable[[Tile], Callable[[], object]]: ...

    def product(self, tokens: int) -> Callable[[Product], Callable[[], object]]: ...

    def grouped(self, tokens: int) -> Callable[[Product], Callable[[], object]]: ...


def tune(
    chip: Chip,
    cases: Runs,
    measure: Measure,
    *,
    budget: float,
    say: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Chip:
    """Return the chip with the fastest tiles that were found in `budget` seconds for all
    entries."""
    end, tiles, products, grouped = clock() + budget, dict(chip.tiles), {}, {}
    left = len(chip.tiles) + len(chip.products) + len(chip.grouped)

    def until() -> float:
        nonlocal left
        share = (end - clock()) / max(1, left)
        left -= 1
        return clock() + share

    def told(name: str, entry: Tile | Product, seconds: float | None) -> None:
        timing = "does not run here" if seconds is None else f"{seconds * 1e6:.1f} us"
        say(f"{name}: {entry}, {timing}")

    for (work, dim), tile in chip.tiles.items():
        run = cases.attention(work, dim)
        winner, seconds = best(tile, run, measure, until=until(), clock=clock)
        tiles[work, dim] = winner
        told(f"attention, {work}, heads of {dim}", winner, seconds)
    for tokens, product in chip.products.items():
        packed = cases.product(tokens)
        products[tokens], seconds = best(
            product, packed, measure, fixed=("columns",), until=until(), clock=clock
        )
        told(f"packed products, {tokens} tokens", products[tokens], seconds)
    for tokens, product in chip.grouped.items():
        plain = cases.grouped(tokens)
        grouped[tokens], seconds = best(product, plain, measure, until=until(), clock=clock)
        told(f"products of experts, {tokens} tokens", grouped[tokens], seconds)
    return attrs.evolve(chip, tiles=tiles, products=products, grouped=grouped)


@attrs.frozen
class Cases:
    """Measurements of steps of ordinary sizes, in bfloat16."""

    chip: Chip
    device: torch.device
    capability: tuple[int, int]

    def attention(self, work: Work, dim: int) -> Callable[[Tile], Callable[[], object]]:
        """Measure 64 sequences of 2,048 tokens, or four prompts of 1,024."""
        latent = {"latent_dim": 512, "num_heads": 128, "num_kv_heads": 1} if dim > 256 else {}
        heads: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, **latent}
        heads["cache_dtype"] = "int8" if work == "words" else "auto"
        device = Device("cuda", self.device.index or 0, capability=self.capability)
        need = AttentionNeed(
            head_dim=dim, scale=dim**-0.5, dtype="bfloat16", device=device, **heads
        )
        lengths, context, page = (
            ([1024] * 4, 1024, 64) if work == "prompts" else ([1] * 64, 2048, 64)
        )
        S, T, width = len(lengths), sum(lengths), context // page
        cache = {
            name: self._random(S * width, *tensor.shape).to(getattr(torch, tensor.dtype))
            for name, tensor in attention.cache(need, page).items()
        }
        starts = [sum(lengths[:i]) for i in range(S + 1)]
        positions_T = torch.cat([torch.arange(context - n, context) for n in lengths])
        blocks_SM = torch.arange(S * width, device=self.device).view(S, width)
        sequence_T = torch.repeat_interleave(torch.arange(S), torch.tensor(lengths))
        slots_T = (sequence_T * context + positions_T).to(self.device)
        batch = Batch(
            token_ids_T=torch.zeros(T, dtype=torch.int64, device=self.device),
            positions_T=positions_T.to(self.device),
            slots_T=slots_T,
            query_starts=starts,
            context_lens=[context] * S,
            blocks_SM=blocks_SM,
            block_size=page,
            query_starts_S1=torch.tensor(starts, dtype=torch.int32, device=self.device),
            context_lens_S=torch.full((S,), context, dtype=torch.int32, device=self.device),
        )
        q, k, v = (
            self._random(T, count, size)
            for count, size in (
                (need.num_heads, dim),
                (need.num_kv_heads, dim),
                (need.num_kv_heads, need.output_dim),
            )
        )

        def run(tile: Tile) -> Callable[[], object]:
            chip = attrs.evolve(self.chip, tiles={(work, dim): tile})
            attend = TritonAttend(need, chip)
            return lambda: attend(q, k, v, cache, batch)

        return run

    def product(self, tokens: int) -> Callable[[Product], Callable[[], object]]:
        """Measure a matrix of 4,096 x 4,096 in 4 bits."""
        size = 4096
        data = torch.randint(0, 256, (size, size // 2), dtype=torch.uint8, device=self.device)
        scales = torch.rand(size, size // 128, device=self.device).half()
        weight = linear.stack(IntGroups(data, scales, scales, 4, torch.bfloat16))
        x = self._random(1 if tokens == min(self.chip.products) else tokens, size)
        assert weight is not None, "the layout has a kernel"
        return self._with("products", tokens, lambda: weight.matmul(x))

    def grouped(self, tokens: int) -> Callable[[Product], Callable[[], object]]:
        """Measure 16 matrices of 1,536 x 2,048."""
        weight = experts.stack(Dense(self._random(16 * 1536, 2048)))
        x, each = self._random(16 * tokens, 2048), torch.arange(17, device=self.device)
        assert weight is not None, "plain matrices stack"
        return self._with("grouped", tokens, lambda: weight.grouped(x, (each * tokens).int()))

    def _with(
        self, table: str, tokens: int, call: Callable[[], object]
    ) -> Callable[[Product], Callable[[], object]]:
        def run(entry: Product) -> Callable[[], object]:
            changes: Any = {table: {tokens: entry}}
            chip = attrs.evolve(self.chip, **changes)

            def measured() -> object:
                with chips.using(chip):
                    return call()

            return measured

        return run

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=self.device)


def on_device(call: Callable[[], object]) -> float | None:
    """Return the median time of a call on the current CUDA device, after compilation. None if it
    does not fit or does not compile."""
    from triton.errors import TritonError
    from triton.testing import do_bench

    try:
        median: float = do_bench(call, warmup=20, rep=60, return_mode="median")
    except (TritonError, RuntimeError):
        return None
    return median / 1e3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m inferno_triton.tune",
        description="Measure tiles of the kernels on this machine's GPU, and keep the fastest.",
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="number of the GPU")
    parser.add_argument(
        "--budget", type=float, default=600, metavar="SECONDS", help="time to measure for"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "There is no CUDA device to measure on: run this on the GPU's machine.", file=sys.stderr
        )
        return 2
    torch.cuda.set_device(options.device)
    device = torch.device("cuda", options.device)
    properties: Any = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    chip = chip_of(capability, properties.shared_memory_per_block_optin)
    result = tune(chip, Cases(chip, device, capability), on_device, budget=options.budget)
    path = tuned.path_of(properties.name)
    tuned.save(path, properties.name, result)
    print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
