"""The fields of SGLang's API, and their support."""

from __future__ import annotations

from inferno.server.api import Field, honoured

_TEXT_ONLY = "Leave it out: input is text only."
_OURS = "The server decides."

SAMPLING = (
    *honoured(
        max_new_tokens="Maximum number of tokens to generate; 128 unless said.",
        min_new_tokens="No end before so many tokens.",
        stop="Strings that end the output.",
        stop_token_ids="Tokens that end the output.",
        temperature="0 takes the most likely token (greedy).",
        top_p="Keep the smallest set of most likely tokens whose probabilities sum to at least "
        "this.",
        top_k="Keep the k most likely tokens; -1 keeps all.",
        min_p="Keep tokens with at least this fraction of the most likely token's probability.",
        frequency_penalty="As in chat completions.",
        presence_penalty="As in chat completions.",
        repetition_penalty="As in chat completions.",
        n="Number of outputs; the answer is a list if more than one.",
        json_schema="The output is JSON of this schema, which is a string.",
        regex="The output matches a regular expression.",
        ebnf="The output is in the language of a grammar.",
        ignore_eos="Go on after the model's end token.",
        skip_special_tokens="Leave special tokens out of the text; true unless said.",
        no_stop_trim="Leave the stop string in the text.",
        logit_bias="Added to logits, by token id.",
        sampling_seed="Makes sampling reproducible.",
    ),
    Field("spaces_between_special_tokens", "accepted", "The tokenizer decides.", harmless=(True,)),
    Field("stream_interval", "accepted", "Every token is sent when it is there."),
    Field("stop_regex", "refused", "Use stop."),
    Field("structural_tag", "refused", "Use structured_outputs of POST /v1/completions."),
    Field("custom_params", "refused", "Leave it out: logit processors are plugins."),
)

GENERATE = (
    *honoured(
        text="A prompt, or several.",
        input_ids="A prompt of token ids, or several. Instead of `text`.",
        sampling_params="See below. One object, for all prompts.",
        rid="The name by which POST /abort_request knows the request.",
        return_logprob="Adds the log-probability of each token: `output_token_logprobs`.",
        logprob_start_len="Adds those of the prompt from this token on; -1 for none.",
        top_logprobs_num="Returns this many alternatives for each token.",
        stream="Server-sent events, each with the whole text so far, and a last one `[DONE]`.",
        lora_path="The served name of an adapter.",
        priority="As in chat completions.",
    ),
    Field("log_metrics", "accepted", _OURS),
    Field("return_text_in_logprobs", "refused", "Decode the ids.", harmless=(False,)),
    Field("return_hidden_states", "refused", "Leave it out.", harmless=(False,)),
    Field("token_ids_logprob", "refused", "Use logprob_token_ids of POST /v1/completions."),
    Field("custom_logit_processor", "refused", "Leave it out: logit processors are plugins."),
    Field("input_embeds", "refused", _TEXT_ONLY),
    Field("image_data", "refused", _TEXT_ONLY, harmless=([],)),
    Field("video_data", "refused", _TEXT_ONLY, harmless=([],)),
    Field("audio_data", "refused", _TEXT_ONLY, harmless=([],)),
    Field("session_params", "refused", "Send the whole prompt: what is cached is found."),
)

ABORT = (
    *honoured(rid="The request's own `rid`.", abort_all="End all requests."),
    Field("abort_message", "accepted", "The answer says that it was aborted."),
)

PAUSE = (
    *honoured(
        mode="`abort` ends running requests (unless said), `in_place` and `retract` keep them: "
        "they go on after POST /continue_generation, with the weights that are there then."
    ),
)

MEMORY = (
    *honoured(
        tags="`kv_cache` or `weights`: the cache is given back first and comes back last; none "
        "for both. `cuda_graph` goes with the cache.",
    ),
)

UPDATE = (
    *honoured(
        model_path="A safetensors file or a folder with such, on the server.",
        weight_version="What answers carry from then on; else the number of updates.",
        abort_all_requests="End running requests. Else they end before the update, or in a pause "
        "go on after it.",
    ),
    Field("load_format", "refused", "Give safetensors.", harmless=("auto", "safetensors")),
    Field(
        "flush_cache", "accepted", "What other weights computed is never used.", harmless=(True,)
    ),
    Field("keep_pause", "accepted", "A pause ends by POST /continue_generation.", harmless=(True,)),
    Field("is_async", "accepted", _OURS, harmless=(False,)),
    Field("torch_empty_cache", "accepted", _OURS, harmless=(False,)),
    Field("recapture_cuda_graph", "accepted", "Steps are always captured again."),
    Field("token_step", "accepted", "Nothing counts it.", harmless=(0,)),
    Field("manifest", "accepted", "The files' own headers are checked."),
)

_GROUP = "`weight_update_group` unless said."

INIT_GROUP = honoured(
    master_address="Where rank 0, the trainer's, listens.",
    master_port="Its port.",
    rank_offset="This server's rank: 1 or more.",
    world_size="The number of ranks: the trainer's and each server's one.",
    group_name=_GROUP,
    backend="`nccl` (unless said) or `gloo`.",
)

UPDATE_FROM_GROUP = (
    *honoured(
        names="The checkpoint's names of the tensors, in the order in which rank 0 sends them.",
        dtypes="Theirs: `float32`, `bfloat16` or `float16`.",
        shapes="Theirs.",
        group_name=_GROUP,
        flush_cache="`false`: more tensors follow, and all are loaded together. In a pause they "
        "always are, when it ends.",
        abort_all_requests="As in /update_weights_from_disk.",
        weight_version="As in /update_weights_from_disk.",
    ),
    Field("load_format", "refused", "Send each tensor by itself.", harmless=("auto",)),
    Field("torch_empty_cache", "accepted", _OURS, harmless=(False,)),
)

LEAVE_GROUP = honoured(group_name=_GROUP)
