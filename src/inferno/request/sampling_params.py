"""`SamplingParams`: how one request's tokens are sampled. Each parameter is declared once.

Other modules know a field by its metadata: the request bodies, their table of support, the command
line's options and the reference pages are derived from `parameters()`. A new parameter is one new
field here, and its code in the sampler.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

import attrs
from attrs import field, frozen

from inferno.errors import RequestError
from inferno.request.processor_calls import ProcessorCall, processor_calls
from inferno.request.structured_outputs import GrammarSpec, ReasoningMarkers, grammar_spec

MAX_LOGPROBS = 20
"""Maximum number of alternatives at each position, as in OpenAI's API."""

MAX_STOPS = 256
"""Maximum number of stop strings, and of stop token ids."""
MAX_STOP_CHARACTERS = 10_000
"""Maximum of the stop strings' lengths together."""
INTERACTIVE = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""Values for a person at a terminal or at the page, as in llama.cpp and Ollama, if the checkpoint
says nothing of how to sample."""


@frozen
class _Between:
    """Validator: a number in [low, high], or None where the field allows it. NaN is out of
    range."""

    low: float
    high: float = float("inf")

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        if isinstance(value, str):
            raise RequestError(
                f"{attribute.name} is {value!r}", "It must be a number.", param=attribute.name
            )
        if not self.low <= value <= self.high:
            raise RequestError(
                f"{attribute.name} is {value}", f"It must be {self}.", param=attribute.name
            )

    def __str__(self) -> str:
        if self.high == float("inf"):
            return f"at least {self.low:g}"
        return f"between {self.low:g} and {self.high:g}"


def _described(
    help: str,
    *,
    in_body: bool = True,
    body_note: str = "",
    flag: bool = True,
    short_flag: str = "",
    in_generation_config: bool = False,
    flag_default: str = "",
) -> dict[str, Any]:
    """Return a field's metadata: the keyword arguments of its `Parameter`."""
    return {
        "help": help,
        "in_body": in_body,
        "body_note": body_note,
        "flag": flag,
        "short_flag": short_flag,
        "in_generation_config": in_generation_config,
        "flag_default": flag_default or ("the model's" if in_generation_config else ""),
    }


def _strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Convert one string or several, as in OpenAI's API, to a tuple."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def _biases(value: Mapping[Any, Any] | None) -> dict[int, float]:
    """Convert the keys, which are strings of digits in JSON, to token ids. Raises RequestError."""
    biases = {}
    for key, bias in (value or {}).items():
        try:
            biases[operator.index(int(key) if isinstance(key, str) else key)] = float(bias)
        except (TypeError, ValueError):
            raise RequestError(
                f"logit_bias has {key!r}: {bias!r}",
                "Give numbers by token ids: integers, or strings of digits.",
                param="logit_bias",
            ) from None
    return biases


def _ids(value: Iterable[int] | None) -> tuple[int, ...]:
    return tuple(value or ())


