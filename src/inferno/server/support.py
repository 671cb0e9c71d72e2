"""Every known field of every endpoint, and what becomes of it. The reference page is made from this
table.

A field is honoured; or accepted although it changes nothing, and then named in the answer's
`x_inferno.ignored`; or refused with a 400. Values that ask for nothing (`harmless`, and null) are
fine everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from attrs import field, frozen

from inferno.core.sampling_params import Parameter, parameters


@frozen
class Field:
    """One row of the table."""

    name: str
    verdict: Literal["honoured", "accepted", "refused"]
    note: str
    """What it does, why it changes nothing, or what to do instead."""
    harmless: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values that ask for nothing: never refused, never named."""


def _honoured(**notes: str) -> tuple[Field, ...]:
    return tuple(Field(name, "honoured", note) for name, note in notes.items())


def sampling_rows(found: Iterable[Parameter]) -> tuple[Field, ...]:
    """A row for each sampling parameter that bodies have."""
    return tuple(
        Field(p.name, "honoured", " ".join(filter(None, [p.help, _limits(p), p.body_note])))
        for p in found
        if p.in_body
    )


def _limits(parameter: Parameter) -> str:
    return f"{parameter.limits[:1].upper()}{parameter.limits[1:]}." if parameter.limits else ""


_GENERATION = (
    *_honoured(model="A served name; the served model when left out."),
    *sampling_rows(parameters()),
    *_honoured(
        stream="Server-sent events.",
        stream_options="`include_usage` and `continuous_usage_stats`.",
        priority="Lower runs first.",
        cache_salt="Prefixes are shared only among requests of the same salt; at most 128 "
        "characters.",
        request_id="Comes back as the header x-request-id, unless the request has that header "
        "itself.",
        return_token_ids="Adds `prompt_token_ids` and `token_ids` to the answer.",
    ),
)

_NO_EFFECT = (
    Field("user", "accepted", "Names an end user; nothing here depends on it."),
    Field("metadata", "accepted", "Nothing is stored.", harmless=({},)),
    Field("store", "accepted", "Nothing is stored.", harmless=(False,)),
    Field("service_tier", "accepted", "There is one tier.", harmless=("auto", "default")),
    Field("safety_identifier", "accepted", "Names an end user; nothing here depends on it."),
    Field(
        "prompt_cache_key",
        "accepted",
        "Shared prefixes are found by their content; they need no key.",
    ),
    Field(
        "prompt_cache_retention",
        "accepted",
        "The prefix cache keeps what fits, most recently used first.",
    ),
    Field(
        "session_id",
        "accepted",
        "Shared prefixes are found by their content; they need no session.",
    ),
)

_SCHEMA = "Describe the format in the prompt: output is not constrained yet."
_REFUSED = (
    Field("response_format", "refused", _SCHEMA, harmless=({"type": "text"},)),
    Field("structured_outputs", "refused", _SCHEMA, harmless=({},)),
    *(
        Field(name, "refused", _SCHEMA)
        for name in (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "grammar",
            "json_schema",
        )
    ),
    Field("allowed_token_ids", "refused", "Use logit_bias.", harmless=([],)),
    Field(
        "bad_words",
        "refused",
        "Use logit_bias with the words' token ids (POST /tokenize).",
        harmless=([],),
    ),
    Field(
        "truncate_prompt_tokens", "refused", "Shorten the prompt before it is sent.", harmless=(-1,)
    ),
    Field("use_beam_search", "refused", "Use n and choose among the outputs.", harmless=(False,)),
    Field("length_penalty", "refused", "It belongs to beam search.", harmless=(1, 0)),
    Field("logits_processors", "refused", "Leave it out.", harmless=([],)),
    Field("spaces_between_special_tokens", "refused", "Leave it out.", harmless=(True,)),
    Field("kv_transfer_params", "refused", "Leave it out.", harmless=({},)),
    Field("mm_processor_kwargs", "refused", "This server takes text only.", harmless=({},)),
)

CHAT = (
    *_honoured(
        messages="Roles system, developer, user, assistant, tool; content is text, text parts "
        "or null. "
        "`reasoning` and `reasoning_content` are accepted in the history.",
    ),
    *_GENERATION,
    *_honoured(
        max_completion_tokens="As max_tokens, and wins over it.",
        logprobs="Report the log-probability of each token.",
        top_logprobs="0 to 20 alternatives; needs logprobs.",
        tools="Function tools, where the model says how it writes calls "
        "(`response_template`); else a 400. "
        "Tools of other types are named in `x_inferno.ignored`.",
        tool_choice="none or auto. required and a named function are a 400.",
        parallel_tool_calls="false keeps the first call only.",
        reasoning_effort="Handed to templates that know it; none turns reasoning off and any "
        "other value turns it "
        "on where the template has enable_thinking; else a 400.",
        chat_template_kwargs="Variables for the chat template. Those it does not mention are "
        "named in "
        "`x_inferno.ignored`.",
        add_generation_prompt="true unless the last message is continued.",
        continue_final_message="The model goes on with the last message's text.",
    ),
    *_NO_EFFECT,
    Field(
        "verbosity",
        "accepted",
        "No model here was trained for it; say it in the prompt.",
        harmless=("medium",),
    ),
    Field("prediction", "accepted", "Only ever a matter of speed."),
    *_REFUSED,
    Field("echo", "refused", "Use /v1/completions.", harmless=(False,)),
    Field("add_special_tokens", "refused", "The chat template writes them.", harmless=(False,)),
    Field("best_of", "refused", "Use n and choose among the outputs.", harmless=(1,)),
    Field("modalities", "refused", "This server writes text only.", harmless=(["text"], [])),
    Field("audio", "refused", "This server writes text only."),
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
    Field("include_reasoning", "refused", "Leave `reasoning` unread.", harmless=(True,)),
    Field("thinking_token_budget", "refused", "Use max_completion_tokens."),
)

COMPLETIONS = (
    *_honoured(prompt="A string, a list of strings, token ids, or a list of those."),
    *_GENERATION,
    *_honoured(
        logprobs="How many alternatives to report at each position, 0 to 20.",
        echo="The prompt comes first in the answer; with logprobs, so do its "
        "log-probabilities (not with `stream`).",
        best_of="Only when it equals n.",
        add_special_tokens="Whether the tokenizer adds its own, such as BOS; true unless said.",
    ),
    *_NO_EFFECT,
    *_REFUSED,
    Field("suffix", "refused", "Write the model's own fill-in-the-middle prompt.", harmless=("",)),
)

TOKENIZE = _honoured(
    model="A served name; the served model when left out.",
    prompt="The string.",
    content="The string, as llama.cpp names it.",
    messages="A conversation instead of a string: its rendered prompt.",
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

DETOKENIZE = _honoured(model="A served name; the served model when left out.", tokens="Token ids.")

FIELDS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
"""By endpoint."""
