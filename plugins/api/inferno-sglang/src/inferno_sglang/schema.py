"""The bodies of SGLang's API."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.api import Field
from inferno_sglang import support


@frozen(kw_only=True)
class SamplingOptions:
    """`sampling_params` of a body."""

    path: ClassVar[str] = "/generate#sampling_params"
    rows: ClassVar[tuple[Field, ...]] = support.SAMPLING

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None


@frozen(kw_only=True)
class GenerateRequest:
    """The body of POST /generate."""

    path: ClassVar[str] = "/generate"
    rows: ClassVar[tuple[Field, ...]] = support.GENERATE

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: dict[str, Any] | None = None
    rid: str | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    stream: bool | None = None
    lora_path: str | None = None
    priority: int | None = None


@frozen(kw_only=True)
class AbortRequest:
    """The body of POST /abort_request."""

    path: ClassVar[str] = "/abort_request"
    rows: ClassVar[tuple[Field, ...]] = support.ABORT

    rid: str | None = None
    abort_all: bool | None = None


@frozen(kw_only=True)
class PauseRequest:
    """The body of POST /pause_generation."""

    path: ClassVar[str] = "/pause_generation"
    rows: ClassVar[tuple[Field, ...]] = support.PAUSE

    mode: str | None = None


@frozen(kw_only=True)
class MemoryRequest:
    """The body of POST /release_memory_occupation and /resume_memory_occupation."""

    path: ClassVar[str] = "/release_memory_occupation"
    rows: ClassVar[tuple[Field, ...]] = support.MEMORY

    tags: list[str] | None = None


@frozen(kw_only=True)
class UpdateFromDiskRequest:
    """The body of POST /update_weights_from_disk."""

    path: ClassVar[str] = "/update_weights_from_disk"
    rows: ClassVar[tuple[Field, ...]] = support.UPDATE

    model_path: str
    weight_version: str | None = None
    abort_all_requests: bool | None = None


@frozen(kw_only=True)
class InitGroupRequest:
    """The body of POST /init_weights_update_group."""

    path: ClassVar[str] = "/init_weights_update_group"
    rows: ClassVar[tuple[Field, ...]] = support.INIT_GROUP

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str | None = None


@frozen(kw_only=True)
class UpdateFromGroupRequest:
    """The body of POST /update_weights_from_distributed."""

    path: ClassVar[str] = "/update_weights_from_distributed"
    rows: ClassVar[tuple[Field, ...]] = support.UPDATE_FROM_GROUP

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool | None = None
    abort_all_requests: bool | None = None
    weight_version: str | None = None


@frozen(kw_only=True)
class LeaveGroupRequest:
    """The body of POST /destroy_weights_update_group."""

    path: ClassVar[str] = "/destroy_weights_update_group"
    rows: ClassVar[tuple[Field, ...]] = support.LEAVE_GROUP

    group_name: str = "weight_update_group"
