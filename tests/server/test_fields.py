"""The tables of fields name all that today's clients send, and a model's card repeats them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.fake_engine import front
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

from inferno.errors import RequestError
from inferno.request.sampling_params import SamplingParams
from inferno.server.endpoints import fields_by_endpoint
from inferno.server.http.apis import Apis

Start = Callable[..., TestClient[Any]]
FIELDS = fields_by_endpoint(Apis())
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OPENAI = {
    CHAT: "openai.types.chat.completion_create_params:CompletionCreateParamsBase",
    COMPLETIONS: "openai.types.completion_create_params:CompletionCreateParamsBase",
    "/v1/embeddings": "openai.types.embedding_create_params:EmbeddingCreateParams",
}
BOTH = """
    model stream stream_options temperature top_p n stop seed max_tokens logit_bias logprobs user
    presence_penalty frequency_penalty
"""
VLLM = """
    use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids
    prompt_logprobs logprob_token_ids bad_words add_special_tokens echo response_format
    structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
"""Of vLLM's ChatCompletionRequest and CompletionRequest, besides OpenAI's."""
VLLM_CHAT = """
    messages max_completion_tokens top_logprobs tools tool_choice reasoning_effort include_reasoning
    parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
SGLANG = """
    return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details
    return_token_ids top_k min_p min_tokens regex ebnf repetition_penalty stop_token_ids stop_regex
    no_stop_trim ignore_eos skip_special_tokens lora_path session_id session_params response_format
    custom_params custom_logit_processor images_config bootstrap_host bootstrap_port bootstrap_room
    routed_dp_rank disagg_prefill_dp_rank data_parallel_rank rid extra_key cache_salt
    ngram_corpus_id priority
"""
SGLANG_CHAT = """
    return_prompt_token_ids return_meta_info task continue_final_message separate_reasoning
    stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video
    input_ids reasoning reasoning_effort
"""
SGLANG_TEXT = "json_schema custom_labels echo best_of suffix prompt"
KNOWN = {
    CHAT: (BOTH, VLLM, VLLM_CHAT, SGLANG, SGLANG_CHAT),
    COMPLETIONS: (BOTH, VLLM, "prompt_embeds prompt suffix", SGLANG, SGLANG_TEXT),
}


@pytest.mark.parametrize("endpoint", OPENAI)
def test_every_field_of_the_openai_package_is_in_the_table(endpoint: str) -> None:
    pytest.importorskip("openai")
    module, name = OPENAI[endpoint].split(":")
    sent = {*getattr(import_module(module), name).__annotations__}
    assert sent - {row.name for row in FIELDS[endpoint]} == set()


@pytest.mark.parametrize("endpoint", KNOWN)
def test_every_field_of_vllm_and_sglang_is_in_the_table(endpoint: str) -> None:
    sent = {name for names in KNOWN[endpoint] for name in names.split()}
    assert sent - {row.name for row in FIELDS[endpoint]} == set()


def test_a_models_card_says_what_it_can_do_and_what_is_honoured(client: Start) -> None:
    start = client(FakeLLM(response_template=RESPONSE_TEMPLATE))
    card = start.get("/v1/models/fake").json()
    details = card["x_inferno"]
    assert card["max_model_len"] == 4096
    assert details["capabilities"] == ["chat", "tools", "reasoning", "completion", "embeddings"]
    assert (details["device"], details["quantization"], details["format"]) == (
        "cpu",
        "float32",
        "safetensors",
    )
    assert details["embeddings"]["pooling"] == "last" and details["trained_context"] == 8192
    assert details["sandbox"] is None
    for endpoint, rows in FIELDS.items():
        for row in rows:
            assert row.name in details["fields"][endpoint][row.verdict]
    assert "x_inferno" not in start.get("/v1/models").json()["data"][0], "the list stays short"


def test_chosen_log_probabilities(client: Start) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "logprob_token_ids": [5, 6],
    }
    llm = FakeLLM()
    assert client(llm).post(CHAT, json=body).status_code == 200
    assert llm.seen[0][1].logprob_token_ids == (5, 6)


@pytest.mark.parametrize("more", [{}, {"logprobs": 0, "logprob_token_ids": (5,) * 1025}])
def test_chosen_log_probabilities_have_limits(more: dict[str, Any]) -> None:
    params = SamplingParams(**{"logprob_token_ids": (5, 6), **more})
    with pytest.raises(RequestError) as caught:
        front().prepare("a", params)
    assert caught.value.param == "logprob_token_ids"