@frozen(kw_only=True)
class SamplingParams:
    """How one request's tokens are sampled, independent of the other requests in the batch.
    `max_tokens=None` generates until the context is full.

    Order: `logits_processors`, penalties and `logit_bias`, then what excludes tokens (`bad_words`,
    `allowed_token_ids`, `min_tokens`, `structured_outputs`), then `temperature`, then `top_k`,
    `top_p`, `min_p`.
    """

    max_tokens: int | None = field(
        default=16,
        validator=_Between(1),
        metadata=_described(
            "Maximum number of tokens to generate.",
            flag_default="the model's, else until the answer or the context ends",
        ),
    )
    min_tokens: int = field(
        default=0,
        validator=_Between(0),
        metadata=_described("Minimum number of tokens to generate."),
    )
    temperature: float = field(
        default=1.0,
        validator=_Between(0),
        metadata=_described(
            "0 takes the most likely token (greedy).", short_flag="-t", in_generation_config=True
        ),
    )
    top_k: int = field(
        default=0,
        validator=_Between(-1),
        metadata=_described(
            "Keep the k most likely tokens; 0 or -1 keeps all.", in_generation_config=True
        ),
    )
    top_p: float = field(
        default=1.0,
        validator=_Between(0, 1),
        metadata=_described(
            "Keep the smallest set of most likely tokens whose probabilities sum to at least this.",
            in_generation_config=True,
        ),
    )
    min_p: float = field(
        default=0.0,
        validator=_Between(0, 1),
        metadata=_described(
            "Keep tokens with at least this fraction of the most likely token's probability.",
            in_generation_config=True,
        ),
    )
    presence_penalty: float = field(
        default=0.0,
        validator=_Between(-2, 2),
        metadata=_described(
            "Subtracted from the logit of each token that the output already contains (OpenAI)."
        ),
    )
    frequency_penalty: float = field(
        default=0.0,
        validator=_Between(-2, 2),
        metadata=_described(
            "Subtracted from a token's logit once for each time the output contains it (OpenAI)."
        ),
    )
    repetition_penalty: float = field(
        default=1.0,
        validator=_Between(1e-3, 1e3),
        metadata=_described(
            "Divides the positive and multiplies the negative logits of tokens in the prompt or "
            "the output (CTRL, arXiv:1909.05858); 1 has no effect.",
            in_generation_config=True,
        ),
    )
    repeat_last_n: int = field(
        default=-1,
        validator=_Between(-1),
        metadata=_described(
            "Number of most recent tokens, prompt included, that `repetition_penalty` covers: -1 "
            "for all, 0 for none."
        ),
    )
    logit_bias: Mapping[int, float] = field(
        factory=dict,
        converter=_biases,
        metadata=_described(
            "Added to the logits of these token ids; -100 or less bans a token.",
            body_note="Biases from -100 to 100, by token id.",
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=_described("Makes sampling reproducible, whatever else is in the batch."),
    )
    # `llm` searches the text for stop strings; the engine sees token ids only.
    stop: tuple[str, ...] = field(
        default=(),
        converter=_strings,
        metadata=_described("Strings that end the output.", body_note="A string or a list."),
    )
    stop_token_ids: tuple[int, ...] = field(
        default=(), converter=_ids, metadata=_described("Token ids that end the output.")
    )
    ignore_eos: bool = field(
        default=False, metadata=_described("Keep generating past the model's end-of-text tokens.")
    )
    n: int = field(
        default=1,
        validator=_Between(1, 128),
        metadata=_described(
            "Number of independent outputs; with a seed, output i uses seed + i.",
            flag=False,
        ),
    )
    logprobs: int | None = field(
        default=None,
        validator=_Between(0, MAX_LOGPROBS),
        metadata=_described(
            "Return the log-probability of each token and of this many of the most likely tokens, "
            "before penalties, bias and temperature.",
            in_body=False,  # each endpoint has its own form of it
            flag=False,
        ),
    )
    logprob_token_ids: tuple[int, ...] = field(
        default=(),
        converter=_ids,
        metadata=_described(
            "Return the log-probabilities of these tokens instead of those of the most likely "
            "ones; needs `logprobs`.",
            flag=False,
        ),
    )
    prompt_logprobs: int | None = field(
        default=None,
        validator=_Between(0, MAX_LOGPROBS),
        metadata=_described(
            "Return the log-probability of each prompt token and of this many of the most likely "
            "tokens at its position.",
            body_note="Not with `stream`.",
            flag=False,
        ),
    )
    include_stop_str_in_output: bool = field(
        default=False, metadata=_described("Keep the stop string in the output.", flag=False)
    )
    skip_special_tokens: bool = field(
        default=True,
        metadata=_described(
            "Leave special tokens out of the output.", body_note="Default: true.", flag=False
        ),
    )

    structured_outputs: GrammarSpec | None = field(
        default=None,
        converter=grammar_spec,
        metadata=_described(
            "What the output must match: one of `json` (a JSON schema), `regex`, `choice`, "
            "`grammar` (Lark or GBNF), `json_object` and `structural_tag`; for JSON also "
            "`disable_any_whitespace` and `whitespace_pattern`.",
            flag=False,
        ),
    )
    thinking_token_budget: int | None = field(
        default=None,
        validator=_Between(0),
        metadata=_described("End the reasoning of a chat after this many tokens.", flag=False),
    )
    reasoning: ReasoningMarkers | None = field(
        default=None, metadata=_described("Its markers. Chats set them.", in_body=False, flag=False)
    )
    allowed_token_ids: tuple[int, ...] | None = field(
        default=None,
        converter=attrs.converters.optional(_ids),
        metadata=_described("Draw these token ids only.", flag=False),
    )
    bad_words: tuple[str, ...] = field(
        default=(),
        converter=_strings,
        metadata=_described(
            "Words that the output must not contain: the last token of each is never drawn after "
            "the others.",
            flag=False,
        ),
    )
    truncate_prompt_tokens: int | None = field(
        default=None,
        validator=_Between(-1),
        metadata=_described(
            "Keep this many of the prompt's last tokens; -1 keeps as many as leave room for "
            "`max_tokens`.",
            flag=False,
        ),
    )
    logits_processors: tuple[ProcessorCall, ...] = field(
        default=(),
        converter=processor_calls,
        metadata=_described(
            'Installed logits processors to apply, in order: `[{"name": ..., "args": {...}}]`.',
            flag=False,
        ),
    )

    def __attrs_post_init__(self) -> None:
        if self.allowed_token_ids == ():
            raise RequestError(
                "allowed_token_ids is empty",
                "Name a token, or leave it out.",
                param="allowed_token_ids",
            )
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens is 0",
                "Keep at least one token, or give -1.",
                param="truncate_prompt_tokens",
            )
        if any(not word for word in self.bad_words):
            raise RequestError(
                "bad_words contains an empty string", "Remove it.", param="bad_words"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, but max_tokens is only {self.max_tokens}",
                "Lower min_tokens, or raise max_tokens.",
                param="min_tokens",
            )
        if len(self.stop) > MAX_STOPS or sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"stop has {len(self.stop)} strings of {sum(map(len, self.stop))} characters",
                f"Give at most {MAX_STOPS} strings of {MAX_STOP_CHARACTERS} characters together.",
                param="stop",
            )
        if len(self.stop_token_ids) > MAX_STOPS:
            raise RequestError(
                f"stop_token_ids has {len(self.stop_token_ids)} ids",
                f"Give at most {MAX_STOPS}.",
                param="stop_token_ids",
            )
        if any(not s for s in self.stop):
            raise RequestError("stop contains an empty string", "Remove it.", param="stop")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@frozen(kw_only=True)
