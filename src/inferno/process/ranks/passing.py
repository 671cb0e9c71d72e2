"""How the ranks of a pipeline exchange tensors: hidden states go from stage to stage point to
point, by torch.distributed's gloo, or by sockets in a sandbox; the ranks of one stage sum as those
without stages do."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from attrs import define
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from inferno.contracts import COLLECTIVES, Communicator, RankPlace
from inferno.core.runner import StepArrays, StepPart
from inferno.nn import WHOLE, Edges
from inferno.ops.collectives import Operators
from inferno.plan import Opened
from inferno.process.ranks.exchange import LOOK, LOOPBACK, Build, Gloo
from inferno.process.ranks.hosts import address_of
from inferno.process.ranks.meeting import Meeting
from inferno.process.ranks.nccl import Nccl
from inferno.process.ranks.socket_link import SocketLink

_TAGS = 1 << 20
"""Messages between two ranks are numbered, from 0 again after so many."""


class Link(Protocol):
    """One rank's connections to all others, point to point. Raises as a `Communicator`."""

    def connect(self) -> None:
        """Meet the other ranks, once."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """Give a rank a contiguous tensor, which may change afterwards."""
        ...

    def receive(self, x: Tensor, source: int) -> None:
        """Wait for what a rank sends, of this shape and type, and write it."""
        ...

    def flush(self) -> None:
        """Wait until all that was sent has been received, before this rank leaves in peace."""
        ...

    def close(self) -> None:
        """Leave, and let this rank go on if it waits. Any thread may call it, more than once."""
        ...


class GlooLink(Gloo):
    """A `Link` by gloo."""

    def __init__(self, place: RankPlace, host: str = LOOPBACK, store: Any = None) -> None:
        super().__init__(place, host, store)
        self._sent = defaultdict[int, deque[tuple[Any, Tensor]]](deque)
        """To each rank, what it may not have received yet."""
        self._tags = defaultdict[tuple[int, bool], int](int)
        self._asked = SimpleQueue[tuple[Callable[[], object], Future[None]]]()
        threading.Thread(target=_wait_for_each, args=(self._asked,), daemon=True).start()

    def send(self, x: Tensor, to: int) -> None:
        # A copy for each stage: rank 0 may be sending a step, which this rank would not read while
        # it waits here, and receives only then.
        sent = self._sent[to]
        while len(sent) > self._place.stages:
            work, _ = sent.popleft()
            self._heard(work.wait)
        copied = x.to("cpu", copy=True)
        sent.append((self._open.send([_bytes(copied)], to, self._tag(to, True)), copied))

    def receive(self, x: Tensor, source: int) -> None:
        group, tag = self._open, self._tag(source, False)
        near = x if x.device.type == "cpu" else torch.empty_like(x, device="cpu")
        self._heard(lambda: group.recv([_bytes(near)], source, tag).wait())
        if near is not x:
            x.copy_(near)

    def flush(self) -> None:
        for sent in self._sent.values():
            while sent:
                work, _ = sent.popleft()
                self._heard(work.wait)

    def _heard(self, wait: Callable[[], object]) -> None:
        """Wait in another thread: what waits for gloo cannot be called back."""
        done = Future[None]()
        self._asked.put((wait, done))
        while True:
            try:
                return done.result(LOOK.total_seconds())
            except TimeoutError:
                self._open  # noqa: B018  # raises if this rank has left
            except RuntimeError as error:
                raise ConnectionError(f"another rank has left or is not heard: {error}") from error

    @property
    def _open(self) -> Any:
        if self._group is None:
            raise ConnectionError("this rank has left the others")
        return self._group

    def _tag(self, rank: int, sends: bool) -> int:
        tag = self._tags[rank, sends]
        self._tags[rank, sends] = (tag + 1) % _TAGS
        return tag


def _wait_for_each(asked: SimpleQueue[tuple[Callable[[], object], Future[None]]]) -> None:
    while True:
        wait, done = asked.get()
        try:
            wait()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


class Pipelined:
    """The connections of a rank of a pipeline (`contracts.Communicator`)."""

    def __init__(self, link: Link, place: RankPlace, inner: Communicator | None = None) -> None:
        """`inner` are the collectives of the rank's stage; None: they go through the link too."""
        self._link, self._inner = link, inner
        each = place.ranks // place.stages
        first = place.rank // each * each
        self._peers = [rank for rank in range(first, first + each) if rank != place.rank]
        self._place, self._own = place, place.rank - first
        collectives = inner or Operators.of(self._exchange)
        self.all_reduce, self.all_gather = collectives.all_reduce, collectives.all_gather
        self.send, self.receive, self.flush = link.send, link.receive, link.flush

    def connect(self) -> None:
        self._link.connect()
        if self._inner is not None:  # now all ranks have built theirs
            self._inner.connect()

    def _exchange(self, x: Tensor) -> Sequence[Tensor]:
        for peer in self._peers:
            self.send(x, peer)
        parts = [torch.empty_like(x) for _ in self._peers]
        for peer, part in zip(self._peers, parts, strict=True):
            self.receive(part, peer)
        return [*parts[: self._own], x.clone(), *parts[self._own :]]

    def close(self) -> None:
        self._link.close()
        if self._inner is not None:
            self._inner.close()


