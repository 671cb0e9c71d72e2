"""Turns the engine's tokens into text: incrementally (`TextDelta`), or whole in vLLM's classes
(`RequestOutput`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from attrs import field, frozen

from inferno.errors import InfernoError
from inferno.request.requests import EngineOutput, FinishReason, Logprobs, Request
from inferno.request.sampling_params import SamplingParams
from inferno.text import TextStream, Tokenizer


@frozen(kw_only=True)
class TextDelta:
    """What one output gained since its last delta."""

    index: int
    """Which of the request's outputs."""
    text: str = ""
    """Whole characters; empty while a character is incomplete or a stop string may have begun."""
    token_ids: tuple[int, ...] = ()
    """All new tokens, including a stop token, whether or not their text is certain yet."""
    logprobs: tuple[Logprobs, ...] | None = None
    """One per token id, if asked for."""
    finish_reason: str | None = None
    """"stop", "length" or "abort" on the output's last delta."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for the model's own end."""
    num_cached: int = 0
    """Prompt tokens found in the cache."""
    num_host: int = 0
    """Those of them that a store loaded from host memory."""
    num_disk: int = 0
    """Those that a store loaded from disk."""
    num_remote: int = 0
    """Those that another instance computed."""
    queue_seconds: float = field(default=0.0, eq=False)
    """How long the request waited in the engine's queue."""
    num_drafts: int = 0
    """Draft tokens verified for it."""
    num_accepted: int = 0
    """How many of them were accepted."""
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    """Set once, on the first delta of output 0, if asked for."""
    embedding: tuple[float, ...] | None = None
    """The prompt's embedding, if asked for: as pooled, neither cut nor normalized."""
    weight_version: str = ""
    """The version of the weights that computed its last token."""


@frozen
class Logprob:
    """A token's log-probability (natural) at one position."""

    logprob: float
    rank: int | None = None
    """1 for the most likely token; None for one of `logprob_token_ids` that was not drawn."""
    decoded_token: str | None = None


@frozen(kw_only=True)
class CompletionOutput:
    """One finished output."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    """Per position: the sampled token first, then the most likely ones."""
    finish_reason: str | None = None
    """"stop", "length" or "abort"."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for the model's own end."""


@frozen
class RequestMetrics:
    """Timestamps, in seconds since 1970."""

    arrival_time: float
    first_token_time: float
    finished_time: float


@frozen(kw_only=True)
class RequestOutput:
    """A prompt and its `n` outputs."""

    request_id: str
    prompt: str | None
    """None when token ids were given."""
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """Per prompt token, None for the first."""
    outputs: list[CompletionOutput]
    finished: bool = True
    num_cached_tokens: int = 0
    """Prompt tokens found in the cache."""
    num_draft_tokens: int = 0
    """Draft tokens verified by speculative decoding."""
    num_accepted_tokens: int = 0
    """How many of them were accepted."""
    weight_version: str = ""
    """The version of the weights that computed its last token. Those before it have the same one,
    unless the request was kept over an update (`weight_versions`)."""
    weight_versions: tuple[tuple[tuple[int, str], ...], ...] = ()
    """For each output, the versions that computed its tokens, each after the index of its first
    one."""
    metrics: RequestMetrics


class OutputBuilder:
    """Builds the output of one engine request: tokens in, deltas out. Only here are tokens
    detokenized."""

    def __init__(
        self, request: Request, index: int, tokenizer: Tokenizer | None, kept: object = None
    ) -> None:
        """`kept` is what the request needs as long as it runs: its images' files."""
        params = request.params
        self.request, self.index, self.kept = request, index, kept
        self.ended = False
        """Whether the engine has sent the request's last token."""
        self.error: InfernoError | None = None
        """Why the engine failed the request."""
        self.embedding: tuple[float, ...] | None = None
        """The prompt's embedding, if asked for."""
        self._text = None if tokenizer is None else _text_stream(tokenizer, params)
        self.arrived = time.time()
        self.first_token_at = 0.0
        self.finished_at = 0.0
        self._keeps_end = params.include_stop_str_in_output
        self._finish: str | None = None
        self._stop_reason: str | int | None = None
        self._reported = False
        self._num_cached = self._num_drafts = self._num_accepted = 0
        self._num_host = self._num_disk = self._num_remote = 0
        self._queue_seconds = 0.0
        self.versions: list[tuple[int, str]] = []
        """The versions of the weights that computed its tokens, each after the index of its first
        one."""
        self._count = 0
        self._prompt_logprobs: tuple[Logprobs | None, ...] | None = None
        self._pieces: list[str] = []
        self._unread: list[int] = []
        """Tokens that are not decoded yet: many at once take a fraction of the time."""
        self._ids: list[int] = []
        self._logprobs: list[Logprobs] = []

    @property
    def done(self) -> bool:
        """Whether the output is complete: ended by the engine or by a stop string."""
        return self._finish is not None or self.error is not None

    def push(self, token: EngineOutput) -> None:
        """Add the request's next token. Tokens past the end are dropped: the engine may run
        ahead."""
        if token.finish is not None:
            self.ended = True
        if self.done:
            return
        if token.finish is FinishReason.ERROR:
            self.error = token.failure()
            return
        if not self.first_token_at:
            self._begin(token)
        elif token.queue_seconds:  # another instance has drawn the first
            self._count_cached(token)
        if token.num_drafts:
            self._num_drafts += token.num_drafts
            self._num_accepted += token.num_accepted
        if token.weight_version:
            self.versions.append((self._count, token.weight_version))
        if token.token_id is not None:
            self._count += 1
            self._ids.append(token.token_id)
            if token.logprobs is not None:
                self._logprobs.append(token.logprobs)
        self._add_text(token)
        if self._finish is not None:
            self.finished_at = time.time()

    def _begin(self, token: EngineOutput) -> None:
        """Note what only a request's first output has."""
        self.first_token_at = time.time()
        self._count_cached(token)
        self.embedding, self._prompt_logprobs = token.embedding, token.prompt_logprobs

    def _count_cached(self, token: EngineOutput) -> None:
        self._num_cached, self._num_host = token.num_cached, token.num_host
        self._num_disk, self._num_remote = token.num_disk, token.num_remote
        self._queue_seconds = token.queue_seconds

    def _add_text(self, token: EngineOutput) -> None:
        finish = token.finish
        if self._text is not None:
            # A stop token is not part of the text, even if special tokens are shown.
            if token.token_id is not None and (finish is not FinishReason.STOP or self._keeps_end):
                self._unread.append(token.token_id)
            if finish is not None or self._text.watches:
                self._read(self._text)
            if finish is not None:
                self._pieces.append(self._text.finish())
            if self._text.stopped is not None:
                self._finish, self._stop_reason = "stop", self._text.stopped
                return
        if finish is not None:
            self._finish, self._stop_reason = finish.value, token.stop_id

    def _read(self, text: TextStream) -> None:
        """Decode the tokens that are not decoded yet."""
        unread, self._unread = self._unread, []
        self._pieces.append(text.feed(unread))

    def take(self) -> TextDelta | None:
        """Return what is new since the last call, or None."""
        if not self._ids and (self._finish is None or self._reported):
            return None
        if self._unread and self._text is not None:
            self._read(self._text)
        delta = TextDelta(
            index=self.index,
            text="".join(self._pieces),
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs) if self.request.params.logprobs is not None else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
            num_cached=self._num_cached,
            num_host=self._num_host,
            num_disk=self._num_disk,
            num_remote=self._num_remote,
            queue_seconds=self._queue_seconds,
            num_drafts=self._num_drafts,
            num_accepted=self._num_accepted,
            prompt_logprobs=self._prompt_logprobs,
            embedding=self.embedding,
            weight_version=self.versions[-1][1] if self.versions else "",
        )
        self._reported = self._finish is not None
        self._pieces, self._ids, self._logprobs, self._prompt_logprobs = [], [], [], None
        self._num_drafts = self._num_accepted = 0
        return delta


