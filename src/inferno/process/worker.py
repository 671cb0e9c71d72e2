"""The engine process: `python -m inferno.process.worker ENDPOINT PARENT PLAN PIPE BEAT`.

Runs the plan in that file, receives requests, sends tokens, and a sign of life to the pipe every
BEAT seconds.

It ends when it receives a stop message, when its parent is gone, or after reporting a fatal
error.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import zmq

from inferno.errors import RequestError
from inferno.host import load_torch_library, sleep_at_barriers
from inferno.process import protocol
from inferno.process.heartbeat import Heart
from inferno.requests import EngineOutput, EngineStats, FinishReason

_IDLE_MS = 1000
"""How long to wait for work before checking whether the parent is alive."""


class Worker:
    """One engine behind one socket."""

    def __init__(self, socket: zmq.Socket[bytes], parent: int, heart: Heart) -> None:
        self._socket, self._parent, self._heart = socket, parent, heart
        self._told = EngineStats()

    def run(self, plan: Path) -> None:
        load_torch_library()
        from inferno.plan import plan_from_json, reopen
        from inferno.process.prepare import prepared

        with reopen(plan_from_json(plan.read_bytes())) as opened, prepared(opened) as packed:
            from inferno.core.engine import Engine  # torch

            self._engine = Engine.load(opened, packed=packed)
        gc.freeze()  # torch's modules and the model stay: keep them out of every collection
        gc.enable()
        self._send(protocol.READY, protocol.encode_plan(self._engine.plan))
        while self._serve():
            self._heart.moved()
        if packed is not None:
            packed.stop()

    def _serve(self) -> bool:
        """Handle all messages, then run one step. Returns False to end the process."""
        engine = self._engine
        if os.getppid() != self._parent:
            return False
        if not engine.busy and not self._socket.poll(_IDLE_MS):
            return True
        while self._socket.poll(0):
            if not self._take(*self._socket.recv_multipart()):
                return False
        if engine.busy and (tokens := engine.step()):
            self._send(protocol.TOKENS, protocol.encode(tokens))
        if not engine.busy or engine.stats().steps % 16 == 1:
            self._send(protocol.STATS, protocol.encode(engine.stats()))
        return True

    def _take(self, kind: bytes, body: bytes) -> bool:
        if kind == protocol.ADD:
            request = protocol.decode_request(body)
            try:
                self._engine.submit(request, wait=False)
            except RequestError as error:
                refused = EngineOutput(request.id, None, FinishReason.ERROR, error=str(error))
                self._send(protocol.TOKENS, protocol.encode([refused]))
        elif kind == protocol.ABORT:
            aborted = protocol.decode_text(body)
            self._engine.abort(aborted)
            # Its last output: later outputs of this id belong to another request.
            self._send(
                protocol.TOKENS, protocol.encode([EngineOutput(aborted, None, FinishReason.ABORT)])
            )
        return kind != protocol.STOP

    def _send(self, kind: bytes, body: bytes) -> None:
        self._socket.send_multipart([kind, body])


class ToClient(logging.Handler):
    """Sends log lines to the client. Those of other threads than the engine's, which owns the
    socket, go to stderr as they are."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__()
        self._socket = socket

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread() is not threading.main_thread():
            print(self.format(record), file=sys.stderr)
            return
        line = protocol.LogLine(record.name, record.levelno, self.format(record))
        self._socket.send_multipart([protocol.LOG, protocol.encode(line)])


def main() -> None:
    sleep_at_barriers()
    # Both may go to the whole process group (Ctrl-C, a service manager): the client drains, then
    # sends a stop message.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    gc.disable()  # loading makes a million objects, and they stay
    endpoint, parent = sys.argv[1], int(sys.argv[2])
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(endpoint)
    logging.getLogger("inferno").addHandler(ToClient(socket))
    logging.getLogger("inferno").setLevel(logging.INFO)
    try:
        heart = Heart(int(sys.argv[4]), float(sys.argv[5]))
        Worker(socket, parent, heart).run(Path(sys.argv[3]))
    except Exception as error:
        socket.send_multipart([protocol.FAILED, protocol.encode(protocol.Failure.of(error))])
    finally:
        socket.close()
        context.term()


if __name__ == "__main__":
    main()
