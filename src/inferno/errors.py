"""Errors that a user can act on: one line of cause, one line of remedy, an exit code and an HTTP
status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from attrs import frozen

MissingKind = Literal[
    "architecture",
    "format",
    "scheme",
    "kernels",
    "attention",
    "cache policy",
    "queue policy",
    "sandbox",
    "store",
    "chat format",
    "model",
    "grammar",
    "size",
    "command",
    "endpoint",
]
"""Kinds of things that a distribution may provide."""


@frozen
class Missing:
    """Something that no installed plugin provides, by kind and name."""

    kind: MissingKind
    name: str


class InfernoError(Exception):
    """Base class of every error that inferno raises on purpose.

    `cause` says what is wrong, `remedy` what to do next. `exit_code` is the command line's,
    `status` the HTTP status and `code` OpenAI's error code for it. `detail` is another process's
    traceback, printed if there is no remedy, or with `--debug`. `missing` is what no installed
    plugin provides; the catalog adds to the remedy which distribution does.
    """

    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    code: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    """HTTP headers of the response, besides the usual ones."""

    missing: Missing | None = None

    def __init__(self, cause: str, remedy: str = "", *, detail: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause, self.remedy, self.detail = cause, remedy, detail

    def for_lack_of(self, kind: MissingKind, name: str) -> Self:
        """Set what is not installed, and return the error."""
        self.missing = Missing(kind, name)
        return self

    def with_detail(self, detail: str) -> Self:
        """Set the traceback, and return the error."""
        self.detail = detail
        return self

    def __str__(self) -> str:
        return f"{self.cause}\n{self.remedy}" if self.remedy else self.cause


class PluginError(InfernoError):
    """A plugin broke its contract: it does not import, offers a wrong type, or uses a name that is
    taken."""

    exit_code = 5


class UnsupportedError(InfernoError):
    """No installed plugin can do what was requested. Lists the refusals and their reasons."""

    exit_code = 3
    status = 400


class ModelNotFoundError(InfernoError):
    """No source has a model of that name, or the server does not serve it."""

    exit_code = 3
    status = 404
    code = "model_not_found"


class CheckpointError(InfernoError):
    """The checkpoint is damaged, or does not match the architecture."""

    exit_code = 3


class WriteError(InfernoError):
    """A result cannot be written: the disk is full, the folder read-only, or another process writes
    it."""


class OutOfMemoryError(InfernoError):
    """The model or its cache does not fit into the memory limit."""

    exit_code = 4


class SystemLimitError(InfernoError):
    """The system gives a process no more memory, threads or open files. Names the limit to
    raise."""

    exit_code = 4
    status = 503


class OptionError(InfernoError):
    """An option that cannot be honoured, or options that exclude each other."""

    exit_code = 2
    status = 400


class DeviceError(OptionError):
    """A device that this machine does not have, that is not the one of the plan, or that torch or
    its driver cannot use. Lists those that exist."""


CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's code of the error for a prompt that does not fit the context."""


class RequestError(InfernoError):
    """An invalid request. `param` names the field at fault, and `code` may be more specific than
    the class's."""

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


class NotFoundError(InfernoError):
    """No stored response, conversation or item of that id, for this API key."""

    status = 404
    code = "not_found"


class StoreError(InfernoError):
    """Stored responses cannot be read or written: the disk is full, the file damaged or locked."""

    status = 503
    code = "store_unavailable"


class AuthenticationError(InfernoError):
    """No API key, or an unknown one."""

    status = 401
    code = "invalid_api_key"


class PermissionDeniedError(InfernoError):
    """The API key may not do this."""

    status = 403
    code = "permission_denied"


class LimitError(InfernoError):
    """The API key has used up its limit: too many requests at once, or in a minute, or too many
    tokens. `Retry-After` says when there is room again."""

    status = 429
    code = "rate_limit_exceeded"


class ModelUnavailableError(InfernoError):
    """The model cannot be loaded now: other models use the memory, or its last load failed."""

    status = 503
    code = "model_unavailable"