def _text_stream(tokenizer: Tokenizer, params: SamplingParams) -> TextStream:
    return TextStream(
        tokenizer,
        stop=params.stop,
        min_tokens=params.min_tokens,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        continues=True,
    )


@frozen
class ParentRequest:
    """One call: a prompt and its `n` outputs, each a separate engine request."""

    id: str
    prompt: str | None
    """None when token ids were given."""
    builders: tuple[OutputBuilder, ...]
    tokenizer: Tokenizer | None

    def output(self, deltas: Iterable[TextDelta]) -> RequestOutput:
        """Combine all of its deltas into one result."""
        return collect(self.id, self.prompt, self.builders, deltas, self.tokenizer)


def collect(
    request_id: str,
    prompt: str | None,
    builders: Sequence[OutputBuilder],
    deltas: Iterable[TextDelta],
    tokenizer: Tokenizer | None,
) -> RequestOutput:
    """Combine all deltas of a request into one result."""
    by_index: dict[int, list[TextDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    every = [d for part in by_index.values() for d in part]
    scored = next((d.prompt_logprobs for d in every if d.prompt_logprobs is not None), None)
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=builders[0].request.token_ids,
        prompt_logprobs=None
        if scored is None
        else [None if s is None else _by_token(s, tokenizer) for s in scored],
        outputs=[
            _completion(by_index[i], tokenizer, builders[0].request.params)
            for i in sorted(by_index)
        ],
        num_cached_tokens=max((d.num_cached for d in by_index.get(0, ())), default=0),
        num_draft_tokens=sum(d.num_drafts for d in every),
        num_accepted_tokens=sum(d.num_accepted for d in every),
        weight_version=next((b.versions[-1][1] for b in builders if b.versions), ""),
        weight_versions=tuple(tuple(b.versions) for b in builders),
        metrics=RequestMetrics(
            builders[0].arrived,
            min(b.first_token_at for b in builders),
            max(b.finished_at for b in builders),
        ),
    )


def _completion(
    deltas: Sequence[TextDelta], tokenizer: Tokenizer | None, params: SamplingParams
) -> CompletionOutput:
    scored = None if deltas[0].logprobs is None else [p for d in deltas for p in d.logprobs or ()]
    ranked = not params.logprob_token_ids  # the engine scores these instead of the most likely
    return CompletionOutput(
        index=deltas[0].index,
        text="".join(d.text for d in deltas),
        token_ids=tuple(i for d in deltas for i in d.token_ids),
        cumulative_logprob=None if scored is None else sum(p.logprob for p in scored),
        logprobs=None if scored is None else [_by_token(p, tokenizer, ranked) for p in scored],
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
    )


def _by_token(
    position: Logprobs, tokenizer: Tokenizer | None, ranked: bool = True
) -> dict[int, Logprob]:
    def entry(token_id: int, logprob: float, rank: int | None) -> Logprob:
        return Logprob(logprob, rank, tokenizer.token_text(token_id) if tokenizer else None)

    drawn = {position.token_id: entry(position.token_id, position.logprob, position.rank)}
    top = {
        i: entry(i, logprob, rank if ranked else None)
        for rank, (i, logprob) in enumerate(position.top, start=1)
    }
    return drawn | {i: value for i, value in top.items() if i not in drawn}
