"""How many blocks, and how many window blocks for layers with a sliding window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from inferno import host
from inferno.plan.plan import AttentionUse


@frozen
class CacheSizes:
    """What fits into `room` bytes. `window_blocks` are as in `Plan`."""

    attention: Sequence[AttentionUse]
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    room: int
    _by_window: Mapping[int | None, int] = field(init=False)
    """Bytes of a block over all layers of a window; of those without at None."""

    def __attrs_post_init__(self) -> None:
        by_window: dict[int | None, int] = {}
        for use in self.attention:
            window = use.need.sliding_window
            by_window[window] = by_window.get(window, 0) + use.block_bytes
        object.__setattr__(self, "_by_window", by_window)

    def choose(self, context: int) -> tuple[int, dict[int, int]]:
        """Blocks and window blocks for contexts of up to so many tokens: as many as could be used,
        or as fit.

        There are windows for all sequences that may run, or for fewer, so that one of the whole
        context fits beside those that fill the windows, if it can be had."""
        wanted = self._blocks(context)
        count, windows = 0, dict[int, int]()
        for sequences in range(self.max_num_seqs, 0, -1):
            windows = self._windows(wanted, sequences)
            count = self._fitting(wanted, windows)
            if count >= min(max(windows.values(), default=0) + wanted, self.max_num_seqs * wanted):
                break
        return count, {window: kept for window, kept in windows.items() if kept < count}

    def nbytes(self, num_blocks: int, window_blocks: Mapping[int, int]) -> int:
        return sum(
            n * window_blocks.get(window or 0, num_blocks) for window, n in self._by_window.items()
        )

    def describe(self, num_blocks: int, window_blocks: Mapping[int, int]) -> str:
        """As in: 64 blocks of 16 tokens, 2.0 KiB per token; for window 128 40 blocks, 6.0 KiB per
        token."""
        whole = sum(n for window, n in self._by_window.items() if window not in window_blocks)
        parts = [(f"{num_blocks} blocks of {self.block_size} tokens", whole)] if whole else []
        for window, kept in window_blocks.items():
            unit = "blocks" if parts else f"blocks of {self.block_size} tokens"
            parts.append((f"for window {window} {kept} {unit}", self._by_window[window]))
        return "; ".join(
            f"{text}, {host.format_bytes(n / self.block_size)} per token" for text, n in parts
        )

    def per_token(self) -> float:
        """Bytes of one token in all layers."""
        return sum(self._by_window.values()) / self.block_size

    def _windows(self, wanted: int, sequences: int) -> dict[int, int]:
        """For each sequence its window, the block that it grows into, and a quarter more for
        prefixes to be found again; beside them the tokens of a step."""
        found = {}
        for window in self._by_window:
            if window is not None and (blocks := self._blocks(window)) < wanted:
                found[window] = sequences * (blocks + 1 + max(1, blocks // 4)) + self._blocks(
                    self.max_num_batched_tokens
                )
        return found

    def _fitting(self, wanted: int, windows: Mapping[int, int]) -> int:
        """The most blocks that could be used and fit beside these window blocks."""

        def nbytes(num_blocks: int) -> int:
            return self.nbytes(
                num_blocks, {w: min(kept, num_blocks) for w, kept in windows.items()}
            )

        return bisect_right(range(1, self.max_num_seqs * wanted + 1), self.room, key=nbytes)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
