"""What ranks tell each other: steps, and how they fare, in msgpack over a socket. Machines tell
each other what they have and which ranks they are, and give signs of life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from attrs import evolve, field, frozen

from inferno.constraints import Drafts
from inferno.core.types import NewSequence, Sampled, Step
from inferno.plan import AdapterPlaces
from inferno.process.protocol import Failure
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams

STEP, DRAFTS, CAPTURE, END = b"S", b"D", b"C", b"E"
"""Kinds of messages to followers. A step with drafts is followed by the drafts that it verifies."""
PEEKED = b"P"
"""The kind of what rank 0 draws while all ranks of a stage propose drafts."""
COMPUTE, DREW = b"N", b"n"
"""Kinds of messages to the other ranks of the last stage where these propose drafts too: to compute
the first step in flight now, and what it drew (`Drawn`). Other stages have no use for them."""
PIXELS = b"I"
"""The kind of what ranks of other machines are sent of an image, before a step needs it
(`Pixels`)."""
CHANGE, CHANGED = b"H", b"h"
"""Kinds of messages between two steps: what followers are to do with their weights (`Change`), and
how each has fared (`Words`)."""
WORDS = b"W"
"""The kind of a follower's other messages."""
STORE, FETCHED = b"K", b"k"
"""What followers are to do with the parts of blocks that they store (`StoreCall`), and how a fetch
of them has ended (`Fetched`)."""
ASKED = b"q"
"""The kind of what another instance has asked a follower for (`Asked`)."""
NOTHING = b""
"""The kind of no message: something else than one has come."""
MEET = b"M"
"""What ranks find each other by, to and from the first one (`meeting`)."""
ARRIVAL, RANK = b"A", b"R"
"""The first message over TCP: of a machine that joins, or of one of its ranks."""
REFUSED, WELCOME, DECLINED, STARTED, BEAT, ENDED = b"r", b"w", b"d", b"s", b"b", b"e"
"""Kinds of messages between machines: the two answers to one that arrives, and its two answers;
then signs of life both ways, and how its ranks end."""

PEACE = "ended with code 0"
"""How a rank ends that rank 0 has told to."""
Drawn = list[list[int]]
"""The tokens that each sampling slice of a step drew: one, and one more for each accepted draft."""


@frozen
class NextStep:
    """A step, and what those drew that have ended since the one before it was sent, in their
    order."""

    step: Step
    drawn: list[Drawn]


@frozen(kw_only=True)
class Change:
    """What a follower does with its weights, as rank 0 does (`weights.resident`)."""

    action: Literal[
        "check", "forget", "apply", "release", "restore", "run", "open_store", "close_store"
    ]
    path: str = ""
    """Of weights that are checked, to be applied or forgotten next."""
    temporary: bool = False
    """Whether that file loses its name once all have opened it."""
    load: bool = True
    level: int = 1
    hashes: list[str] | None = None
    """Of the model's files, by which the blocks of a store are told from others'."""


@frozen
class StoreCall:
    """What a follower does with its store as rank 0 does (`contracts.StoreIndex`)."""

    action: Literal["fetch", "release", "touch", "pin", "drop", "ask", "begin", "end"]
    """The last three are of stores that link instances (`contracts.LinkIndex`)."""
    owner: str = ""
    """Also of a prompt that begins or ends, its id."""
    keys: list[bytes] = field(factory=list)
    groups: list[int] = field(factory=list)
    """Of each key, the parts to fetch, or to ask for."""
    number: int = 0
    """By which the answer to a fetch is known."""
    until: float = 0.0
    name: bytes = b""
    """Under which all ranks ask for a prompt."""
    instance: int = 0
    """Where they do (`LinkedPrompt.instance`)."""
    error: str = ""
    """Why a prompt could not be computed."""
    linked: bool = False
    """Of two stores, whether it is for the link and not for the tiers."""


@frozen
class Fetched:
    """A follower's answer to a fetch."""

    number: int
    lost: list[tuple[int, int, int]]
    """Runs of blocks, by the index of the first one in the call, and their number, with the groups
    whose parts are not there, or not whole."""


