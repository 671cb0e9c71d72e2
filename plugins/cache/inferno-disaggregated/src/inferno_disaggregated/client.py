"""The decoding end's thread: it connects, asks for prompts, and checks what comes."""

from __future__ import annotations

import logging
import secrets
import threading
import time

import numpy as np
import xxhash
import zmq
from attrs import define, field, frozen
from zmq.utils.monitor import recv_monitor_message

from inferno_disaggregated import messages, pulling, shared_memory
from inferno_disaggregated.address import Address
from inferno_disaggregated.mailbox import Mailbox, waiting
from inferno_disaggregated.messages import Foreign, Session
from inferno_disaggregated.pieces import Bytes
from inferno_disaggregated.server import SILENCE

log = logging.getLogger("inferno.link")

_TICK_MS = 500
_PULLING_MS = 1
_AGAIN = 2.0
"""Seconds after which an end that was not answered, or was refused, says hello again."""
_PING = 1.0


@frozen(eq=False)
class Asked:
    """What to send of a prompt, and until when to wait for it."""

    message: messages.Ask
    deadline: float


@frozen(eq=False)
class Came:
    """Parts of a prompt: rows of one group."""

    transfer: int
    group: int
    indices: list[int]
    parts: Bytes | None
    """None: they were damaged on their way."""


@frozen(eq=False)
class Ended:
    """No more comes of a prompt."""

    transfer: int
    cause: str
    """Why not all has come; empty: it has."""


@frozen
class First:
    """A prompt's first token."""

    transfer: int
    token_id: int


News = Came | First | Ended