def pipelined(
    build: Callable[..., Communicator],
    place: RankPlace,
    host: str = LOOPBACK,
    store: Any = None,
    link_of: Callable[..., Link] = GlooLink,
) -> Communicator:
    """Build a rank's connections; `build` builds the collectives of its stage, unless it is gloo,
    and `link_of` the link between stages. `host` and `store` are those of `Gloo`."""
    link, each, inner = link_of(place, host, store), place.ranks // place.stages, None
    if each > 1 and build is not Gloo:
        folder = Path(place.folder) / f"stage {place.rank // each}"
        folder.mkdir(exist_ok=True)
        rank, seconds = place.rank % each, place.seconds
        inner_place = RankPlace(
            rank=rank, ranks=each, folder=str(folder), seconds=seconds, device=place.device
        )
        # Kernels that exchange are of one machine; NCCL's ranks may be on several.
        met = (host, PrefixStore(folder.name, store)) if store is not None and build is Nccl else ()
        inner = build(inner_place, *met)
    return Pipelined(link, place, inner)


def build_of(opened: Opened) -> Build:
    """Return what builds the communicator that the plan has chosen."""
    ranks = opened.plan.ranks
    build: Build = Nccl if ranks is not None and ranks.exchange == "nccl" else Gloo
    for use in opened.plan.kernels:
        if use.op == COLLECTIVES:
            build = opened.parts.kernels[use.name].ops[COLLECTIVES]
    if ranks is None or ranks.stages == 1:
        return build
    link = SocketLink if opened.plan.sandbox is not None else GlooLink  # a sandbox has no network
    return partial(pipelined, build, link_of=link)


def meeting_by(build: Build, host: str, meeting: Meeting) -> Build:
    """Return what builds a communicator that meets others over the network, by torch.distributed:
    native ones are of one machine."""
    by_torch: Any = build if build in (Gloo, Nccl) or isinstance(build, partial) else None
    return build if by_torch is None else partial(by_torch, host=address_of(host), store=meeting)


@define(eq=False)
class Neighbours(StepPart):
    """What a rank receives of the stage before its own, and passes on to the one after."""

    edges: Edges
    link: Link
    before_it: int
    after_it: int
    """The ranks."""

    @classmethod
    def of(cls, opened: Opened, model: Any) -> Neighbours | None:
        """Return those of a rank, whose model this is; None without stages."""
        edges: Edges = getattr(model, "edges", WHOLE)
        if edges is WHOLE or (ranks := opened.plan.ranks) is None:
            return None
        link: Any = opened.communicator
        each, rank = ranks.shard.ranks, opened.rank
        return cls(edges, link, before_it=rank + each, after_it=rank - each)

    def before(self, arrays: StepArrays) -> None:
        if (received_ND := self.edges.received_ND) is not None:
            self.link.receive(received_ND[: len(arrays.token_ids)], self.before_it)

    def pass_on(self, arrays: StepArrays) -> None:
        """Pass on what the step has computed."""
        if (passed_ND := self.edges.passed_ND) is not None:
            self.link.send(passed_ND[: len(arrays.token_ids)], self.after_it)
