"""Every known field of every endpoint, and its support. The reference page is generated from this
table.

A field is honoured; or accepted without effect, and then listed in the answer's
`x_inferno.ignored`; or refused with a 400. Values that ask for nothing (`harmless`, and null) are
always accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from attrs import field, frozen

from inferno.request.sampling_params import Parameter, parameters


@frozen
class Field:
    """One row of the table."""

    name: str
    verdict: Literal["honoured", "accepted", "refused"]
    note: str
    """What it does, why it has no effect, or what to do instead."""
    harmless: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values that ask for nothing: never refused or listed."""


def honoured(**notes: str) -> tuple[Field, ...]:
    """Make a row for each name and note."""
    return tuple(Field(name, "honoured", note) for name, note in notes.items())


def sampling_rows(parameters: Iterable[Parameter]) -> tuple[Field, ...]:
    """Make a row for each sampling parameter in bodies."""
    return tuple(
        Field(p.name, "honoured", " ".join(filter(None, [p.help, _limits(p), p.body_note])))
        for p in parameters
        if p.in_body
    )


def _limits(parameter: Parameter) -> str:
    return f"{parameter.limits[:1].upper()}{parameter.limits[1:]}." if parameter.limits else ""


IMAGES_AS_GIVEN = "Leave it out: images are prepared as the model says."
SESSION_ID = (
    "Counts the request in `GET /v1/usage?session_id=...`; without it, `prompt_cache_key` does, or "
    "the header `session-id`. Where a plugin keeps sessions, the blocks of its latest prompt and "
    "answer leave the cache last. Shared prefixes are found by content, session or not."
)
PROMPT_CACHE_KEY = "A session, if there is no session_id."
SESSION_TTL = (
    "Seconds that the session's blocks are kept after this request; those of `--session-ttl` "
    "unless said. Without a plugin that keeps sessions, it has no effect."
)
_GENERATION = (
    *honoured(model="A served name; the served model when left out."),
    *sampling_rows(parameters()),
    *honoured(
        stream="Server-sent events.",
        stream_options="`include_usage` and `continuous_usage_stats`.",
        priority="Lower runs first.",
        cache_salt="Only requests with equal salts share cached prefixes; at most 128 characters.",
        request_id="Returned as the header x-request-id, unless the request has that header.",
        session_id=SESSION_ID,
        prompt_cache_key=PROMPT_CACHE_KEY,
        session_ttl=SESSION_TTL,
        timeout="Seconds that the answer may take; then it ends with the error request_timeout.",
        data_parallel_rank="Which of several engines (`--dp`) is to answer, from 0; another does "
        "while it cannot. The header `x-data-parallel-rank` comes before it.",
        routed_dp_rank="SGLang's name of `data_parallel_rank`.",
        return_token_ids="Adds `prompt_token_ids` and `token_ids` to the answer.",
        return_tokens_as_token_ids="Writes the tokens of `logprobs` as `token_id:ID`, and in "
        "completions each one's `top_logprobs`, with `logprobs: 0` too.",
        response_format="text, json_object or json_schema: the answer, after any reasoning, "
        "matches the schema, `strict` or not. Also vLLM's structural_tag, and llama.cpp's `schema` "
        "with json_object.",
        guided_json="vLLM's older name of `structured_outputs.json`.",
        guided_regex="The same of `structured_outputs.regex`.",
        guided_choice="The same of `structured_outputs.choice`.",
        guided_grammar="The same of `structured_outputs.grammar`.",
        guided_whitespace_pattern="The same of `structured_outputs.whitespace_pattern`.",
        grammar="llama.cpp's name of `structured_outputs.grammar`: GBNF, or Lark.",
        json_schema="llama.cpp's name of `structured_outputs.json`.",
    ),
)

_NO_EFFECT = (
    Field("guided_decoding_backend", "accepted", "`inferno explain` shows what compiles grammars."),
    Field("user", "accepted", "The end user's name is not used."),
    Field("metadata", "accepted", "Nothing is stored.", harmless=({},)),
    Field("store", "accepted", "Nothing is stored.", harmless=(False,)),
    Field("service_tier", "accepted", "There is one tier.", harmless=("auto", "default")),
    Field("safety_identifier", "accepted", "The end user's name is not used."),
    Field(
        "prompt_cache_retention",
        "accepted",
        "The prefix cache keeps the most recently used prefixes that fit.",
    ),
)

_REFUSED = (
    Field("use_beam_search", "refused", "Use n and choose among the outputs.", harmless=(False,)),
    Field("length_penalty", "refused", "Leave it out: it is for beam search.", harmless=(1, 0)),
    Field("spaces_between_special_tokens", "refused", "Leave it out.", harmless=(True,)),
    Field("kv_transfer_params", "refused", "Leave it out.", harmless=({},)),
    Field("mm_processor_kwargs", "refused", IMAGES_AS_GIVEN, harmless=({},)),
)

