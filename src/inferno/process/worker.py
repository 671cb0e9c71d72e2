"""What the engine process does: it runs a plan, receives requests, and sends tokens.

It ends when it receives a stop message, or when its parent is gone.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import zmq

from inferno.errors import AsleepError, InfernoError, RequestError
from inferno.process import protocol
from inferno.process.heartbeat import Heart
from inferno.request.requests import EngineOutput, FinishReason

if TYPE_CHECKING:
    from inferno.catalog import Catalog
    from inferno.process.engines.together import Together

_STOPS = ("sleep", "update_weights", "pause")
"""What is done once running requests have ended, are aborted, or are kept."""
_STATS_EVERY = 16
"""Steps between two messages with the engine's stats: to fit what steps cost takes a while."""
_SOON = 0.002
"""Seconds for which tokens of quick steps may wait, to be sent with those of the next steps: a
message takes the client as long as twenty tokens."""
_IDLE_MS = 1000
"""How long to wait for work before checking whether the parent is alive."""


class Worker:
    """One engine behind one socket."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        parent: int,
        heart: Heart,
        send_logged: Callable[[], object] = lambda: None,
    ) -> None:
        """`send_logged` sends what other threads have logged: it is called in each turn."""
        self._socket, self._parent, self._heart = socket, parent, heart
        self._send_logged = send_logged
        self._num_steps = 0
        self._unsent: list[EngineOutput] = []
        self._sent_at = 0.0
        """When tokens were sent last."""
        self._told = b""
        """The stats that were sent last in a time without requests."""
        self._patient = False
        """Whether the client waits at the end for packed weights to be written."""
        self._held: list[tuple[bytes, bytes]] | None = None
        """The messages that wait until running requests have ended, while they do."""
        self._paused = False
        """Whether requests wait, those that come too."""
        self._together: Together | None = None
        """The engines that this one computes each step with, if there are others."""
        self._may_take_long = True
        """Whether nothing is known of how long it may take until its loop comes round."""

    def run(
        self,
        plan: Path,
        catalog: Catalog | None = None,
        imported: Callable[[], object] = lambda: None,
    ) -> None:
        """Run the plan in a file, until the client stops it. `catalog` has all installed plugins.
        `imported` returns once another thread has imported what runs plans."""
        from inferno.plan import plan_from_json, reopen
        from inferno.process.prepare import prepared

        given = plan_from_json(plan.read_bytes())
        catalog = None if given.disable or given.only else catalog
        with reopen(given, catalog) as opened, prepared(opened) as packed:
            # Two threads that import a package and a module of it, from different ends, wait for
            # each other; Python ends that with an error in one of them.
            imported()
            from inferno.process.ranks.engine import load_engine

            if given.dealt is not None:
                from inferno.process.engines.together import Together

                self._together = Together()
            self._engine = load_engine(
                opened, packed, streams=True, wanted=self._is_wanted, together=self._together
            )
        self._may_take_long, self._heart.expected = False, self._expected
        gc.freeze()  # torch's modules and the model stay: keep them out of every collection
        gc.enable()
        measured = self._engine.plan
        self._send(protocol.READY, protocol.encode_plan(measured) if measured != given else b"")
        self._serve_all()
        self._may_take_long = True
        if packed is not None and not self._patient:
            packed.stop()
        if self._together is not None:
            self._together.close()
        self._engine.close()  # stores and links say that they end, and temporary files go

    def _serve_all(self) -> None:
        try:
            while self._serve():
                self._heart.moved()
        except BaseException:
            self._send_tokens()
            # Now: the system closes a process's connections once all of its memory is given back.
            if self._together is not None:
                self._together.leave()
            raise

    def _expected(self) -> float | None:
        """Return the seconds that what it does should take, None if nobody knows."""
        if self._may_take_long or (own := self._engine.expected()) is None:
            return None
        if self._together is None:
            return own
        ours = self._together.expected
        return None if ours is None else max(own, ours)

    @contextmanager
    def _taking_long(self) -> Iterator[None]:
        before, self._may_take_long = self._may_take_long, True
        try:
            yield
        finally:
            self._may_take_long = before
            self._heart.moved()

    def _serve(self) -> bool:
        """Handle all messages, then run one step. Returns False to end the process."""
        engine, others = self._engine, self._together
        self._send_logged()
        if not self._is_wanted():
            return False
        told = None if others is None else others.descriptor
        listens = None if self._paused else engine.listens  # what others ask for waits too
        if not (self._busy or self._owes) and not self._wait(listens, told):
            engine.rest()
            if (stats := protocol.encode(engine.stats())) != self._told:
                self._told = stats
                self._send(protocol.STATS, stats)
            return True
        if (descriptor := engine.waits_for) is not None and not self._owes:
            self._send_tokens()
            self._wait(descriptor, told)
        while self._socket.poll(0):
            self._send_tokens()  # the step of a new prompt may take long
            if not self._take(*self._socket.recv_multipart()):
                return False
        rounds = others.rounds if others is not None else 0
        if is_busy := self._busy:
            self._num_steps += 1
            begun = monotonic()
            tokens = engine.step(naps=False)  # `_wait` waits for the store
            self._unsent += tokens
            late = monotonic() - min(begun, self._sent_at)
            ends = others is not None or any(token.finish is not None for token in tokens)
            if late >= _SOON or ends or not self._busy:
                self._send_tokens()
        if others is not None and others.rounds == rounds and others.owes:
            others.attend()
            if not is_busy:
                return True
        if not self._busy or self._num_steps % _STATS_EVERY == 1:
            self._send(protocol.STATS, protocol.encode(engine.stats()))
        return True

    def _is_wanted(self) -> bool:
        """Whether the process that started this one is still there."""
        return os.getppid() == self._parent

    @property
    def _busy(self) -> bool:
        return self._engine.busy and not self._paused

    @property
    def _owes(self) -> bool:
        """Whether other engines wait for this one to take part in a round."""
        return self._together is not None and self._together.owes

    def _wait(self, *descriptors: int | None) -> bool:
        """Wait a moment for a message, a store or another engine. Returns whether one of them has
        come."""
        if not (heard := [each for each in descriptors if each is not None]):
            return bool(self._socket.poll(_IDLE_MS))
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for descriptor in heard:
            poller.register(descriptor, zmq.POLLIN)
        return bool(poller.poll(_IDLE_MS))

    def _take(self, kind: bytes, body: bytes) -> bool:
        if self._held is not None and kind in (protocol.ADD, protocol.CONTROL):
            self._held.append((kind, body))
        elif kind == protocol.ADD:
            request = protocol.decode_request(body)
            try:
                self._engine.submit(request, wait=False)
            except RequestError as error:
                refused = EngineOutput(request.id, None, FinishReason.ERROR, error=str(error))
                self._send(protocol.TOKENS, protocol.encode([refused]))
            except AsleepError as error:
                refused = EngineOutput.failed(request.id, error)
                self._send(protocol.TOKENS, protocol.encode([refused]))
        elif kind == protocol.CONTROL:
            return self._control(protocol.decode_control(body))
        elif kind == protocol.ABORT:
            aborted = protocol.decode_text(body)
            self._forget_held(aborted)
            self._engine.abort(aborted)
            self._send(protocol.ABORTED, protocol.encode(aborted))
        elif kind == protocol.SESSIONS:
            wanted: protocol.SessionsWanted = protocol.decode_wanted(body)
            store, owner, name = self._engine.sessions, wanted.owner, wanted.name
            ends = wanted.ends and name is not None
            views = store.end(owner, name or "") if ends else store.views(owner, name, wanted.limit)
            reply = protocol.SessionsFound(wanted.call, views)
            self._send(protocol.SESSIONS, protocol.encode(reply))
        elif kind == protocol.ASK:
            self._send(protocol.STATS, protocol.encode(self._engine.stats()))
        elif kind == protocol.STOP:
            self._patient = body == protocol.PATIENTLY
            return False
        return True

    def _control(self, control: protocol.Control) -> bool:
        """Do something between two steps, once running requests have ended if it is to wait, and
        report it. Returns False to end the process."""
        engine, failure = self._engine, None
        messages: list[tuple[bytes, bytes]] = []
        if control.action in _STOPS:
            if control.mode == "wait" and not self._paused and not self._drain(messages):
                return False
            if control.mode == "abort":
                self._abort_all()
        try:
            with self._taking_long():
                self._do(control)
        except InfernoError as error:
            failure = protocol.Failure.of(error)
        now = engine.asleep, engine.weight_version
        done = protocol.Controlled(control.number, *now, failure, self._paused)
        self._send(protocol.CONTROLLED, protocol.encode(done))
        self._send(protocol.STATS, protocol.encode(engine.stats()))
        return all(self._take(*message) for message in messages)

    def _do(self, control: protocol.Control) -> None:
        engine = self._engine
        match control.action:
            case "sleep":
                engine.sleep(control.level)
            case "wake_up":
                engine.wake_up(cache=control.cache)
            case "update_weights":
                path = Path(control.path)
                engine.update_weights(path, control.version, temporary=control.temporary)
            case "reset_prefix_cache":
                engine.reset_prefix_cache()
            case "pause" | "resume":
                self._paused = control.action == "pause"

    def _drain(self, held: list[tuple[bytes, bytes]]) -> bool:
        """Run until the requests so far have ended; those that come meanwhile are `held`. Other
        instances' are not waited for: there may be no end of them."""
        self._held, awaited = held, set(self._engine.unfinished)
        try:
            while self._engine.busy:
                left = set(self._engine.unfinished)
                if left and not left & awaited:
                    break
                if not self._serve():
                    return False
                self._heart.moved()
        finally:
            self._held = None
        return True

    def _abort_all(self) -> None:
        aborted = self._engine.unfinished
        for request_id in aborted:
            self._engine.abort(request_id)
        ended = [EngineOutput(each, None, FinishReason.ABORT) for each in aborted]
        self._send(protocol.TOKENS, protocol.encode(ended))

    def _forget_held(self, request_id: str) -> None:
        """Drop a request that waits until others have ended."""
        waiting = self._held or []
        waiting[:] = [
            (kind, body)
            for kind, body in waiting
            if kind != protocol.ADD or protocol.decode_request(body).id != request_id
        ]

    def _send_tokens(self) -> None:
        if self._unsent:
            tokens, self._unsent = self._unsent, []
            self._sent_at = monotonic()
            self._send(protocol.TOKENS, protocol.encode(tokens))

    def _send(self, kind: bytes, body: bytes) -> None:
        with self._taking_long():  # the client may be stopped
            self._socket.send_multipart([kind, body])


class ToClient(logging.Handler):
    """Sends log lines to the client. Those of other threads than the engine's, which owns the
    socket, wait until it calls `send_waiting`."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__()
        self._socket = socket
        self._waiting = deque[bytes]()

    def emit(self, record: logging.LogRecord) -> None:
        line = protocol.LogLine(record.name, record.levelno, self.format(record))
        self._waiting.append(protocol.encode(line))
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send what waits, in the engine's thread."""
        if threading.current_thread() is threading.main_thread():
            while self._waiting:
                self._socket.send_multipart([protocol.LOG, self._waiting.popleft()])
