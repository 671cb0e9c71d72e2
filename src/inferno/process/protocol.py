"""The messages between the engine process and its client: a kind and one msgpack body, over a local
socket.

engine -> client   ready Plan (first; empty if it is the one that was given), tokens [EngineOutput],
                   stats EngineStats, log LogLine, failed Failure (then it ends)
client -> engine   add Request, abort id, stop (at once, or after writing packed weights)
"""

from __future__ import annotations

import traceback
from typing import Any

import msgspec
from attrs import frozen

from inferno.errors import ERRORS, InfernoError
from inferno.plan import Plan, plan_from_json, plan_to_json
from inferno.request.requests import EngineOutput, EngineStats, Request

ADD, ABORT, STOP = b"add", b"abort", b"stop"
PATIENTLY = b"patiently"
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


encode = msgspec.msgpack.Encoder().encode
decode_request: Any = msgspec.msgpack.Decoder(Request).decode
decode_tokens: Any = msgspec.msgpack.Decoder(list[EngineOutput]).decode
decode_stats: Any = msgspec.msgpack.Decoder(EngineStats).decode
decode_failure: Any = msgspec.msgpack.Decoder(Failure).decode
decode_log: Any = msgspec.msgpack.Decoder(LogLine).decode
decode_text: Any = msgspec.msgpack.Decoder(str).decode


def encode_plan(plan: Plan) -> bytes:
    return encode(plan_to_json(plan))


def decode_plan(body: bytes) -> Plan:
    return plan_from_json(decode_text(body))
