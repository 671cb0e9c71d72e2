"""The bodies of llama.cpp's API, and the support of their fields."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.api import Field, Message, honoured

_SAMPLER = "Use temperature, top_k, top_p and min_p."
_NO_SLOT = "Requests have no slots: shared prefixes are found by content."

_GENERATION = (
    *honoured(
        model="A served name; the served model when left out.",
        n_predict="Maximum number of tokens to generate; -1 until the context is full.",
        temperature="0 takes the most likely token (greedy).",
        top_k="Keep the k most likely tokens; 0 keeps all.",
        top_p="As in chat completions.",
        min_p="As in chat completions.",
        seed="Makes sampling reproducible; -1 for none.",
        stop="Strings that end the output.",
        stream="Server-sent events.",
        repeat_penalty="`repetition_penalty` of the other endpoints.",
        repeat_last_n="As in chat completions.",
        presence_penalty="As in chat completions.",
        frequency_penalty="As in chat completions.",
        logit_bias="Pairs of token id and bias, false to ban; or an object, as in OpenAI's API.",
        n_probs="Adds `completion_probabilities`, with this many alternatives.",
        ignore_eos="Keep generating past the model's end-of-text tokens.",
        grammar="A GBNF grammar that the output matches.",
        json_schema="A JSON schema that the output matches.",
        return_tokens="Adds the token ids.",
    ),
    Field("cache_prompt", "accepted", "Prefixes are always cached.", harmless=(True,)),
    Field("n_cache_reuse", "accepted", "Only prefixes are reused.", harmless=(0,)),
    Field("id_slot", "accepted", _NO_SLOT, harmless=(-1,)),
    Field("n_keep", "accepted", "A prompt is never shifted.", harmless=(0, -1)),
    Field("min_keep", "accepted", _SAMPLER, harmless=(0,)),
    Field("samplers", "accepted", "The order of samplers is fixed."),
    Field("timings_per_token", "accepted", "The last event has `timings`.", harmless=(False,)),
    Field("t_max_predict_ms", "accepted", "Use n_predict.", harmless=(0,)),
    Field("t_max_prompt_ms", "accepted", "Use n_predict.", harmless=(0,)),
    Field("n_indent", "accepted", "Leave it out.", harmless=(0,)),
    Field("response_fields", "accepted", "The whole answer is sent.", harmless=([],)),
    Field("penalize_nl", "accepted", "Every token is penalized alike.", harmless=(True,)),
    Field("return_progress", "accepted", "The prompt's progress is not sent.", harmless=(False,)),
    Field("post_sampling_probs", "refused", "Leave it out.", harmless=(False,)),
    Field("lora", "refused", "Leave it out: no adapter is loaded.", harmless=([],)),
    Field("dynatemp_range", "refused", _SAMPLER, harmless=(0,)),
    Field("dynatemp_exponent", "accepted", _SAMPLER),
    Field("typical_p", "refused", _SAMPLER, harmless=(1,)),
    Field("top_n_sigma", "refused", _SAMPLER, harmless=(-1,)),
    Field("mirostat", "refused", _SAMPLER, harmless=(0,)),
    Field("mirostat_tau", "accepted", _SAMPLER),
    Field("mirostat_eta", "accepted", _SAMPLER),
    Field("xtc_probability", "refused", _SAMPLER, harmless=(0,)),
    Field("xtc_threshold", "accepted", _SAMPLER),
    Field("dry_multiplier", "refused", "Use repeat_penalty.", harmless=(0,)),
    *(
        Field(name, "accepted", "Use repeat_penalty.")
        for name in ("dry_base", "dry_allowed_length", "dry_penalty_last_n")
    ),
    Field("dry_sequence_breakers", "accepted", "Use repeat_penalty."),
)

COMPLETION = (
    *honoured(prompt="A string, token ids, or a list in which both occur: one prompt."),
    *_GENERATION,
    Field("image_data", "refused", "Leave it out: input is text only.", harmless=([],)),
)
INFILL = (
    *honoured(
        input_prefix="What is before the cursor.",
        input_suffix="What is after it.",
        input_extra="Other files, as objects of `filename` and `text`, written before.",
        prompt="Written after the token that asks for the middle.",
    ),
    *_GENERATION,
)
TEMPLATE = honoured(
    model="A served name; the served model when left out.",
    messages="As in chat completions.",
    tools="As in chat completions.",
    chat_template_kwargs="As in chat completions.",
    add_generation_prompt="As in chat completions.",
)


@frozen(kw_only=True)
class Generating:
    """What completion and infill have in common."""

    model: str | None = None
    n_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Any = None
    n_probs: int | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    return_tokens: bool | None = None


@frozen(kw_only=True)
class LlamaCompletionRequest(Generating):
    """The body of POST /completion."""

    path: ClassVar[str] = "/completion"
    rows: ClassVar[tuple[Field, ...]] = COMPLETION

    prompt: Any


@frozen(kw_only=True)
class LlamaInfillRequest(Generating):
    """The body of POST /infill."""

    path: ClassVar[str] = "/infill"
    rows: ClassVar[tuple[Field, ...]] = INFILL

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[dict[str, Any]] | None = None
    prompt: str | None = None


@frozen(kw_only=True)
class LlamaTemplateRequest:
    """The body of POST /apply-template."""

    path: ClassVar[str] = "/apply-template"
    rows: ClassVar[tuple[Field, ...]] = TEMPLATE

    messages: list[Message]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
