"""Events over ZeroMQ: a PUB socket, and a ROUTER socket for what a subscriber has missed.

A message has three frames: topic, number of the batch (8 bytes, big-endian), batch. A subscriber
that sees a gap in the numbers sends the first one that it lacks to the replay socket (REQ, or
DEALER with an empty frame before), and gets `number, batch` for each that is remembered, then the
number -1.
"""

from __future__ import annotations

import platform
import time
from collections import deque

import msgspec
import zmq
from attrs import define, field

from inferno.contracts import EventNeed, EventPublisher
from inferno.errors import OptionError
from inferno_kv_events.publisher import ThreadedPublisher, Waiting
from inferno_kv_events.wire import batch_of

MOST_SENT = 100_000
"""Messages that wait for one slow subscriber; it misses further ones."""
MOST_REMEMBERED = 10_000
"""Batches that can be replayed."""
MOST_REMEMBERED_BYTES = 64 << 20
REPLAY_PAUSE = 0.05
"""Seconds between two replays: whoever asks all the time takes little of a core."""
LONGEST_REQUEST = 1024
"""Bytes of a message to the replay socket; a peer that sends more is disconnected."""
END = (-1).to_bytes(8, "big", signed=True)


def build(need: EventNeed) -> EventPublisher:
    """Bind the sockets, and publish in a thread. Raises OptionError if that is impossible."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        pub = context.socket(zmq.PUB)
        pub.set_hwm(MOST_SENT)
        _join(pub, need.url, "--kv-events")
        replay = None
        if need.replay is not None:
            replay = context.socket(zmq.ROUTER)
            replay.setsockopt(zmq.MAXMSGSIZE, LONGEST_REQUEST)
            replay.setsockopt(zmq.RCVHWM, 16)
            replay.setsockopt(zmq.SNDHWM, MOST_REMEMBERED + 1)
            _join(replay, need.replay, "--kv-events-replay", binds=True)
    except OptionError:
        context.destroy(linger=0)
        raise
    topic = need.topic
    if topic is None:
        topic = f"kv@{platform.node()}@{need.model}"
    waiting = Waiting()
    serving = _Serving(need, waiting, context, pub, replay, topic.encode())
    return ThreadedPublisher(waiting, serving.run, "inferno-kv-events")


def _join(socket: zmq.Socket[bytes], url: str, option: str, *, binds: bool = False) -> None:
    """Bind to an address of this machine, or connect to another's."""
    here = ("*", "::", "0.0.0.0", "ipc://", "inproc://", "localhost", "//127.")
    if "[" in url:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        if binds or any(each in url for each in here):
            socket.bind(url)
        else:
            socket.connect(url)
    except zmq.ZMQError as error:
        raise OptionError(
            f"{option} {url}: {error.strerror}", "Name a free address: tcp://*:PORT."
        ) from error


@define(eq=False)
class _Serving:
    """What the thread does. It owns the sockets."""

    need: EventNeed
    waiting: Waiting
    context: zmq.Context[zmq.Socket[bytes]]
    pub: zmq.Socket[bytes]
    replay: zmq.Socket[bytes] | None
    topic: bytes
    _remembered: deque[tuple[int, bytes]] = field(factory=deque)
    _remembered_bytes: int = 0
    _next_replay: float = 0.0
    """No replay before (`time.monotonic`)."""

    def run(self) -> None:
        encode = msgspec.msgpack.Encoder().encode
        while True:
            self._wait()
            closed = self.waiting.closed  # before `take`: nothing is put after it
            for batch in self.waiting.take():
                told = batch_of(batch.at, batch.events, self.need)
                payload = encode(told)
                self.pub.send_multipart([self.topic, _number(batch.number), payload])
                self._remember(batch.number, payload)
            if closed:
                break
            self._replay()
        self.context.destroy(linger=200)

    def _wait(self) -> None:
        """Sleep until there is something to do."""
        poller, pause = zmq.Poller(), self._next_replay - time.monotonic()
        poller.register(self.waiting.descriptor, zmq.POLLIN)
        if self.replay is None:
            poller.poll()
        elif pause > 0:
            poller.poll(int(1000 * pause) + 1)
        else:
            poller.register(self.replay, zmq.POLLIN)
            poller.poll()

    def _remember(self, number: int, payload: bytes) -> None:
        self._remembered.append((number, payload))
        self._remembered_bytes += len(payload)
        while (
            len(self._remembered) > MOST_REMEMBERED
            or self._remembered_bytes > MOST_REMEMBERED_BYTES
        ):
            self._remembered_bytes -= len(self._remembered.popleft()[1])

    def _replay(self) -> None:
        """Answer one request, if there is one. Whatever is none is ignored."""
        socket = self.replay
        if socket is None or time.monotonic() < self._next_replay or not socket.poll(0):
            return
        self._next_replay = time.monotonic() + REPLAY_PAUSE
        frames = socket.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            return
        peer, first = frames[0], int.from_bytes(frames[2], "big")
        replies = [(_number(n), body) for n, body in self._remembered if n >= first]
        try:
            for number, payload in [*replies, (END, b"")]:
                socket.send_multipart([peer, b"", number, payload], zmq.NOBLOCK)
        except zmq.ZMQError:  # the peer has gone, or does not read
            return


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