@frozen
class Asked:
    """What another instance has asked a follower for: prompts by their ids, and those of which it
    wants no more."""

    rank: int
    prompts: list[str]
    unwanted: list[str]


OF_STORES: Mapping[bytes, type[Fetched | Asked]] = {FETCHED: Fetched, ASKED: Asked}
"""What followers say of their stores, by kind."""


@frozen
class Pixels:
    """Some bytes of an image's pixels, or of audio's frames: those after what was sent before."""

    digest: bytes
    data: bytes


@frozen
class Words:
    """What a follower says: of which rank, and why it ends."""

    rank: int
    failure: Failure | None = None
    places: AdapterPlaces | None = None
    """Where its pipeline stage has room for adapters, once it has loaded its part."""
    sees: bool = False
    """Whether it computes images or audio, once it has loaded its part."""


@frozen(kw_only=True)
class Arrival:
    """What a machine says that joins."""

    name: str
    versions: dict[str, str]
    """What it computes with (`identity.versions`)."""
    rank: int | None = None
    """Which rank it is, if its launcher has said so. None: those of a whole machine."""


@frozen(kw_only=True)
class Welcome:
    """What a machine that joins is given."""

    plan: str
    """As JSON."""
    ranks: list[int]
    """Those that it is to start."""
    group: str
    """By which its ranks say whom they look for: those of an earlier group find nobody."""
    model: dict[str, str]
    """What its copy of the model must have (`identity.model_identity`)."""
    folder: str = ""
    """Where the ranks of one machine meet; empty: they are on several."""


@frozen
class Refused:
    """Why a machine cannot join."""

    failure: Failure
    again: bool = False
    """Whether that may change, so that it may ask again."""


@frozen
class ArrivingRank:
    """What a rank says that joins."""

    group: str
    rank: int


@frozen
class Ended:
    """How a machine's rank has ended, as a sentence without a subject."""

    rank: int
    how: str


encode = msgspec.msgpack.Encoder().encode
decode_step: Any = msgspec.msgpack.Decoder(NextStep).decode
decode_drafts: Any = msgspec.msgpack.Decoder(dict[int, list[int]]).decode
decode_peeked: Any = msgspec.msgpack.Decoder(list[int]).decode
decode_drawn: Any = msgspec.msgpack.Decoder(Drawn).decode
decode_count: Any = msgspec.msgpack.Decoder(int).decode
decode_change: Any = msgspec.msgpack.Decoder(Change).decode
decode_store_call: Any = msgspec.msgpack.Decoder(StoreCall).decode
_of_stores: Any = {kind: msgspec.msgpack.Decoder(type_) for kind, type_ in OF_STORES.items()}
decode_pixels: Any = msgspec.msgpack.Decoder(Pixels).decode
decode_words: Any = msgspec.msgpack.Decoder(Words).decode
decode_meet: Any = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
decode_arrival: Any = msgspec.msgpack.Decoder(Arrival).decode
decode_welcome: Any = msgspec.msgpack.Decoder(Welcome).decode
decode_refused: Any = msgspec.msgpack.Decoder(Refused).decode
decode_failure: Any = msgspec.msgpack.Decoder(Failure).decode
decode_rank: Any = msgspec.msgpack.Decoder(ArrivingRank).decode
decode_ended: Any = msgspec.msgpack.Decoder(Ended).decode


def encode_step(step: Step, drawn: list[Drawn]) -> bytes:
    """Encode a step for followers, without what they do not need of its requests: prompts come
    once, and strings, grammars and sampling parameters not at all."""
    new = tuple(evolve(each, request=_stripped(each)) for each in step.new_sequences)
    return encode(NextStep(evolve(step, new_sequences=new), drawn))


def without_results(step: Step) -> Step:
    """Return a step for a rank without an output head: nothing of its prompts is read there."""
    plain = SamplingParams()
    new = (
        evolve(each, request=evolve(each.request, params=plain, pooling=None))
        for each in step.new_sequences
    )
    return evolve(step, new_sequences=tuple(new))


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


def decode_told(kind: bytes, body: bytes) -> Fetched | Asked:
    """Decode what a follower says of its store."""
    told: Fetched | Asked = _of_stores[kind].decode(body)
    return told


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
