"""What a server is told: one value, made by the command line, a test or an app that mounts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from attrs import field, frozen

from inferno.images.limits import DEFAULT_LIMITS, ImageLimits
from inferno.server.access.keys import Keys
from inferno.server.generate.pipeline import PING_SECONDS
from inferno.server.observe.prompt_history import LIMIT as PROMPT_HISTORY
from inferno.server.observe.record import Record
from inferno.server.responses.store import Store

MAX_BODY_BYTES = 64 * 2**20
MAX_WAITING = 1024
OPEN_PATHS = ("/health", "/ping", "/livez", "/readyz", "/startupz")
"""Routes that need no key."""


def _keys(given: Sequence[str] | Keys) -> Keys:
    return given if isinstance(given, Keys) else Keys(given)


@frozen(kw_only=True)
class ServerOptions:
    """How `create_app` serves its models."""

    own_llm: bool = True
    """Whether the app's lifespan starts and closes the model that it was given."""
    served_names: Sequence[str] = ()
    """Names of the only model for clients, by default its id."""
    budgets: Mapping[str, int] | None = None
    """Bytes that all models may take, by device: see `Models`."""
    max_loaded: int | None = None
    """The most models that are loaded at once."""
    disable: Sequence[str] = ()
    """Distributions whose endpoints are not served, as for a model's plugins."""
    only: Sequence[str] = ()
    """If given, all distributions but these are disabled."""

    api_keys: Keys = field(factory=Keys, converter=_keys)
    """Keys, or their texts: none, and every request may pass."""
    open_paths: Sequence[str] = OPEN_PATHS
    """Paths that need no key."""
    key_metrics: bool = False
    """Whether /metrics shows the usage of each key, by name."""
    allowed_hosts: Sequence[str] | None = None
    """Names by which clients may call the server; `*` is any. None: any for an app, and this
    machine's for `run_server` on a loopback address."""
    cors_origins: Sequence[str] = ()
    """Web pages that may use it besides its own; `*` is any."""

    strict_params: bool = False
    """Whether unknown fields of a body are refused rather than named in the response."""
    reasoning: Literal["both", "reasoning", "reasoning_content"] = "both"
    """The field of a message for reasoning: clients disagree on its name."""
    max_body_bytes: int = MAX_BODY_BYTES
    """A larger body gets a 413."""
    images: ImageLimits = DEFAULT_LIMITS
    """What is accepted of images, by models that see them."""
    max_waiting: int | None = MAX_WAITING
    """Outputs that may wait beyond those that run; more get a 429."""
    max_wait: float | None = None
    """Seconds that a request may be expected to wait for its first token; else it gets a 429."""
    request_timeout: float | None = None
    """Seconds that an answer may take."""
    ping_seconds: float = PING_SECONDS
    """Seconds without a frame after which a stream sends a comment."""

    page: bool = True
    """Whether the chat page is served at `/`. It needs no key."""
    store: Store = field(factory=Store)
    """Keeps responses and conversations, by default in memory. The app closes it."""
    prompt_history: int = PROMPT_HISTORY
    """Number of requests of each model that /v1/debug/cache knows."""
    on_end: Callable[[Record], object] = lambda record: None
    """Called with the record of each request once its response has been sent."""
    log_prompts: bool = False
    """Whether records keep prompts."""
