"""The support of each field of the Responses API, for `server.fields.support`'s table."""

from __future__ import annotations

from inferno.request.sampling_params import parameters
from inferno.server.fields.support import (
    PROMPT_CACHE_KEY,
    SESSION_ID,
    SESSION_TTL,
    Field,
    honoured,
    sampling_rows,
)

NOT_OFFERED = ("max_tokens", "n", "prompt_logprobs", "best_of")
"""Sampling parameters that a response does not have, or has under other names."""

_SAMPLING = [p for p in parameters() if p.name not in NOT_OFFERED]
_SHARED = "Shared prefixes are found by content."

RESPONSES = (
    *honoured(
        input="A string, or items: `message` (text, `input_image`, `input_audio`), `reasoning`, "
        "`function_call`, `function_call_output`, `custom_tool_call`, `custom_tool_call_output`, "
        "`item_reference`. "
        "Items of OpenAI's own tools are listed in `x_inferno.ignored`; files get a 400.",
        model="A served name; the served model when left out.",
        instructions="A system message before all others; not carried over to the next response.",
        tools="Function tools, as in chat. Tools of other types (`namespace`, `web_search`, "
        "`custom`, `local_shell` ...) are listed in `x_inferno.ignored`.",
        tool_choice="As in chat, in this API's form; `allowed_tools` offers those tools only.",
        parallel_tool_calls="false keeps the first call only.",
        max_output_tokens="Maximum number of tokens to generate. At least 1.",
        text="`format`: `text`, `json_object`, `json_schema`, as `response_format` in chat.",
        reasoning="`effort`, as `reasoning_effort` in chat. With `summary`, the reasoning is "
        "returned as its own summary too.",
        include="`message.output_text.logprobs`; `reasoning.encrypted_content` (the reasoning in "
        "base64, for clients that send nothing else back).",
        top_logprobs="0 to 20 alternatives for each token of the text.",
        store="Default true: the response can be retrieved and continued. false stores nothing.",
        metadata="Returned with the response: up to 16 strings.",
        previous_response_id="Continues that response, with all that came before it.",
        conversation="An id, or an object with one: begins with its items, and adds to them.",
        stream="Server-sent events with a `sequence_number`.",
        background="The answer is `queued`, and the response is generated without the connection: "
        "retrieve it by its id, or cancel it. Not with `stream`, nor with `store: false`.",
    ),
    *sampling_rows(_SAMPLING),
    *honoured(
        priority="Lower runs first.",
        cache_salt="Only requests with equal salts share cached prefixes; at most 128 characters.",
        request_id="Returned as the header x-request-id, unless the request has that header.",
        session_id=SESSION_ID,
        prompt_cache_key=PROMPT_CACHE_KEY,
        session_ttl=SESSION_TTL,
        chat_template_kwargs="Variables for the chat template, as in chat.",
        truncation="auto drops the oldest turns of a conversation that does not fit, as in chat; "
        "disabled: a 400.",
    ),
    Field("max_tool_calls", "accepted", "It limits OpenAI's own tools only."),
    Field("context_management", "accepted", "Nothing is compacted.", harmless=([],)),
    Field("stream_options", "accepted", "Events are not padded.", harmless=({},)),
    Field("service_tier", "accepted", "There is one tier.", harmless=("auto", "default")),
    Field("user", "accepted", "The end user's name is not used."),
    Field("safety_identifier", "accepted", "The end user's name is not used."),
    Field("prompt_cache_retention", "accepted", _SHARED),
    Field("prompt_cache_options", "accepted", _SHARED, harmless=({},)),
    Field("image", "accepted", "Images are parts of the input.", harmless=({},)),
    Field("access_programs", "accepted", "There are none.", harmless=({},)),
    Field("prompt", "refused", "Prompts are not stored here: send their text."),
    Field("moderation", "refused", "There is no moderation model."),
    Field("max_tokens", "refused", "Use max_output_tokens."),
    Field("messages", "refused", "Use input."),
    Field("response_format", "refused", "Use text.format."),
    Field("n", "refused", "Send several requests.", harmless=(1,)),
)

_METADATA = {"metadata": "Up to 16 strings."}
CONVERSATION = honoured(items="Items that it begins with, as in `input`.", **_METADATA)
CONVERSATION_UPDATE = honoured(**_METADATA)
ITEMS = honoured(items="Items to add, as in `input`.")
