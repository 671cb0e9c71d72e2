"""The prefilling end's thread: it listens, knows who has connected, and sends them blocks."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import secrets
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np
import xxhash
import zmq
from attrs import define, field, frozen

from inferno.contracts import LinkedPrompt
from inferno.errors import OptionError
from inferno_disaggregated import messages, pulling, shared_memory
from inferno_disaggregated.address import Address, own_folder
from inferno_disaggregated.layouts import differences
from inferno_disaggregated.mailbox import Mailbox, waiting
from inferno_disaggregated.messages import Foreign, Session
from inferno_disaggregated.pieces import Bytes
from inferno_disaggregated.shared_memory import Arena

log = logging.getLogger("inferno.link")

SILENCE = 10.0
"""Seconds without a sign of life after which the other end is gone."""
JOINING = 5.0
"""Seconds in which one that connects must show that it knows the token."""
MOST_PEERS = 64
MOST_PROMPTS = 64
"""Prompts in progress: further ones are refused, and computed where they came from."""
_TICK_MS = 500
_SENDING_MS = 20


@define(eq=False)
class Transfer:
    """A prompt that another end has asked for."""

    prompt: LinkedPrompt
    peer: Peer
    number: int
    lacks: list[int]
    """By block, the groups whose parts are wanted and not noted yet. The engine's thread alone
    writes this and all that follows."""
    noted: dict[int, int] = field(factory=dict)
    """By block, the groups whose parts the next step saves."""
    keys: list[bytes] = field(factory=list)
    error: str | None = None
    """Once it has ended: why it failed, or empty."""
    is_short: bool = False
    """Whether there was no room for all its blocks."""
    runs: list[tuple[int, int]] = field(factory=list)
    """What it takes of its peer's memory."""

    @property
    def id(self) -> str:
        return self.prompt.id


@define(eq=False)
class Peer:
    """Another end."""

    identity: bytes
    session: Session
    heard: float
    joined: bool = False
    arena: Arena | None = None
    maps: bool = False
    """Whether it reads the arena."""
    agent: pulling.Agent | None = None
    """Through which it does, if that is nixl."""
    transfers: dict[int, Transfer] = field(factory=dict)
    waiting: int = 0
    """Bytes that are to be sent, or that zmq has not sent yet."""
    gone: bool = False
    _frames: deque[tuple[zmq.MessageTracker, int]] = field(factory=deque)
    _lock: threading.Lock = field(factory=threading.Lock)

    def wait(self, nbytes: int) -> None:
        """Count bytes that are to be sent, or are no longer."""
        with self._lock:
            self.waiting += nbytes

    def sending(self, tracker: zmq.MessageTracker, nbytes: int) -> None:
        self._frames.append((tracker, nbytes))

    def settle(self) -> bool:
        """Count what has been sent. Returns whether zmq has more to send."""
        while self._frames and self._frames[0][0].done:
            self.wait(-self._frames.popleft()[1])
        return bool(self._frames)


@frozen(eq=False)
class Run:
    """Parts to send: rows of one group."""

    transfer: Transfer
    group: int
    indices: list[int]
    parts: Bytes
    offset: int
    """In the peer's memory; -1: the parts are to follow."""


@frozen(eq=False)
class Note:
    """A message about a prompt, to be sent after its runs that were posted before."""

    transfer: Transfer
    message: messages.First | messages.Done


@frozen(eq=False)
class Unwanted:
    transfer: Transfer