@define(eq=False)
class Client:
    """Keeps one connection in a thread. `news` receives what comes; clients may share one."""

    address: Address
    url: str
    token: bytes
    layout: str
    sizes: tuple[int, ...]
    """Bytes of a part in each group."""
    news: Mailbox[News] = field(factory=Mailbox)
    joined: bool = False
    """Whether the other end takes prompts."""
    _todo: Mailbox[Asked | int | None] = field(factory=Mailbox)
    _open: dict[int, Asked] = field(factory=dict)
    """Transfers for which something may come."""
    _session: Session | None = None
    _nonce: bytes = b""
    _memory: Bytes | None = None
    _pullable: int = 0
    """Bytes of the memory that can be read through the agent."""
    _agent: pulling.Agent | None = None
    _pulls: list[tuple[messages.Blocks, pulling.Pull]] = field(factory=list)
    """Parts that are being read."""
    _done: list[messages.Done] = field(factory=list)
    """Ends that wait for them."""
    _greeted: float = 0.0
    """When it last said hello."""
    _heard: float = 0.0
    _pinged: float = 0.0
    _told: str = ""
    """The last complaint: it is logged once."""
    _context: zmq.Context[zmq.Socket[bytes]] = field(factory=zmq.Context)
    _socket: zmq.Socket[bytes] = field(init=False)
    _monitor: zmq.Socket[bytes] = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in {
            zmq.LINGER: 0,
            zmq.SNDHWM: 0,
            zmq.RCVHWM: 0,
            zmq.IMMEDIATE: 1,
            zmq.MAXMSGSIZE: messages.MOST_HEADER + max(self.sizes, default=0),
            zmq.RECONNECT_IVL: 50,
            zmq.RECONNECT_IVL_MAX: 1000,
        }.items():
            self._socket.setsockopt(option, value)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self._socket.connect(self.address.endpoint)
        self._thread = threading.Thread(target=self._run, name="inferno link", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> None:
        self._todo.put(asked)

    def release(self, transfer: int) -> None:
        """Say that what came of a prompt is not needed any more."""
        self._todo.put(transfer)

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()
        self._todo.close()
        self.news.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for each in (self._socket, self._monitor, self._todo.descriptor):
            poller.register(each, zmq.POLLIN)
        try:
            while True:
                poller.poll(_PULLING_MS if self._pulls else _TICK_MS)
                while self._monitor.poll(0):
                    self._connection(recv_monitor_message(self._monitor)["event"])
                for work in self._todo.take():
                    if work is None:
                        return
                    self._do(work)
                self._receive()
                self._pulled()
                self._tick(time.monotonic())
        finally:
            self._lose("lost")
            self._socket.disable_monitor()
            self._context.destroy(linger=0)

    def _connection(self, event: int) -> None:
        self._lose("lost")
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._greet()

    def _tick(self, now: float) -> None:
        for transfer, request in list(self._open.items()):
            if now > request.deadline:
                self._end(transfer, "late")
                self._send(messages.Release(transfer))
        if self.joined and now - self._heard > SILENCE:
            log.warning("%s gives no sign of life: it gets no prompts", self.url)
            self._lose("lost")
        if self.joined and now - self._pinged > _PING:
            self._pinged = now
            self._send(messages.Ping())
        if not self.joined and now - self._greeted > _AGAIN:
            self._greet()

    def _greet(self) -> None:
        self._greeted, self._session = time.monotonic(), None
        self._nonce = secrets.token_bytes(16)
        hello = messages.Hello(messages.VERSION, self._nonce)
        self._send_frames([messages.encode(hello)])

    def _lose(self, cause: str) -> None:
        """Give up the session, and with it what has not come."""
        if self.joined:
            log.warning("the link to %s is gone: it gets no prompts", self.url)
        self.joined, self._session, self._memory = False, None, None
        self._pulls.clear()
        self._done.clear()
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        for transfer in list(self._open):
            self._end(transfer, cause)

    def _end(self, transfer: int, cause: str) -> None:
        if self._open.pop(transfer, None) is not None:
            self.news.put(Ended(transfer, cause))

    def _do(self, work: Asked | int) -> None:
        if isinstance(work, Asked):
            self._open[work.message.transfer] = work
            if not self.joined or not self._send(work.message):
                self._end(work.message.transfer, "lost")
        else:
            self._open.pop(work, None)
            if self.joined:
                self._send(messages.Release(work))

    def _send(self, message: messages.ToPrefill) -> bool:
        return self._session is not None and self._send_frames(self._session.seal(message))

    def _send_frames(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:  # there is no connection
            return False
        return True

    def _receive(self) -> None:
        for frames in waiting(self._socket):
            self._heard = time.monotonic()
            try:
                self._take(frames)
            except Foreign as error:
                self._complain(f"{self.url} sent what it should not: {error}")
                self._lose("lost")
                self._greeted = time.monotonic()

    def _take(self, frames: list[zmq.Frame]) -> None:
        if len(frames) == 1:  # a challenge, or unknown
            self._begin(messages.decode(frames[0].bytes, of_prefill=True))
            return
        if self._session is None:
            return  # of a session that was given up
        message = self._session.open([frame.bytes for frame in frames[:2]])
        if isinstance(message, messages.Welcome):
            self._welcome(message)
        elif isinstance(message, messages.Refused):
            self._complain(f"{self.url} refuses: {message.cause}; it gets no prompts")
            self._session = None
        elif not self.joined:
            raise Foreign(f"a {type(message).__name__} before a welcome")
        elif isinstance(message, messages.Blocks):
            self._blocks(message, frames[2] if len(frames) > 2 else None)
        elif isinstance(message, messages.First):
            if (request := self._open.get(message.transfer)) is not None:
                if not request.message.drawing:
                    raise Foreign("a token that was not asked for")
                self.news.put(First(message.transfer, message.token_id))
        elif isinstance(message, messages.Done):
            if message.text:
                self._complain(f"{self.url} did not compute a prompt: {message.text}")
            if any(blocks.transfer == message.transfer for blocks, _ in self._pulls):
                self._done.append(message)
            else:
                self._end(message.transfer, message.cause)

    def _begin(self, message: messages.ToDecode) -> None:
        if isinstance(message, messages.Unknown):
            if self._session is not None and not self.joined:
                self._complain(f"{self.url} has another token: it gets no prompts")
            self._lose("lost")
        elif isinstance(message, messages.Challenge) and self._session is None and self._nonce:
            nonce, self._nonce = self._nonce, b""
            self._session = Session.of(self.token, nonce, message.nonce, is_prefill=False)
            shares, pulls = self.address.path is not None, self.address.pulls
            self._send(messages.Join(self.layout, shares, pulls))
        else:
            raise Foreign("a message that is not sealed")

    def _welcome(self, welcome: messages.Welcome) -> None:
        if welcome.memory and self.address.path is not None:
            self._memory = shared_memory.attach(welcome.memory, welcome.nbytes)
            self._send(messages.Mapped(self._memory is not None))
        elif welcome.agent and self.address.pulls:
            agent = pulling.Agent.open()
            if agent is not None and agent.meet(welcome.agent, welcome.address):
                self._agent = agent
            self._pullable = welcome.nbytes
            self._send(messages.Mapped(self._agent is not None))
        self.joined, self._told = True, ""
        how = "over the socket" if self._memory is None else "through shared memory"
        how = how if self._agent is None else "through nixl"
        log.info("prompts are computed by %s, their blocks come %s", self.url, how)

    def _blocks(self, blocks: messages.Blocks, frame: zmq.Frame | None) -> None:
        """Check parts that have come. Raises Foreign if they are not as they should be."""
        if (request := self._open.get(blocks.transfer)) is None:
            return  # it has ended here
        wanted, group = request.message.wanted, blocks.group
        if group >= len(self.sizes) or not blocks.indices:
            raise Foreign("parts of no group")
        for i in blocks.indices:
            if i >= len(wanted) or not wanted[i] >> group & 1:
                raise Foreign("parts that nobody asked for")
            wanted[i] ^= 1 << group  # each comes once
        nbytes = len(blocks.indices) * self.sizes[group]
        if blocks.offset >= 0 and self._agent is not None:
            if blocks.offset + nbytes > self._pullable:
                raise Foreign("parts beyond the memory")
            if (pull := self._agent.read(blocks.offset, nbytes)) is None:
                self.news.put(Came(blocks.transfer, group, blocks.indices, None))
            else:
                self._pulls.append((blocks, pull))
            return
        if blocks.offset < 0:
            body = np.frombuffer(frame.buffer, np.uint8) if frame is not None else None
        else:
            memory = self._memory
            body = None if memory is None else memory[blocks.offset : blocks.offset + nbytes]
        if body is None or body.nbytes != nbytes:
            raise Foreign("parts of another size")
        self._came(blocks, body)

    def _came(self, blocks: messages.Blocks, body: Bytes) -> None:
        right = xxhash.xxh3_64_intdigest(body.data) >> 1 == blocks.checksum
        parts = body.reshape(len(blocks.indices), self.sizes[blocks.group]) if right else None
        self.news.put(Came(blocks.transfer, blocks.group, blocks.indices, parts))

    def _pulled(self) -> None:
        """Take note of the reads that have ended, and then of the prompts."""
        if (agent := self._agent) is None or not self._pulls:
            return
        going = []
        for blocks, pull in self._pulls:
            if (well := agent.ended(pull)) is None:
                going.append((blocks, pull))
            elif well:
                self._came(blocks, pull.into)
            else:
                self.news.put(Came(blocks.transfer, blocks.group, blocks.indices, None))
        self._pulls = going
        waiting = {blocks.transfer for blocks, _ in going}
        for done in self._done:
            if done.transfer not in waiting:
                self._end(done.transfer, done.cause)
        self._done = [done for done in self._done if done.transfer in waiting]

    def _complain(self, text: str) -> None:
        if text != self._told:
            self._told = text
            log.error("%s", text)
