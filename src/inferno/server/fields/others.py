"""Fields that clients of vLLM, SGLang and OpenAI send and that are not supported here. A client
learns why, instead of finding the field ignored. Extends the tables of `server.fields.support`."""

from __future__ import annotations

from inferno.server.fields.support import IMAGES_AS_GIVEN, Field

_NO_SOUND = "Leave it out: there is no sound in prompts."
_NO_ROOM = "Leave it out: --decode-with names the instance that computes prompts."
_EXPERTS = "Leave it out: the choice of experts is not reported."

_GENERATION = (
    # vLLM
    Field(
        "truncation_side",
        "refused",
        "Leave it out: truncate_prompt_tokens keeps the end of the prompt.",
        harmless=("left",),
    ),
    Field("watermarking", "refused", "Leave it out: there is none.", harmless=(False,)),
    Field("return_token_offsets", "refused", "Use return_token_ids.", harmless=(False,)),
    Field("return_mm_kwargs", "accepted", "There are none.", harmless=(True,)),
    Field("media_io_kwargs", "refused", IMAGES_AS_GIVEN, harmless=({},)),
    Field("ec_transfer_params", "refused", "Leave it out.", harmless=({},)),
    Field("vllm_xargs", "refused", "Leave it out: it is for vLLM's extensions.", harmless=({},)),
    Field("repetition_detection", "refused", "Use repetition_penalty, or max_tokens."),
    Field(
        "stream_interval",
        "accepted",
        "Tokens are sent at once; those that a slow client has not read are sent together.",
        harmless=(1,),
    ),
    Field("routed_experts_prompt_start", "refused", _EXPERTS, harmless=(0,)),
    # SGLang
    Field("regex", "refused", "Use structured_outputs.regex."),
    Field("ebnf", "refused", "Use structured_outputs.grammar."),
    Field("stop_regex", "refused", "Use stop.", harmless=([],)),
    Field("no_stop_trim", "refused", "Use include_stop_str_in_output.", harmless=(False,)),
    Field("lora_path", "refused", "Leave it out: no adapter is loaded."),
    Field("session_params", "refused", "Use session_id.", harmless=({},)),
    Field("custom_logit_processor", "refused", "Install it on the server, as a plugin."),
    Field("custom_params", "refused", "Leave it out.", harmless=({},)),
    Field("custom_labels", "accepted", "Metrics have no labels of clients.", harmless=({},)),
    Field("images_config", "refused", IMAGES_AS_GIVEN, harmless=({},)),
    Field("rid", "accepted", "Use request_id."),
    Field("extra_key", "refused", "Use cache_salt."),
    Field("ngram_corpus_id", "refused", "Leave it out: drafts come from the request's own tokens."),
    Field("bootstrap_host", "refused", _NO_ROOM),
    Field("bootstrap_port", "refused", _NO_ROOM),
    Field("bootstrap_room", "refused", _NO_ROOM),
    Field("disagg_prefill_dp_rank", "accepted", "Engines that decode choose it."),
    Field("return_hidden_states", "refused", "Use /v1/embeddings.", harmless=(False,)),
    Field("return_routed_experts", "refused", _EXPERTS, harmless=(False,)),
    Field("routed_experts_start_len", "accepted", _EXPERTS, harmless=(0,)),
    Field(
        "return_cached_tokens_details",
        "accepted",
        "`usage.prompt_tokens_details` has them always.",
        harmless=(True, False),
    ),
)

CHAT = (
    *_GENERATION,
    Field("return_prompt_text", "refused", "Use POST /apply-template.", harmless=(False,)),
    Field("return_prompt_token_ids", "refused", "Use return_token_ids.", harmless=(False,)),
    Field("return_meta_info", "refused", "Read usage and stop_reason.", harmless=(False,)),
    Field("task", "refused", "Write what is asked for into the last message."),
    Field(
        "separate_reasoning", "refused", "Join reasoning and content yourself.", harmless=(True,)
    ),
    Field("stream_reasoning", "accepted", "Reasoning is always streamed.", harmless=(True,)),
    Field("reasoning", "refused", "Use reasoning_effort.", harmless=({},)),
    Field("input_ids", "refused", "Send token ids to /v1/completions."),
    Field("max_dynamic_patch", "refused", IMAGES_AS_GIVEN),
    Field("min_dynamic_patch", "refused", IMAGES_AS_GIVEN),
    Field("use_audio_in_video", "refused", _NO_SOUND, harmless=(False,)),
    # OpenAI
    Field("moderation", "refused", "Leave it out: answers are not moderated."),
    Field(
        "prompt_cache_options",
        "accepted",
        "The prefix cache keeps the most recently used prefixes that fit.",
    ),
)

COMPLETIONS = (
    *_GENERATION,
    Field("prompt_embeds", "refused", "Send the prompt as a string or as token ids."),
)
