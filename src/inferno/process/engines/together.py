"""Engines that share a mixture's experts: each has some of the experts, and requests, a cache and
all other weights of its own. In each mixture the engines exchange tokens.

In a *round*, tokens pass through all mixtures once. An engine that computes a step begins a round
in the first mixture; all engines take part in each round, with the tokens of a step of their own or
with none. After a round without tokens all rest, until one that has a step tells the others.

Suffixes: T tokens of this engine, A tokens of all engines, D hidden, K experts of a token, B bytes.
"""

from __future__ import annotations

import secrets
import select
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inferno.contracts import COLLECTIVES, Communicator, RankPlace
from inferno.core.home import Home
from inferno.errors import EngineDeadError
from inferno.nn import Experts
from inferno.nn.batch import Batch
from inferno.plan import Opened
from inferno.process.engines.meeting import STARTED_ANEW, meet
from inferno.process.ranks.exchange import Build, Gloo
from inferno.weights.dtypes import dtype_of
from inferno.weights.packing import PackedWeights

_ROUND = struct.Struct("<Q")
"""What an engine sends to the others, which may rest: the number of the round that it begins."""
_PEACE = 0
"""What an engine sends instead when it is closed: that it ends then is no failure."""
_CLOSED = getattr(select, "POLLRDHUP", 0)
"""The event of a peer that has ended. Where a system has none, `poll` reports POLLHUP unasked."""


