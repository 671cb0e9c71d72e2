"""What enters and leaves the engine. `Request` never changes; outputs do. A step makes hundreds of
them: as structs of msgspec they are made in a third of the time, and sent in a sixth, because
fields that have their default are left out.

They travel between processes as msgpack: plain numbers, strings, tuples and dicts only.
"""

from __future__ import annotations

import enum
import secrets
from bisect import bisect_left, bisect_right
from typing import Literal, get_args

from attrs import define, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from inferno.errors import ERRORS, InfernoError, RequestError
from inferno.request.linked import LinkedInstance
from inferno.request.sampling_params import SamplingParams
from inferno.request.sessions import SessionHint

Pooling = Literal["last", "first", "mean", "max", "weighted_mean", "mean_sqrt_len"]
"""How a prompt becomes one embedding: a token's hidden state, or of all the mean, the maximum, the
mean weighted by position from 1, or the sum by the square root of their number."""
Poolings = Pooling | tuple[Pooling, ...]
"""One, or several whose vectors follow each other in one."""
Reduction = Poolings | Literal["score"]
"""What a prompt becomes instead of being continued: an embedding, or by `score` the logits of a
classifier's labels."""


PauseMode = Literal["wait", "keep", "abort"]
"""What becomes of running requests when an engine is to do something else: it waits until they have
ended; it keeps them, and they go on afterwards; or it aborts them. vLLM's names."""
FIRST_VERSION = "0"
"""The version of weights that were never updated."""
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)


def pause_mode(mode: str) -> PauseMode:
    """Return one of the modes. Raises RequestError for any other string."""
    for each in PAUSE_MODES:
        if mode == each:
            return each
    raise RequestError(
        f"the mode is {mode[:80]!r}", f"It is one of {', '.join(PAUSE_MODES)}.", param="mode"
    )


def sleep_level(level: int) -> int:
    """Return a level of sleep. Raises RequestError unless it is 1 or 2."""
    if level not in (1, 2):
        raise RequestError(f"the level of sleep is {level}", "It is 1 or 2.", param="level")
    return level


@frozen
class AdapterRef:
    """A low-rank adapter, as requests refer to it."""

    name: str
    """What callers call it."""
    digest: str
    """Of its content (`contracts.AdapterFile.digest`): its identity."""
    path: str
    format: str
    """The adapter format that reads it."""


@frozen
class ImagePart:
    """Positions of a prompt that an encoder's embeddings of an image are at, or of audio."""

    start: int
    count: int
    digest: bytes
    """Of the image as the model sees it: its identity."""
    grid: tuple[int, int, int]
    """`contracts.Grid` of its patches."""
    path: str
    """The file with its pixels, float32, which is there until the request has ended."""
    first: int = 0
    """Which of the image's embeddings is at `start`: an image that has tokens of text between its
    rows is a part for each."""
    medium: str = "image"
    """Or audio: which encoder computes it, of frames of a spectrogram instead of pixels."""

    @property
    def stop(self) -> int:
        return self.start + self.count


def overlapping(images: tuple[ImagePart, ...], begin: int, end: int) -> tuple[ImagePart, ...]:
    """Return those that have any of these positions of a prompt; they are in order."""
    first = bisect_right(images, begin, key=lambda each: each.stop)
    return images[first : bisect_left(images, end, first, key=lambda each: each.start)]


def images_within(images: tuple[ImagePart, ...], begin: int, end: int) -> bytes:
    """Return what tells images apart whose tokens are at these positions of a prompt: nothing where
    there are none."""
    return b"".join(
        each.digest
        + (each.first + max(0, begin - each.start)).to_bytes(4, "big")
        + max(0, each.start - begin).to_bytes(4, "big")
        for each in overlapping(images, begin, end)
    )


