"""Decides how many blocks and slots each cache group gets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from attrs import field, frozen

from inferno import host
from inferno.contracts import AttentionNeed, AttentionSpec, CacheTensor
from inferno.plan.cache_groups import CacheGroupPlan, StateUse, nbytes_of

SNAPSHOT_BYTES = 256 * host.UNITS["MI"]
"""Snapshots of states may take this much, or a sixteenth of the running sequences' states."""


Window = tuple[Literal["window", "chunk"], int]
"""The kind of a group, and its size in tokens."""


def window_of(spec: AttentionSpec) -> Window | None:
    """Return what a layer keeps of a sequence, unless that is all or nothing."""
    if spec.bidirectional:
        return None
    if spec.attention_chunk is not None:
        return "chunk", spec.attention_chunk
    return None if spec.sliding_window is None else ("window", spec.sliding_window)


class AttentionLayers(Protocol):
    """Layers with the same need, as in a plan."""

    @property
    def need(self) -> AttentionNeed: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    @property
    def cache(self) -> Mapping[str, CacheTensor]: ...


@frozen
class CacheSizes:
    """Computes what fits into `room` bytes."""

    attention: Sequence[AttentionLayers]
    states: Sequence[StateUse]
    block_size: int
    max_num_seqs: int
    tokens_in_flight: int
    """The most tokens of the steps in flight together."""
    room: int
    num_drafts: int = 0
    """The most drafts of a sequence in one step."""
    count: Callable[[Sequence[int]], int] = len
    """How many of these layers one rank has, at most."""
    _layers: Mapping[Window | None, tuple[int, ...]] = field(init=False)
    """By window; None: layers without one."""
    _block_bytes: Mapping[Window | None, int] = field(init=False)
    """Bytes of a block over all these layers."""

    def __attrs_post_init__(self) -> None:
        layers: dict[Window | None, tuple[int, ...]] = {None: ()}
        nbytes: dict[Window | None, int] = {None: 0}
        for use in self.attention:
            window = window_of(use.need)
            layers[window] = (*layers.get(window, ()), *use.layers)
            nbytes[window] = nbytes.get(window, 0) + self.count(use.layers) * nbytes_of(use.cache)
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_block_bytes", nbytes)

    def choose(self, context: int) -> tuple[CacheGroupPlan, ...]:
        """Return groups for contexts of at most `context` tokens, with as many blocks as could be
        used, or as fit alongside the states.

        Windows get blocks for all sequences that may run, or for fewer, so that if possible one
        sequence of the whole context fits alongside those that fill the windows."""
        states = self._states()
        room = self.room - sum(group.nbytes for group in states)
        wanted = self._blocks(context)
        count, windows = 0, dict[Window, int]()
        for sequences in range(self.max_num_seqs, 0, -1):
            windows = self._windows(wanted, sequences)
            count = self._fitting(wanted, windows, room)
            if count >= min(max(windows.values(), default=0) + wanted, self.max_num_seqs * wanted):
                break
        windows = {window: blocks for window, blocks in windows.items() if blocks < count}
        return self._groups(count, windows) + states

    def per_token(self) -> float:
        """Return the bytes of one token in all layers with attention."""
        return sum(self._block_bytes.values()) / self.block_size

    def state_bytes(self) -> int:
        """Return the bytes of all running sequences' states."""
        return (self.max_num_seqs + 1 + self._draft_states()) * self._slot_bytes()

    def _draft_states(self) -> int:
        """Return how many drafts of a step get a state: those of one sequence, or more, as far as
        what snapshots may take is enough."""
        affordable = SNAPSHOT_BYTES // max(1, self._slot_bytes())
        return min(self.max_num_seqs * self.num_drafts, max(self.num_drafts, affordable))

    def _groups(self, num_blocks: int, windows: Mapping[Window, int]) -> tuple[CacheGroupPlan, ...]:
        """Return the full group, which includes the layers of every window without its own group,
        and those of `windows`: window -> blocks."""
        whole = [window for window in self._layers if window not in windows]
        full = CacheGroupPlan(
            kind="full",
            layers=tuple(sorted(layer for window in whole for layer in self._layers[window])),
            block_size=self.block_size,
            unit_bytes=sum(self._block_bytes[window] for window in whole),
            num_blocks=num_blocks,
        )
        return full, *(
            CacheGroupPlan(
                kind=window[0],
                layers=self._layers[window],
                block_size=self.block_size,
                unit_bytes=self._block_bytes[window],
                num_blocks=blocks,
                window=window[1],
            )
            for window, blocks in windows.items()
        )

    def _slot_bytes(self) -> int:
        return sum(self.count(use.layers) * nbytes_of(use.cache) for use in self.states)

    def _states(self) -> tuple[CacheGroupPlan, ...]:
        """Return one slot per row, one for trial steps, and snapshots in half of the remaining
        memory: the other half is for blocks."""
        if not self.states:
            return ()
        each, rows = max(1, self._slot_bytes()), self.max_num_seqs
        drafts = self._draft_states()
        budget = max(SNAPSHOT_BYTES, 2 * each, rows // 16 * each)
        spare = max(0, self.room - self.state_bytes()) // 2
        return (
            CacheGroupPlan(
                kind="state",
                layers=tuple(sorted(layer for use in self.states for layer in use.layers)),
                block_size=self.block_size,
                unit_bytes=each,
                num_slots=rows + 1 + drafts,
                num_drafts=drafts,
                num_snapshots=min(min(budget, spare) // each, 4 * rows),
            ),
        )

    def _windows(self, wanted: int, sequences: int) -> dict[Window, int]:
        """Return each window's blocks: per sequence its window, the block that it grows into, and a
        quarter more for cached prefixes; in addition, the tokens of the steps in flight."""
        sizes = {}
        for window in self._layers:
            if window is not None and (blocks := self._blocks(window[1])) < wanted:
                sizes[window] = sequences * (blocks + 1 + max(1, blocks // 4)) + self._blocks(
                    self.tokens_in_flight
                )
        return sizes

    def _fitting(self, wanted: int, windows: Mapping[Window, int], room: int) -> int:
        """Return the most full blocks that could be used and fit alongside these blocks of
        windows."""

        def nbytes(num_blocks: int) -> int:
            return sum(
                unit * min(num_blocks, windows.get(window, num_blocks) if window else num_blocks)
                for window, unit in self._block_bytes.items()
            )

        return bisect_right(range(1, self.max_num_seqs * wanted + 1), room, key=nbytes)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


def describe(groups: Sequence[CacheGroupPlan]) -> str:
    """Describe the groups: "64 blocks of 16 tokens, 2.0 KiB per token; for window 128 40 blocks,
    6.0 KiB per token; 65 states and 4 snapshots, 3.0 MiB each"."""
    parts: list[str] = []
    for group in groups:
        unit = host.format_bytes(group.unit_bytes / group.block_size)
        blocks = f"{group.num_blocks} blocks" + ("" if parts else f" of {group.block_size} tokens")
        if group.window is not None:
            parts.append(f"for {group.kind} {group.window} {blocks}, {unit} per token")
        elif group.kind == "full" and group.unit_bytes:
            parts.append(f"{blocks}, {unit} per token")
        elif group.kind == "state":
            each = host.format_bytes(group.unit_bytes)
            drafts = f", {group.num_drafts} of them for drafts," if group.num_drafts else ""
            parts.append(
                f"{group.num_slots} states{drafts} and {group.num_snapshots} snapshots, {each} each"
            )
    return "; ".join(parts)