class Together:
    """One engine's side. Its thread calls all methods."""

    def __init__(self, build: Build | None = None) -> None:
        """`build` replaces the communicator that the plan has chosen."""
        self.rounds = 0
        """How many all engines have begun together."""
        self.own: Callable[[], float | None] = lambda: 0.0
        """Returns the seconds that this engine's step should take, None if nobody knows."""
        self.streams: Callable[[], bool] = lambda: False
        """Returns whether a stream of this engine waits for its next token."""
        self.others_stream = False
        """Whether a stream of another engine waited in the latest round."""
        self.expected: float | None = 0.0
        """Seconds that the latest round should take, for the steps of all engines; None if nobody
        knows, or while this engine waits for the others to begin it. Other threads read it."""
        self._build = build
        self._communicator: Communicator | None = None
        self._peers: Mapping[int, socket.socket] = {}
        self._heard = selectors.DefaultSelector()
        self._mixtures: list[Experts] = []
        self._engine = self._engines = 0
        self._going_on = False
        """Whether the last round had tokens: then all begin the next one by themselves."""
        self._announced = 0
        """The latest round that another engine has begun."""
        self._captures = False
        """Whether the model runs to be captured: then nothing is exchanged."""
        self._next = 0
        """The number of the mixture that tokens reach next."""
        self._counts: list[int] = []
        """Tokens of each engine in this round."""
        self._picked = 0
        """Experts of each token."""
        self._dtype = torch.float32
        self._closing = threading.Event()
        name = f"inferno_engines_{secrets.token_hex(8)}"
        self._library = torch.library.Library(name, "DEF")  # noqa: TOR901  # lives as long as this
        given = "Tensor x, Tensor experts, Tensor weights, Tensor(a!) y, int mixture"
        self._library.define(f"mix({given}) -> ()")
        self._library.impl("mix", self._mix, "CPU")
        self._operators: Any = getattr(torch.ops, name)

    def home_of(self, wanted: Callable[[], bool]) -> Callable[[Opened, PackedWeights | None], Home]:
        """Return a function that loads an engine's model, and waits until all engines have loaded
        theirs. It raises EngineDeadError if the engine is no longer `wanted`."""

        def load(opened: Opened, packed: PackedWeights | None) -> Home:
            home = Home.load(opened, packed)
            self._meet(opened, wanted)
            self._bind(home.resident.present.model)
            self._dtype = dtype_of(opened.plan)
            return home

        return load

    # --- meeting ----------------------------------------------------------------------------------

    def _meet(self, opened: Opened, wanted: Callable[[], bool]) -> None:
        use = opened.plan.dealt
        assert use is not None, "a plan of an engine that has some of the experts"
        self._engine, self._engines = use.shard.rank, use.shard.ranks
        build = self._build or communicator_of(opened)

        def begin(folder: Path) -> None:
            place = RankPlace(rank=self._engine, ranks=self._engines, folder=str(folder))
            self._communicator = build(place)

        try:
            self._peers = meet(Path(use.folder), self._engine, self._engines, wanted, begin)
        except BaseException:
            self.leave()
            raise
        for engine, peer in self._peers.items():
            peer.setblocking(False)
            self._heard.register(peer, selectors.EVENT_READ, engine)
        threading.Thread(target=self._watch, name="inferno engines", daemon=True).start()
        with self._told():
            self._open.connect()

    @property
    def _open(self) -> Communicator:
        assert self._communicator is not None, "engines meet before they compute"
        return self._communicator

    def _watch(self) -> None:
        """Wake this engine from an exchange that waits for an engine that has ended."""
        poller = select.poll()
        for peer in self._peers.values():
            poller.register(peer, _CLOSED)
        while not self._closing.is_set():
            if poller.poll(1000):
                self._open.close()
                return

    def _bind(self, model: nn.Module) -> None:
        """Have the model's mixtures exchange tokens."""
        self._mixtures = [each for each in model.modules() if isinstance(each, Experts)]
        for number, mixture in enumerate(self._mixtures):
            mixture.exchange = partial(self._exchanged, number)
        # A captured step has the exchange as one operator. Results of the run that captures it are
        # not used, and no other engine takes part in that run: it may end early at any place.
        model.register_forward_pre_hook(self._begins)
        model.register_forward_hook(self._ends, always_call=True)

    def _begins(self, module: nn.Module, given: tuple[Batch, ...]) -> None:
        self._captures = given[0].captured

    def _ends(self, module: nn.Module, given: tuple[Batch, ...], hidden_TD: Tensor) -> None:
        self._captures = False

    # --- rounds -----------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether other engines wait for this one in a round, or will. Raises EngineDeadError if
        one has ended."""
        if not self._going_on:
            self._hear()
        return self._going_on or self._announced > self.rounds

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when another engine begins a round, or has ended."""
        return self._heard.fileno()

    def _hear(self) -> None:
        for key, _ in self._heard.select(0):
            peer = self._peers[key.data]
            try:
                while told := peer.recv(_ROUND.size):
                    [number] = _ROUND.unpack(told)
                    self._announced = max(self._announced, number)
                    if number == _PEACE:
                        self._heard.unregister(peer)
                        break
                else:
                    raise self._gone(key.data)
            except BlockingIOError:
                continue
            except ConnectionError as error:
                raise self._gone(key.data) from error

    @torch.inference_mode()
    def attend(self) -> None:
        """Take part in a round of the others, without tokens of this engine."""
        with self._told():
            self._begin(0, 0)
            for number in range(len(self._mixtures)) if self._going_on else ():
                mixture, size = self._mixtures[number], self._mixtures[number].hidden_size
                x_TD = torch.empty(0, size, dtype=self._dtype)
                experts_TK = torch.empty(0, self._picked, dtype=torch.int64)
                self._compute(mixture, x_TD, experts_TK, experts_TK.float())

    def _exchanged(
        self, number: int, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Tensor:
        y_TD = torch.empty_like(x_TD)
        self._operators.mix(x_TD, experts_TK, weights_TK, y_TD, number)
        return y_TD

    def _mix(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, y_TD: Tensor, number: int
    ) -> None:
        """Write what a mixture gives for this engine's tokens into `y_TD`. Meanwhile this engine
        computes its experts for the tokens of all."""
        if self._captures:
            y_TD.zero_()
            return
        with self._told():
            assert number == self._next, "tokens pass all mixtures in their order"
            if number == 0:
                self._begin(len(x_TD), experts_TK.shape[1])
            assert self._counts[self._engine] == len(x_TD), "mixtures are given all tokens"
            y_TD.copy_(self._compute(self._mixtures[number], x_TD, experts_TK, weights_TK))
            self._next = (number + 1) % len(self._mixtures)

    def _begin(self, tokens: int, picked: int) -> None:
        """Begin a round with all engines, and learn how many tokens each has in it."""
        if not self._going_on:  # others may rest
            for peer in self._peers.values():
                with suppress(BlockingIOError):
                    peer.sendall(_ROUND.pack(self.rounds + 1))
        # An engine waits while others compute, which is no hang: what all expect is known to all.
        own, self.expected = self.own(), None
        micros = -1 if own is None else int(1e6 * own)
        mine = torch.tensor([[tokens, picked, micros, self.streams()]])
        told = self._open.all_gather(mine, [4] * self._engines).view(-1, 4)
        self.rounds += 1
        self._counts, self._picked = told[:, 0].tolist(), int(told[:, 1].max())
        times: list[int] = told[:, 2].tolist()
        self.expected = None if min(times) < 0 else sum(times) / 1e6
        self.others_stream = bool(told[:, 3].sum() > told[self._engine, 3])
        self._going_on = any(self._counts)

    def _compute(
        self, mixture: Experts, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Tensor:
        """Return what a mixture gives for this engine's tokens, (T, D). Each engine computes its
        own experts for the tokens of all, and the results are added up in the engines' order."""
        parts = (_bytes(x_TD), _bytes(weights_TK.float()), _bytes(experts_TK))
        mine_TB = torch.cat(parts, 1)
        widths = [count * mine_TB.shape[1] for count in self._counts]
        all_AB = self._open.all_gather(mine_TB.view(1, -1), widths).view(-1, mine_TB.shape[1])
        each = [part.shape[1] for part in parts]
        x_AB, weights_AB, experts_AB = (_whole(part) for part in all_AB.split(each, 1))
        given = x_AB.view(x_TD.dtype), experts_AB.view(torch.int64), weights_AB.view(torch.float32)
        y_AD = mixture.mixed(*given, fitted=True)
        y_AD = self._open.all_reduce(y_AD)
        first = sum(self._counts[: self._engine])
        return y_AD[first : first + len(x_TD)]

    # --- ends -------------------------------------------------------------------------------------

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context in which a failed exchange raises EngineDeadError, with the number of the engine
        that has ended if it is known."""
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            self._hear()  # raises, if it is known which one has ended
            raise EngineDeadError(
                f"another engine that has some of the experts does not answer: {error}",
                STARTED_ANEW,
            ) from error

    def _gone(self, engine: int) -> EngineDeadError:
        return EngineDeadError(
            f"engine {engine}, which has some of the experts, has ended",
            STARTED_ANEW,
        )

    def close(self) -> None:
        """Leave the other engines, which cannot go on without this one and are closed too."""
        for peer in self._peers.values():
            with suppress(OSError):
                peer.sendall(_ROUND.pack(_PEACE))
        self.leave()

    def leave(self) -> None:
        """Let the others know that this engine computes nothing more."""
        self._closing.set()
        if self._communicator is not None:
            self._communicator.close()
        for peer in self._peers.values():
            with suppress(OSError):  # `_watch` would keep it open
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()
        self._heard.close()


def communicator_of(opened: Opened) -> Build:
    """Return what builds the communicator that the plan has chosen."""
    for use in opened.plan.kernels:
        if use.op == COLLECTIVES:
            build: Build = opened.parts.kernels[use.name].ops[COLLECTIVES]
            return build
    return Gloo


def _bytes(x: Tensor) -> Tensor:
    """Return a matrix as bytes, (rows, bytes of a row)."""
    count, width = x.shape
    return x.contiguous().view(-1).view(torch.uint8).view(count, width * x.element_size())


def _whole(x: Tensor) -> Tensor:
    """Return a copy of some columns that begins its own memory, so that `view` may change its
    type."""
    return x.clone(memory_format=torch.contiguous_format)