class AsleepError(ModelUnavailableError):
    """The model is asleep: its memory was given back, until somebody wakes it up."""

    code = "model_asleep"
    headers = MappingProxyType({"x-should-retry": "false"})

    def __init__(
        self,
        cause: str = "the model is asleep",
        remedy: str = "Wake it up: POST /v1/wake_up, or `wake_up()` of the LLM.",
        *,
        detail: str = "",
    ) -> None:
        super().__init__(cause, remedy, detail=detail)


class RemoteError(InfernoError):
    """A remote server cannot be reached, refused a request, or broke off its answer."""


class EngineDeadError(InfernoError):
    """The engine process ended with requests pending. A new one is being started: send the request
    again."""

    status = 503
    code = "engine_restarting"


class EngineKilledError(EngineDeadError):
    """A process of the engine was killed from outside, not by what it computed."""


class NonFiniteError(InfernoError):
    """The model's numbers for a request are NaN or infinite: its compute or cache type is too
    narrow for it, or its weights are damaged. Other requests go on."""

    code = "non_finite_logits"


class RequestTimeoutError(InfernoError):
    """The answer took longer than the request or the server allows."""

    status = 504
    code = "request_timeout"


class QueueFullError(InfernoError):
    """More requests are waiting than the server accepts."""

    status = 429
    code = "rate_limit_exceeded"


class ShuttingDownError(InfernoError):
    """The server is stopping: it accepts no new requests, and aborts those still running at the
    deadline."""

    status = 503
    code = "server_shutting_down"


class AddressError(InfernoError):
    """The server cannot listen on the given address."""


class GrammarError(InfernoError):
    """A grammar that cannot be compiled. `path` leads to the part at fault, as in
    "properties.a.pattern"; it is empty if that is not known."""

    exit_code = 2
    status = 400

    def __init__(self, cause: str, remedy: str = "", *, path: str = "", detail: str = "") -> None:
        super().__init__(cause, remedy, detail=detail)
        self.path = path


class GrammarFailedError(GrammarError):
    """A grammar that compiles, but cannot be followed to the end of an answer: it exceeds a limit,
    such as the time for a token. The same request fails again."""

    code = "grammar_failed"
    headers = MappingProxyType({"x-should-retry": "false"})

    def __init__(self, cause: str, remedy: str = "", *, path: str = "", detail: str = "") -> None:
        remedy = remedy or "Simplify the grammar, or let its output be shorter."
        super().__init__(cause, remedy, path=path, detail=detail)


class CheckerBusyError(InfernoError):
    """Grammars cannot be checked now: too many are, or the process that checks them gets no
    processor time. It says nothing of the grammar."""

    status = 503
    code = "grammar_checker_busy"
    headers = MappingProxyType({"Retry-After": "1"})

    def __init__(self, cause: str, remedy: str = "", *, detail: str = "") -> None:
        super().__init__(cause, remedy or "Send the request again.", detail=detail)


class ImagesBusyError(CheckerBusyError):
    """Images cannot be decoded now: too many are, or the process that decodes them gets no
    processor time. It says nothing of the image."""

    code = "image_reader_busy"


class TokenizerBusyError(CheckerBusyError):
    """Text cannot be encoded now by the process that a model's tokenizer has: too many texts are,
    or it gets no processor time. It says nothing of the text."""

    code = "tokenizer_busy"


ERRORS: dict[str, type[InfernoError]] = {
    cls.__name__: cls
    for cls in (
        InfernoError,
        PluginError,
        UnsupportedError,
        ModelNotFoundError,
        CheckpointError,
        OutOfMemoryError,
        SystemLimitError,
        OptionError,
        DeviceError,
        RequestError,
        NotFoundError,
        StoreError,
        AuthenticationError,
        PermissionDeniedError,
        LimitError,
        ModelUnavailableError,
        AsleepError,
        EngineDeadError,
        EngineKilledError,
        NonFiniteError,
        RequestTimeoutError,
        QueueFullError,
        ShuttingDownError,
        AddressError,
        GrammarError,
        GrammarFailedError,
        CheckerBusyError,
    )
}
"""Error classes by name, for errors that cross a process boundary."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once: one that is raised again, as that of ranks that
    have ended, may be among its own causes."""
    seen = set[int]()
    origin: BaseException | None = error
    while origin is not None and id(origin) not in seen:
        seen.add(id(origin))
        yield origin
        origin = origin.__cause__ or origin.__context__
