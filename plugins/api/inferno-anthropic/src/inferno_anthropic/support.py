"""The support of each field of Anthropic's Messages API, for `server.fields.support`'s table."""

from __future__ import annotations

from inferno.server.api import Field, honoured, parameters, sampling_rows

OTHER_NAMES = ("max_tokens", "stop", "n", "prompt_logprobs", "thinking_token_budget")
"""Sampling parameters that a message does not have, or that have their own rows."""

_SAMPLING = [p for p in parameters() if p.name not in OTHER_NAMES]
_CACHE = "Shared prefixes are cached without marks."
_CONTENT = (
    *honoured(
        messages="Roles user, assistant and system; content is a string, or blocks `text`, "
        "`image` (base64 or url), `thinking`, `tool_use`, `tool_result`, and `document` with text. "
        "`redacted_thinking` and blocks of Anthropic's own tools are in `x_inferno.ignored`. "
        "`cache_control` as in the field of that name.",
        model="A served name; the served model when left out.",
        system="A string, or text blocks.",
        tools="Tools with an `input_schema`. Anthropic's own tools (`bash`, `web_search` ...) are "
        "listed in `x_inferno.ignored`.",
        tool_choice="auto, any, tool, none, as auto, required, a named function and none in chat. "
        "`disable_parallel_tool_use` keeps the first call only.",
        thinking="`enabled` with `budget_tokens`, `adaptive`, `disabled`: for templates that can "
        "switch reasoning, else listed in `x_inferno.ignored`.",
        output_config="`effort`, as `reasoning_effort` in chat where the template knows it; "
        "`format`, as `response_format`.",
        chat_template_kwargs="Variables for the chat template, as in chat.",
    ),
    Field("mcp_servers", "accepted", "The server calls no tools.", harmless=([],)),
    Field("context_management", "accepted", "Nothing is left out.", harmless=({},)),
    Field("speed", "accepted", "There is one speed.", harmless=("standard",)),
    Field("user_profile_id", "accepted", "The end user is not used."),
    Field("workspace_id", "accepted", "There are no workspaces."),
)
_SESSION = (
    Field("cache_control", "accepted", _CACHE),
    Field("session_ttl", "accepted", _CACHE),
    Field("prompt_cache_key", "accepted", _CACHE),
    Field("session_id", "accepted", _CACHE),
)

MESSAGES = (
    *_CONTENT[:2],
    *honoured(
        max_tokens="Maximum number of tokens to generate, limited to the context. At least 1.",
        stop_sequences="Strings that end the output; `stop_sequence` says which did.",
        stream="Server-sent events.",
    ),
    *_CONTENT[2:],
    *sampling_rows(_SAMPLING),
    *honoured(
        priority="Lower runs first.",
        cache_salt="Only requests with equal salts share cached prefixes; at most 128 characters.",
        request_id="Returned as the header x-request-id, unless the request has that header.",
        session_id="Counts the request in `GET /v1/usage?session_id=...`; without it, "
        "`prompt_cache_key` does, or the header `x-claude-code-session-id` or `session-id`. With "
        "`inferno-session`, the blocks of its latest prompt and answer leave the cache last.",
        prompt_cache_key="A session, if there is no session_id.",
        session_ttl="Seconds that the session's blocks are kept after this request; without it, "
        "those of `cache_control`.",
        cache_control="Here or in any block, with a `ttl` of 5m or 1h. With `inferno-session`, the "
        "blocks of the prompt and the answer leave the cache last for that long; a request without "
        "a session is in that of its tools, system prompt and first message. Without it, nothing: "
        "shared prefixes are cached without marks.",
    ),
    Field("metadata", "accepted", "The end user is not used.", harmless=({},)),
    Field("service_tier", "accepted", "There is one tier.", harmless=("auto", "standard_only")),
    Field("container", "accepted", "The server runs no code."),
    Field("diagnostics", "accepted", "Cache misses are not explained here."),
    Field("inference_geo", "accepted", "The server runs where it runs."),
    Field("max_tokens_to_sample", "refused", "Use max_tokens."),
    Field("prompt", "refused", "Use messages."),
)

COUNT = (*_CONTENT, *_SESSION)
