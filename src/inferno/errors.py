"""Errors a user can act on: one line of cause, one line of remedy, the right exit or status
code."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from attrs import frozen

MissingKind = Literal[
    "architecture", "format", "scheme", "kernels", "attention", "cache policy", "model"
]
"""Kinds of things that a distribution may provide."""


@frozen
class Missing:
    """Something that no installed plugin provides, by the name it was asked for."""

    kind: MissingKind
    name: str


class InfernoError(Exception):
    """Base class of every error inferno raises on purpose.

    `cause` says what is wrong, `remedy` what to do next. `exit_code` is the command line's,
    `status` the HTTP status and `code` OpenAI's error code for it. `detail` is the traceback of
    another process, printed last. `missing` is what an installed plugin would have to provide; the
    catalog adds to the remedy which distribution does.
    """

    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    code: str | None = None

    missing: Missing | None = None

    def __init__(self, cause: str, remedy: str = "", *, detail: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause, self.remedy, self.detail = cause, remedy, detail

    def for_lack_of(self, kind: MissingKind, name: str) -> Self:
        """The same error, naming what is not installed."""
        self.missing = Missing(kind, name)
        return self

    def with_detail(self, detail: str) -> Self:
        """The same error, carrying the traceback of where it happened."""
        self.detail = detail
        return self

    def __str__(self) -> str:
        return f"{self.cause}\n{self.remedy}" if self.remedy else self.cause


class PluginError(InfernoError):
    """A plugin broke its contract: it does not import, offers a wrong type, or a name that is
    taken."""

    exit_code = 5


class UnsupportedError(InfernoError):
    """No installed plugin can do what was asked. Lists who refused, and why."""

    exit_code = 3
    status = 400


class ModelNotFoundError(InfernoError):
    """No source has a model of that name, or the server does not serve it."""

    exit_code = 3
    status = 404
    code = "model_not_found"


class CheckpointError(InfernoError):
    """The checkpoint is damaged, or it and the architecture disagree."""

    exit_code = 3


class OutOfMemoryError(InfernoError):
    """What was asked does not fit the memory it was given."""

    exit_code = 4


class OptionError(InfernoError):
    """An option that cannot be honoured here, or options that exclude each other."""

    exit_code = 2
    status = 400


class RequestError(InfernoError):
    """A request the engine cannot serve as it stands. `param` names the field at fault, and `code`
    may say more than the class does."""

    exit_code = 2
    status = 400
    code = "invalid_value"

    def __init__(
        self,
        cause: str,
        remedy: str = "",
        *,
        param: str | None = None,
        code: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(cause, remedy, detail=detail)
        self.param = param
        self.code = code or type(self).code


class AuthenticationError(InfernoError):
    """No API key, or one that the server does not know."""

    status = 401
    code = "invalid_api_key"


class EngineDeadError(InfernoError):
    """The engine process ended while requests waited. A new one is being started; the request may
    be sent again."""

    status = 503
    code = "engine_restarting"


class QueueFullError(InfernoError):
    """More requests wait than the server accepts."""

    status = 429
    code = "rate_limit_exceeded"


class ShuttingDownError(InfernoError):
    """The server is stopping: it takes no new requests, and cuts off those that still run at the
    deadline."""

    status = 503
    code = "server_shutting_down"


class AddressError(InfernoError):
    """The server cannot listen on the address it was given."""


ERRORS: dict[str, type[InfernoError]] = {
    cls.__name__: cls
    for cls in (
        InfernoError,
        PluginError,
        UnsupportedError,
        ModelNotFoundError,
        CheckpointError,
        OutOfMemoryError,
        OptionError,
        RequestError,
        AuthenticationError,
        EngineDeadError,
        QueueFullError,
        ShuttingDownError,
        AddressError,
    )
}
"""By name, for errors that cross a process boundary."""
