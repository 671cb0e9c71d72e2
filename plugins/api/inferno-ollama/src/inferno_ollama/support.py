"""The fields of Ollama's API, and their support."""

from __future__ import annotations

from inferno.server.api import Field, honoured

_ONE_MODEL = "The server decides when it is loaded and how."
_KEEP_ALIVE = Field("keep_alive", "accepted", _ONE_MODEL)
_LOADING = tuple(
    Field(name, "accepted", _ONE_MODEL)
    for name in (
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "num_keep",
        "numa",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mmap",
        "use_mlock",
        "embedding_only",
    )
)
_MIROSTAT = "Use top_p or min_p."

OPTIONS = (
    *honoured(
        num_predict="Maximum number of tokens to generate; -1 and -2 until the context is full.",
        temperature="0 takes the most likely token (greedy).",
        top_k="Keep the k most likely tokens; 0 keeps all.",
        top_p="Keep the smallest set of most likely tokens whose probabilities sum to at least "
        "this.",
        min_p="Keep tokens with at least this fraction of the most likely token's probability.",
        seed="Makes sampling reproducible; -1 for none.",
        stop="Strings that end the output.",
        repeat_penalty="`repetition_penalty` of the other endpoints.",
        repeat_last_n="Number of most recent tokens that repeat_penalty covers; -1 for all.",
        presence_penalty="As in chat completions.",
        frequency_penalty="As in chat completions.",
    ),
    *_LOADING,
    Field("penalize_newline", "accepted", "Every token is penalized alike.", harmless=(True,)),
    Field("mirostat_tau", "accepted", _MIROSTAT),
    Field("mirostat_eta", "accepted", _MIROSTAT),
    Field("mirostat", "refused", _MIROSTAT, harmless=(0,)),
    Field("tfs_z", "refused", _MIROSTAT, harmless=(1,)),
    Field("typical_p", "refused", _MIROSTAT, harmless=(1,)),
)

_GENERATING = (
    *honoured(
        model="A served name, with or without `:latest`.",
        stream="JSON lines; true unless said.",
        format="json, or a JSON schema.",
        options="See below.",
        think="true and false switch reasoning, low, medium and high set its effort, where the "
        "chat template has a switch.",
        logprobs="Adds the log-probability of each token.",
        top_logprobs="0 to 20 alternatives; needs logprobs.",
    ),
    _KEEP_ALIVE,
)

CHAT = (
    *honoured(
        messages="Roles system, user, assistant, tool; with `thinking`, `tool_calls` whose "
        "arguments are objects, and `tool_name`. `images` in base64. None loads the model.",
        tools="Function tools.",
    ),
    *_GENERATING,
)

GENERATE = (
    *honoured(
        prompt="The user's message, or with `raw` the whole prompt. None loads the model.",
        images="Of the user's message, in base64.",
        system="A system message.",
        raw="Continue the prompt without the chat template.",
    ),
    *_GENERATING,
    Field("suffix", "refused", "Use POST /infill, or send the model's own prompt with raw."),
    Field("template", "refused", "Give the server one when it starts: --chat-template."),
    Field("context", "refused", "Send the conversation to /api/chat.", harmless=([],)),
    Field("width", "refused", "Leave it out: output is text only.", harmless=(0,)),
    Field("height", "refused", "Leave it out: output is text only.", harmless=(0,)),
    Field("steps", "refused", "Leave it out: output is text only.", harmless=(0,)),
)

_NO_EFFECT = (Field("options", "accepted", "Nothing is generated.", harmless=({},)), _KEEP_ALIVE)

EMBED = (
    *honoured(
        model="A served name, with or without `:latest`.",
        input="A string, or a list of strings.",
        truncate="Whether inputs longer than the context are cut; true unless said.",
        dimensions="As in /v1/embeddings.",
    ),
    *_NO_EFFECT,
)
EMBEDDINGS = (
    *honoured(model="A served name, with or without `:latest`.", prompt="The string."),
    *_NO_EFFECT,
)
SHOW = (
    *honoured(model="A served name, with or without `:latest`.", name="The same."),
    Field("verbose", "accepted", "The tokenizer's tables are left out.", harmless=(False,)),
    Field("system", "accepted", "The model has none of its own."),
    Field("template", "accepted", "The server's is shown."),
    Field("options", "accepted", "The checkpoint's are shown."),
)
PULL = (
    *honoured(
        model="A served name; any other gets a 400: models are fetched by `inferno pull`.",
        name="The same.",
        stream="JSON lines; true unless said.",
    ),
    Field("insecure", "accepted", "Nothing is fetched.", harmless=(False,)),
)
