"""What ranks tell each other: steps, and how they fare, in msgpack over a local socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import evolve, frozen

from inferno.constraints import Drafts
from inferno.core.types import NewSequence, Sampled, Step
from inferno.process.protocol import Failure
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

STEP, DRAFTS, CAPTURE, END = b"S", b"D", b"C", b"E"
"""Kinds of messages to followers. A step with drafts is followed by the drafts that it verifies."""
WORDS = b"W"
"""The kind of a follower's messages."""

Drawn = list[list[int]]
"""The tokens that each sampling slice of a step drew: one, and one more for each accepted draft."""


@frozen
class NextStep:
    """A step, and what the one before it drew."""

    step: Step
    drawn: Drawn


@frozen
class Words:
    """What a follower says: of which rank, and why it ends."""

    rank: int
    failure: Failure | None = None


encode = msgspec.msgpack.Encoder().encode
decode_step: Any = msgspec.msgpack.Decoder(NextStep).decode
decode_drafts: Any = msgspec.msgpack.Decoder(dict[int, list[int]]).decode
decode_count: Any = msgspec.msgpack.Decoder(int).decode
decode_words: Any = msgspec.msgpack.Decoder(Words).decode


def encode_step(step: Step, drawn: Drawn) -> bytes:
    """Encode a step for followers, without what they do not need of its requests: prompts come
    once, and strings, grammars and sampling parameters not at all."""
    new = tuple(evolve(each, request=_stripped(each)) for each in step.new_sequences)
    return encode(NextStep(evolve(step, new_sequences=new), drawn))


def _stripped(new: NewSequence) -> Request:
    request, logprobs = new.request, new.request.params.prompt_logprobs
    return evolve(
        request,
        id="",
        token_ids=request.token_ids if logprobs is not None else (),
        params=SamplingParams(prompt_logprobs=logprobs),
        eos_token_ids=(),
        cache_salt="",
    )


def encode_drafts(drafts: Drafts) -> bytes:
    return encode({row: [int(token_id) for token_id in ids] for row, ids in drafts.items()})


def has_drafts(step: Step) -> bool:
    """Whether drafts may be verified in a step, which followers are then told."""
    return bool(step.drafts) or any(piece.num_drafts for piece in step.slices)


def drawn_by(sampled: Sampled, rows: Sequence[int]) -> Drawn:
    """Return what each of a step's sampling rows drew, in their order."""
    drawn, ids = Drawn(), iter(sampled.token_ids)
    for row in rows:
        accepted = sampled.verified[row].num_accepted if row in sampled.verified else 0
        drawn.append([next(ids) for _ in range(1 + accepted)])
    return drawn