CHAT = (
    *honoured(
        messages="Roles system, developer, user, assistant, tool; content is text, parts "
        "`text` and, for models that read them, `image_url`, `input_audio` and `audio_url`, or "
        "null. "
        "`reasoning` and `reasoning_content` are accepted in the history.",
    ),
    *_GENERATION,
    *honoured(
        max_completion_tokens="As max_tokens, and overrides it.",
        logprobs="Report the log-probability of each token.",
        top_logprobs="0 to 20 alternatives; needs logprobs.",
        tools="Function tools, if the model's chat format is known; else a 400. `strict` holds a "
        "call to its schema. Tools of other types are listed in `x_inferno.ignored`.",
        tool_choice="auto, none, required, a named function, or allowed_tools. What forces a call "
        "needs a plugin that compiles grammars; else a 400.",
        parallel_tool_calls="false keeps the first call only.",
        reasoning_effort="Passed to templates that know it. With templates that can switch "
        "reasoning, none turns it off and any other value on; else a 400.",
        enable_thinking="Turns reasoning on or off, by whatever variable the chat template has for "
        "it; with none it is listed in `x_inferno.ignored`.",
        thinking='true or false as enable_thinking, or {"type": "enabled" or "disabled", '
        '"budget_tokens": thinking_token_budget}.',
        chat_template_kwargs="Variables for the chat template. Those it does not use are listed in "
        "`x_inferno.ignored`.",
        add_generation_prompt="Default: true unless the last message is continued.",
        continue_final_message="The model continues the last message.",
        truncation="auto drops the oldest turns of a conversation that leaves no room for the "
        "answer (`max_tokens`, at most half of the context; else a quarter of it), by the half, "
        "and keeps system messages; dropped ones are listed in `x_inferno.ignored`. disabled, the "
        "default: a 400.",
    ),
    *_NO_EFFECT,
    Field(
        "verbosity",
        "accepted",
        "No model here was trained for it; ask for it in the prompt.",
        harmless=("medium",),
    ),
    Field("prediction", "accepted", "It would only affect speed."),
    *_REFUSED,
    Field("echo", "refused", "Use /v1/completions.", harmless=(False,)),
    Field(
        "add_special_tokens",
        "refused",
        "Leave it out: the chat template writes them.",
        harmless=(False,),
    ),
    Field("best_of", "refused", "Use n and choose among the outputs.", harmless=(1,)),
    Field("modalities", "refused", "Leave it out: output is text only.", harmless=(["text"], [])),
    Field("audio", "refused", "Leave it out: output is text only."),
    Field("functions", "refused", "Use tools.", harmless=([],)),
    Field("function_call", "refused", "Use tool_choice.", harmless=("none",)),
    Field("web_search_options", "refused", "There is no web search; offer a function tool."),
    Field(
        "documents",
        "refused",
        "Put them into a message, or into chat_template_kwargs.",
        harmless=([],),
    ),
    Field("chat_template", "refused", "Give the server one when it starts: --chat-template."),
    Field("include_reasoning", "refused", "Ignore `reasoning` in the answer.", harmless=(True,)),
)

COMPLETIONS = (
    *honoured(prompt="A string, a list of strings, token ids, or a list of those."),
    *_GENERATION,
    *honoured(
        logprobs="Number of alternatives to report at each position, 0 to 20.",
        echo="The answer begins with the prompt; with logprobs, so do its log-probabilities (not "
        "with `stream`).",
        best_of="Must equal n.",
        add_special_tokens="Whether the tokenizer adds its own, such as BOS; true unless said.",
    ),
    *_NO_EFFECT,
    *_REFUSED,
    Field("suffix", "refused", "Write the model's own fill-in-the-middle prompt.", harmless=("",)),
)

TOKENIZE = honoured(
    model="A served name; the served model when left out.",
    prompt="The string to tokenize.",
    content="The string, as llama.cpp names it.",
    messages="A conversation to render and tokenize instead of a string.",
    tools="As in chat.",
    add_special_tokens="Whether the tokenizer adds its own, such as BOS; true for a string, "
    "false for messages.",
    add_special="The same, as llama.cpp names it; false unless said.",
    add_generation_prompt="As in chat.",
    continue_final_message="As in chat.",
    chat_template_kwargs="As in chat.",
    return_token_strs="Adds `token_strs`.",
    with_pieces="llama.cpp's: tokens become objects of id and piece.",
) + (Field("chat_template", "refused", "Give the server one when it starts: --chat-template."),)

DETOKENIZE = honoured(model="A served name; the served model when left out.", tokens="Token ids.")

LOAD = honoured(model="A name of the model.")

LOAD_LORA = honoured(
    lora_name="What requests name as their model. Another adapter of that name is replaced.",
    lora_path="The adapter: a folder, or a hub id.",
    base_model_name="A name of the model that it is for; the server's first one unless said.",
)

_MODE = (
    "What becomes of running requests: `wait` until they have ended (unless said), `keep` them, to "
    "go on afterwards, or `abort` them."
)

SLEEP = honoured(
    model="A name of the model; the server's first one unless said.",
    level="1 gives back the memory of the cache, and on a GPU that of the weights, which host "
    "memory keeps; 2 that of all weights, which are read again. 1 unless said.",
    mode=_MODE,
)

WAKE_UP = honoured(
    model="A name of the model; the server's first one unless said.",
    tags='`["weights"]` loads the weights only, and the model sleeps on; with "kv_cache", or left '
    "out, it wakes up.",
)

UPDATE_WEIGHTS = honoured(
    weights="A safetensors file on the server, or a folder with such files: some of the "
    "checkpoint's tensors, or all, by its names.",
    model="A name of the model; the server's first one unless said.",
    weight_version="What answers carry from now on; the number of updates unless said.",
    mode=_MODE,
)

UNLOAD_LORA = honoured(lora_name="The adapter's name. Requests that run keep it.")

UNLOAD = honoured(
    model="A name of the model.",
    seconds="How long its requests may take to end before they are aborted; 30 unless said.",
)