@define(eq=False)
class Server:
    """Listens in a thread. `news` are prompts that were asked for, and those no longer wanted."""

    address: Address
    token: bytes
    layout: str
    buffer: int
    news: Mailbox[Transfer | Unwanted] = field(factory=Mailbox)
    _todo: Mailbox[Run | Note | None] = field(factory=Mailbox)
    _peers: dict[bytes, Peer] = field(factory=dict)
    _names: itertools.count[int] = field(factory=itertools.count)
    _lock: int = -1
    _told: str = ""
    """The difference between layouts that was logged last: the other instance tries again."""
    _context: zmq.Context[zmq.Socket[bytes]] = field(factory=zmq.Context)
    _socket: zmq.Socket[bytes] = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._socket = self._context.socket(zmq.ROUTER)
        limits = {zmq.LINGER: 0, zmq.SNDHWM: 0, zmq.MAXMSGSIZE: messages.MOST_HEADER}
        for option, value in {**limits, zmq.ROUTER_MANDATORY: 1}.items():
            self._socket.setsockopt(option, value)
        try:
            self._listen()
        except BaseException:
            self._socket.close()
            self._context.term()
            raise
        if self.address.path is not None:
            shared_memory.remove_stale()
        self._thread = threading.Thread(target=self._run, name="inferno link", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        if (path := self.address.path) is not None:
            own_folder(path)
            self._lock = _locked(path)
        try:
            self._socket.bind(self.address.endpoint)
        except zmq.ZMQError as error:
            raise OptionError(
                f"cannot listen at {self.address.endpoint}: {error.strerror}",
                "Choose another address, or end what listens there.",
            ) from error
        if path is not None:
            path.chmod(0o600)

    def post(self, work: Run | Note) -> None:
        """Have something sent."""
        self._todo.put(work)

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()
        self._todo.close()
        self.news.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._todo.descriptor, zmq.POLLIN)
        tick = time.monotonic()
        try:
            while True:
                sends = sum(peer.settle() for peer in self._peers.values())
                poller.poll(_SENDING_MS if sends else _TICK_MS)
                for work in self._todo.take():
                    if work is None:
                        return
                    self._do(work)
                self._receive()
                if (now := time.monotonic()) - tick > _TICK_MS / 1000:
                    tick = now
                    self._drop_silent(now)
        finally:
            for peer in list(self._peers.values()):
                self._drop(peer)
            self._socket.close()
            self._context.term()
            if self._lock >= 0 and self.address.path is not None:
                self.address.path.unlink(missing_ok=True)
                os.close(self._lock)

    def _receive(self) -> None:
        for received in waiting(self._socket):
            identity, *frames = (frame.bytes for frame in received)
            peer = self._peers.get(identity)
            try:
                self._take(identity, peer, frames)
            except Foreign as error:
                if peer is not None:
                    log.warning("an instance that prefills here was cut off: %s", error)
                    self._drop(peer)
                self._send(identity, [messages.encode(messages.Unknown())])

    def _take(self, identity: bytes, peer: Peer | None, frames: list[bytes]) -> None:
        if len(frames) == 1:  # only a hello is not sealed
            hello = messages.decode(frames[0], of_prefill=False)
            if not isinstance(hello, messages.Hello) or hello.version != messages.VERSION:
                raise Foreign("it speaks another version")
            self._greet(identity, peer, hello.nonce)
            return
        if peer is None:
            raise Foreign("it has no session")
        message = peer.session.open(frames)
        peer.heard = time.monotonic()
        if isinstance(message, messages.Join) and not peer.joined:
            self._join(peer, message)
        elif not peer.joined:
            raise Foreign("it has not joined")
        elif isinstance(message, messages.Ping):
            self._tell(peer, messages.Pong())
        elif isinstance(message, messages.Ask):
            self._ask(peer, message)
        elif isinstance(message, messages.Release):
            self._release(peer, message.transfer)
        elif isinstance(message, messages.Mapped) and peer.arena is not None:
            peer.arena.hide()
            peer.maps = message.works
        else:
            raise Foreign(f"a {type(message).__name__} out of turn")

    def _greet(self, identity: bytes, peer: Peer | None, hello: bytes) -> None:
        if peer is not None:
            self._drop(peer)
        if len(self._peers) >= MOST_PEERS:
            strangers = (each for each in self._peers.values() if not each.joined)
            if (oldest := next(strangers, None)) is None:
                return
            self._drop(oldest)
        nonce = secrets.token_bytes(16)
        session = Session.of(self.token, hello, nonce, is_prefill=True)
        self._peers[identity] = Peer(identity, session, time.monotonic())
        self._send(identity, [messages.encode(messages.Challenge(nonce))])

    def _join(self, peer: Peer, join: messages.Join) -> None:
        if join.layout != self.layout:
            theirs, ours = differences(join.layout, self.layout)
            cause = f"the decode instance's cache has {theirs}; the prefill instance's has {ours}"
            if cause != self._told:
                log.error("%s: blocks cannot be exchanged", cause)
            self._told = cause
            self._tell(peer, messages.Refused(cause))
            del self._peers[peer.identity]
            return
        peer.joined = True
        self._tell(peer, self._welcome(peer, join))
        log.info("an instance has its prompts computed here")

    def _welcome(self, peer: Peer, join: messages.Join) -> messages.Welcome:
        """Say how blocks will come, and have the memory for it."""
        shares = join.shares and self.address.path is not None
        pulls = join.pulls and self.address.pulls
        if (shares or pulls) and (arena := Arena.create(self.buffer)) is not None:
            if shares:
                peer.arena = arena
                return messages.Welcome(arena.name, arena.nbytes)
            arena.hide()
            reserved = arena.reserve_all()
            agent = pulling.Agent.offering(arena.address, arena.nbytes) if reserved else None
            if agent is not None:
                peer.arena, peer.agent = arena, agent
                return messages.Welcome("", arena.nbytes, agent.metadata(), arena.address)
            arena.close()
        return messages.Welcome("", 0)

    def _ask(self, peer: Peer, ask: messages.Ask) -> None:
        whole = bool(ask.token_ids or ask.name) and len(ask.token_ids) % 4 == 0
        # A shorter name could equal the number that another end's next prompt gets here.
        whole &= len(ask.name) in (0, messages.NAME_BYTES)
        name = f"link-{ask.name.hex() or next(self._names)}"
        others = {each.id for one in self._peers.values() for each in one.transfers.values()}
        if ask.transfer in peer.transfers or not whole or name in others:
            raise Foreign("a transfer that cannot be")
        prompt = LinkedPrompt(
            id=name,
            name=ask.name,
            token_ids=tuple(np.frombuffer(ask.token_ids, "<i4").tolist()),
            salt=ask.salt,
            adapter=ask.adapter,
            drawing=ask.drawing,
        )
        transfer = Transfer(prompt, peer, ask.transfer, ask.wanted)
        if sum(len(each.transfers) for each in self._peers.values()) >= MOST_PROMPTS:
            self._tell(peer, messages.Done(ask.transfer, "full", ""))
            return
        peer.transfers[ask.transfer] = transfer
        self.news.put(transfer)

    def _release(self, peer: Peer, number: int) -> None:
        if (transfer := peer.transfers.pop(number, None)) is not None:
            # The engine's thread gives the memory back: it may be writing to it.
            self.news.put(Unwanted(transfer))

    def _do(self, work: Run | Note) -> None:
        transfer, peer = work.transfer, work.transfer.peer
        if peer.gone or peer.transfers.get(transfer.number) is not transfer:
            if isinstance(work, Run) and work.offset < 0:
                peer.wait(-work.parts.nbytes)
            return
        if isinstance(work, Note):
            self._tell(peer, work.message)
            return
        checksum = xxhash.xxh3_64_intdigest(work.parts.data) >> 1
        message = messages.Blocks(transfer.number, work.group, work.indices, checksum, work.offset)
        self._tell(peer, message, None if work.offset >= 0 else work.parts)

    def _tell(self, peer: Peer, message: messages.ToDecode, parts: Bytes | None = None) -> None:
        frames = peer.session.seal(message)
        if parts is None:
            self._send(peer.identity, frames)
            return
        try:
            for frame in (peer.identity, *frames):
                self._socket.send(frame, zmq.SNDMORE)
            tracker = self._socket.send(parts.data, copy=False, track=True)
        except zmq.ZMQError:
            self._drop(peer)
            return
        assert tracker is not None, "it was asked for"
        peer.sending(tracker, parts.nbytes)

    def _send(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            self._socket.send_multipart([identity, *frames])
        except zmq.ZMQError:  # it has disconnected
            if (peer := self._peers.get(identity)) is not None:
                self._drop(peer)

    def _drop_silent(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if now - peer.heard > (SILENCE if peer.joined else JOINING):
                self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if self._peers.pop(peer.identity, None) is None:
            return
        peer.gone = True
        for transfer in peer.transfers.values():
            self.news.put(Unwanted(transfer))
        if peer.agent is not None:
            peer.agent.close()
        if peer.arena is not None:
            peer.arena.close()
        if peer.joined:
            log.info("an instance that had its prompts computed here is gone")


def _locked(path: Path) -> int:
    """Lock a socket's path: zmq would take it from a process that listens there. Raises
    OptionError."""
    try:
        file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OptionError(
            f"{path}: {error.strerror or error}", "Name a socket elsewhere: file:///PATH."
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise OptionError(
            f"another process listens at {path}", "Give each prefill instance a name of its own."
        ) from error
    return file
