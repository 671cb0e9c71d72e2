# Written by docs/generate.py from SamplingParams.
from typing import Any

from attrs import frozen

from inferno.server.api import Parameter

SAMPLING: tuple[Parameter, ...]

@frozen(kw_only=True)
class MessageSampling:
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logprob_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: str | list[str] | None = None
    truncate_prompt_tokens: int | None = None
    logits_processors: list[dict[str, Any]] | None = None