class Parameter:
    """One sampling parameter, for the modules that offer it to callers. Its name is the same
    everywhere; a flag has dashes."""

    name: str
    type: Any
    """Its Python type, without None: JSON and the command line derive theirs from it."""
    limits: str
    """Its range in words, or an empty string."""
    bounds: tuple[float, float] | None
    """The same as numbers, both included, or None; the second may be infinite."""
    help: str
    in_body: bool
    """Whether request bodies have it, in this form, at every endpoint that generates."""
    body_note: str
    """A note on its JSON form."""
    flag: bool
    """Whether the command line has an option for it."""
    short_flag: str
    flag_default: str
    """The default, as the command line's help shows it."""
    in_generation_config: bool
    """Whether a checkpoint's generation_config.json may set it, by the same name."""


def parameters(cls: type[SamplingParams] = SamplingParams) -> tuple[Parameter, ...]:
    """Return the parameters of `cls`, in order."""
    types = get_type_hints(cls)
    return tuple(
        Parameter(
            name=each.name,
            type=_without_none(types[each.name]),
            limits=str(each.validator) if isinstance(each.validator, _Between) else "",
            bounds=_bounds(each.validator),
            **each.metadata,
        )
        for each in attrs.fields(cls)
    )


def _bounds(validator: Any) -> tuple[float, float] | None:
    return (validator.low, validator.high) if isinstance(validator, _Between) else None


def _without_none(kind: Any) -> Any:
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return kinds[0] if type(None) in get_args(kind) else kind