def digests_within(images: tuple[ImagePart, ...], begin: int, end: int) -> str:
    """Return the digests of the images at these positions, in hexadecimal, each once, joined
    by commas."""
    digests = (each.digest.hex() for each in overlapping(images, begin, end))
    return ",".join(dict.fromkeys(digests))


@frozen(kw_only=True)
class Request:
    """What a caller wants, in tokens. Never changes."""

    id: str
    token_ids: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    eos_token_ids: tuple[int, ...] = ()
    """The model's own end tokens; empty if the caller ignores them."""
    priority: int = 0
    """Lower runs first; among equals, first come first served."""
    tenant: str = ""
    """Among whom a queue shares the engine (`contracts.Queue`)."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: AdapterRef | None = None
    """What it is computed with besides the model."""
    images: tuple[ImagePart, ...] = ()
    """Where it has images and audio, in order."""
    session: SessionHint | None = None
    """Whose blocks are kept, where anything keeps sessions. It decides nothing that is computed."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The tokens of `params.bad_words`."""
    pooling: Reduction | None = None
    """Return the prompt's embedding, or its labels' logits, instead of generating."""
    second: int = 0
    """Where the second of two texts begins, in tokens; 0: the prompt is one text."""
    engine: int | None = None
    """Which of several engines is to answer, if it can; None: the one with the least work."""
    is_copy: bool = False
    """Whether it is one of several answers to a prompt, and not the first: its prompt is counted
    with that one."""
    unseeded: int = field(factory=lambda: secrets.randbits(64))
    """The seed if `params.seed` is None. It is drawn here and travels with the request, so that a
    restarted engine and every rank draw the same tokens."""

    @property
    def content(self) -> tuple[str, str]:
        """The adapter's digest and the salt: what prompts must share, besides their tokens, to
        share what is cached of them."""
        return ("" if self.adapter is None else self.adapter.digest), self.cache_salt

    @property
    def seed(self) -> int:
        """The seed of its draws."""
        return self.unseeded if self.params.seed is None else self.params.seed

    def limit(self, max_model_len: int) -> int:
        """Return the most tokens that it may have, prompt and output."""
        most = self.params.max_tokens
        return max_model_len if most is None else min(max_model_len, len(self.token_ids) + most)

    def stop_id(self, token_id: int, finish: FinishReason) -> int | None:
        """Return the entry of `stop_token_ids` that ended it; None for the model's own end."""
        by_model = finish is not FinishReason.STOP or token_id in self.eos_token_ids
        return None if by_model else token_id


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@frozen
class Logprobs:
    """One position's log-probabilities (natural), under the model's own distribution."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log-probabilities, best first."""


class EngineOutput(Struct, omit_defaults=True, gc=False):
    """What the engine reports for one request: its next token, or that it ended without one."""

    request_id: str
    token_id: int | None
    """None if the request ended without a further token."""
    finish: FinishReason | None = None
    stop_id: int | None = None
    """The `stop_token_ids` entry that ended the request, None for the model's own end token."""
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    """On a request's first token, if asked for: one entry per prompt token, None for the first."""
    num_cached: int = 0
    """On a request's first token that this engine draws: prompt tokens found in the cache. Another
    instance may have drawn a token before it (`contracts.LinkIndex`)."""
    num_host: int = 0
    """Those of them that a store loaded from host memory."""
    num_disk: int = 0
    """Those that a store fetched from farther away."""
    num_remote: int = 0
    """Those that another instance computed."""
    queue_seconds: float = 0.0
    """With `num_cached`: how long it waited in the queue."""
    num_drafts: int = 0
    """On the first token of a step: draft tokens that the step verified for the request."""
    num_accepted: int = 0
    """How many of them were accepted: tokens that the step returned beyond its first."""
    embedding: tuple[float, ...] | None = None
    """The prompt's embedding or its labels' logits, if asked for."""
    error: str = ""
    """Why the engine failed the request: an error's cause, and on the next line its remedy."""
    error_kind: str = ""
    """The name of the error's class."""
    weight_version: str = ""
    """On a request's first output, and on the first after an update: the weights' version."""

    def __eq__(self, other: object) -> bool:
        """Whether they say the same, however long the requests have waited."""
        if not isinstance(other, EngineOutput):
            return NotImplemented
        return super().__eq__(replace(other, queue_seconds=self.queue_seconds))

    @classmethod
    def failed(cls, request_id: str, error: BaseException) -> EngineOutput:
        """Return the output of a request that ends with an error."""
        kind = type(error).__name__
        return cls(request_id, None, FinishReason.ERROR, error=str(error), error_kind=kind)

    def failure(self) -> InfernoError:
        """Return the error, in this process."""
        if self.error_kind not in ERRORS:
            cause = self.error or "the engine failed on this request"
            return InfernoError(cause, "See the engine's log.")
        cause, _, remedy = self.error.partition("\n")
        return ERRORS[self.error_kind](cause, remedy)


