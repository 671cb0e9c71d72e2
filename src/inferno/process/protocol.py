"""The messages between the engine process and its client: a kind and one msgpack body, over a local
socket.

engine -> client   ready Plan (first; empty if it is the one that was given), tokens [EngineOutput],
                   aborted id (one for each abort: the id's later tokens are another request's),
                   stats EngineStats, log LogLine, failed Failure (then it ends),
                   controlled Controlled, sessions SessionsFound
client -> engine   add Request, abort id, stop (at once, or after writing packed weights),
                   control Control, sessions SessionsWanted, ask (for stats)
"""

from __future__ import annotations

import traceback
from typing import Any, Literal

import msgspec
from attrs import frozen

from inferno.errors import ERRORS, InfernoError, OutOfMemoryError
from inferno.host import starved
from inferno.plan import Plan, plan_from_json, plan_to_json
from inferno.request.requests import EngineOutput, EngineStats, PauseMode, Request
from inferno.request.sessions import SessionView

ADD, ABORT, ABORTED, STOP = b"add", b"abort", b"aborted", b"stop"
PATIENTLY = b"patiently"
CONTROL, CONTROLLED = b"control", b"controlled"
SESSIONS, ASK = b"sessions", b"ask"
READY, TOKENS, STATS, LOG, FAILED = b"ready", b"tokens", b"stats", b"log", b"failed"


@frozen
class Failure:
    """An exception, serialised for another process."""

    kind: str
    cause: str
    remedy: str
    detail: str
    """The traceback."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        detail = "".join(traceback.format_exception(error))
        if not isinstance(error, OutOfMemoryError):
            error = starved(error) or error
        if isinstance(error, InfernoError):
            return cls(type(error).__name__, error.cause, error.remedy, error.detail or detail)
        return cls(
            "InfernoError", f"the engine failed: {type(error).__name__}: {error}", "", detail
        )

    def error(self) -> InfernoError:
        return ERRORS.get(self.kind, InfernoError)(self.cause, self.remedy).with_detail(self.detail)


@frozen
class LogLine:
    """A line of the engine's log, which the client writes: it knows the format and the level."""

    logger: str
    level: int
    message: str


@frozen(kw_only=True)
class Control:
    """What the engine is to do between two steps, once."""

    number: int = 0
    """By which the answer is told from others."""
    action: Literal["sleep", "wake_up", "update_weights", "pause", "resume", "reset_prefix_cache"]
    mode: PauseMode = "wait"
    """What becomes of the requests that run."""
    level: int = 1
    """How deep the sleep is."""
    cache: bool = True
    """Whether to wake up wholly: else only the weights are loaded."""
    path: str = ""
    """A file of weights, or a folder."""
    temporary: bool = False
    """Whether the engine deletes the file."""
    version: str | None = None
    """Of the new weights."""


@frozen
class Controlled:
    """The answer to a `Control`."""

    number: int
    asleep: bool
    weight_version: str
    failure: Failure | None = None
    paused: bool = False


@frozen
class SessionsWanted:
    """Asks what is kept of an owner's sessions, or ends one."""

    call: int
    """By which the answer is known."""
    owner: str
    name: str | None
    """One session; None: those that were used last, at most `limit`."""
    limit: int = 1
    ends: bool = False
    """Whether to end the session, once it is seen."""


@frozen
class SessionsFound:
    """The answer."""

    call: int
    views: list[SessionView]


encode = msgspec.msgpack.Encoder().encode
decode_request: Any = msgspec.msgpack.Decoder(Request).decode
decode_tokens: Any = msgspec.msgpack.Decoder(list[EngineOutput]).decode
decode_stats: Any = msgspec.msgpack.Decoder(EngineStats).decode
decode_failure: Any = msgspec.msgpack.Decoder(Failure).decode
decode_log: Any = msgspec.msgpack.Decoder(LogLine).decode
decode_control: Any = msgspec.msgpack.Decoder(Control).decode
decode_controlled: Any = msgspec.msgpack.Decoder(Controlled).decode
decode_wanted: Any = msgspec.msgpack.Decoder(SessionsWanted).decode
decode_found: Any = msgspec.msgpack.Decoder(SessionsFound).decode
decode_text: Any = msgspec.msgpack.Decoder(str).decode


def encode_plan(plan: Plan) -> bytes:
    return encode(plan_to_json(plan))


def decode_plan(body: bytes) -> Plan:
    return plan_from_json(decode_text(body))