STEP_SIZES = (1, 8, *(2**i for i in range(4, 15)))
"""The limits by which steps are counted, in tokens: those of vLLM's histogram."""


@define
class EngineStats:
    """The engine's gauges now, and its counters since it started."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    """Share of the cache's blocks that sequences hold, 0 to 1, in the group that is fullest."""
    steps: int = 0
    step_tokens: int = 0
    """Tokens that steps computed, drafts that were not accepted left out."""
    step_sizes: list[int] = field(factory=lambda: [0] * (len(STEP_SIZES) + 1))
    """How many steps computed at most as many tokens as each of `STEP_SIZES`, and more than the one
    before; at last, how many more than any."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the cache instead of computed."""
    generated_tokens: int = 0
    draft_tokens: int = 0
    """Draft tokens that steps verified."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
    store_host_bytes: int = 0
    """Blocks that a store holds in host memory."""
    store_folder_bytes: int = 0
    """Its files."""
    store_saved_bytes: int = 0
    """Copied out of the cache to a store."""
    store_loaded_bytes: int = 0
    """Copied into the cache from a store."""
    store_lost_parts: int = 0
    """Parts of stored blocks that were missing or damaged when they were wanted."""
    store_skipped_tokens: int = 0
    """Tokens that a store had, and that were computed because that is faster than loading."""
    event_batches: int = 0
    """Batches of events of the cache that were published."""
    dropped_event_batches: int = 0
    """Those that were not, because too many waited."""
    linked_prompts: int = 0
    """Prompts sent to another instance, or computed for one."""
    linked_bytes: int = 0
    """Bytes of blocks that came from another instance, or went to one."""
    fallbacks: dict[str, int] = field(factory=dict)
    """By cause, prompts that were to be sent out and were computed here."""
    instances: dict[str, LinkedInstance] = field(factory=dict)
    """By their addresses, those that compute prompts for this one."""
    sessions: int = 0
    """Sessions whose blocks are kept."""
    session_blocks: int = 0
    """Blocks that are pinned for them, counted once for each session."""
    non_finite: int = 0
    """Requests that ended because the model's numbers were not finite."""
    prompt_seconds: float = 0.0
    """What a token of a prompt takes, as earlier steps have taught; 0 while it is not known."""
    row_seconds: float = 0.0
    """What the next token of each running request takes, beside the others."""

    def count_prompt(self, num_tokens: int, num_found: int, *, again: bool) -> None:
        """Count an admission with the tokens found in the cache: `again` after a preemption, or for
        another answer to the same prompt."""
        self.prefix_queries += num_tokens
        self.prefix_hits += num_found
        if not again:
            self.prompt_tokens += num_tokens
            self.cached_tokens += num_found

    def count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        self.draft_tokens += num_drafts
        self.accepted_tokens += num_accepted

    def count_step(self, num_tokens: int) -> None:
        self.steps += 1
        self.step_tokens += num_tokens
        self.step_sizes[bisect_left(STEP_SIZES, num_tokens)] += 1
