"""What a caller says: which model, with which limits, and how tokens are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import attrs
from attrs import define

from inferno import InfernoError
from inferno import SamplingParams as Params

MAX_TOKENS = 4096
"""Most tokens of an answer, unless params or config say."""
_PD_URL = "shm://pd"

REFUSED: Mapping[str, str] = {
    "hf_token": "Set HF_TOKEN in the environment.",
    "hf_token_path": "Set HF_TOKEN_PATH in the environment.",
    "tokenizer": "Put tokenizer.json into the model's folder.",
    "tokenizer_config": "Put tokenizer_config.json into the model's folder.",
    "num_blocks": "The plan sizes the cache: lower max_model_len or max_num_seqs.",
    "kv_fraction": "The plan sizes the cache: lower max_model_len or max_num_seqs.",
    "device_id": "Use inferno.LLM(ref, device=...).",
    "flash_context": "The plan chooses the attention backend: see `inferno explain`.",
    "prefix_cache_max_tokens": "The prefix cache evicts when the KV cache is full.",
    "server_mode": "Run `inferno serve REF`.",
    "record_conversation": "Run `inferno serve REF`: /v1/responses with `previous_response_id` or "
    "`conversation`.",
    "mcp_config": "Tools are the caller's: see chat completions with `tools`.",
    "mcp_command": "Tools are the caller's: see chat completions with `tools`.",
    "mcp_args": "Tools are the caller's: see chat completions with `tools`.",
}
"""Fields of vllm.rs that are not offered, and what to do instead."""

ISQ = {f"q{bits}k": f"q{bits}_k" for bits in range(2, 7)}
ISQ |= {name.replace("_", ""): name for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")}
"""A block type as vllm.rs writes it -> as inferno does."""


class FieldError(InfernoError):
    """A field that is not offered here, or that has a value that is not."""

    exit_code = 2
    status = 400


@define
class GenerationConfig:
    """Sampling where a request says nothing. None leaves a field to the checkpoint's
    generation_config.json."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None


@define
class SamplingParams:
    """How one request wants its tokens drawn. None leaves a field to `EngineConfig.generation_cfg`,
    then to the checkpoint."""

    temperature: float | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    top_k: int | None = None
    top_p: float | None = None
    session_id: str | None = None
    """The blocks of its conversation are kept for the next turn, with `inferno-session`."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    def merged(self, config: EngineConfig, default: Params) -> Params:
        """inferno's params: this request's fields, else the config's, else `default`'s. The
        config's `max_tokens` is the most that a request gets."""
        given: dict[str, Any] = _given(config.generation_cfg) | _given(self)
        given.pop("session_id", None)
        tokens, most = self.max_tokens, config.max_tokens
        limits = [limit for limit in (tokens, most) if limit is not None]
        given["max_tokens"] = min(limits, default=MAX_TOKENS)
        return attrs.evolve(default, **given)


class DType(Enum):
    """What the model computes in."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"

    @property
    def name_here(self) -> str:
        """As `inferno.LLM` takes it."""
        return {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[self.value]

    @classmethod
    def of(cls, dtype: DType | str) -> DType:
        """Raises FieldError."""
        try:
            return cls(dtype)
        except ValueError:
            known = ", ".join(each.value for each in cls)
            raise FieldError(f"dtype is {dtype!r}", f"Known: {known}.") from None


class PdRole(Enum):
    """Which of two instances this is: one computes long prompts for the other."""

    Client = 1
    PDServer = 2
    Server = 2


class PdMethod(Enum):
    """How the two exchange blocks."""

    LocalIpc = 1
    RemoteTcp = 2


@define
class PdConfig:
    """Prefill and decode apart: this engine has long prompts computed by the instance at `url`,
    which `inferno serve MODEL --pd-server --pd-url URL` starts."""

    role: PdRole
    method: PdMethod = PdMethod.LocalIpc
    url: str | None = None
    """tcp://HOST:PORT, or shm://NAME on one machine; None: shm://pd, where `--pd-server` listens
    unless told otherwise."""

    def options(self) -> dict[str, str]:
        """Options of `inferno.LLM`. Raises FieldError."""
        if self.role is not PdRole.Client:
            raise FieldError(
                "PdConfig.role is PDServer, and an Engine computes only while it is called",
                "Run `inferno serve MODEL --pd-server --pd-url URL`.",
            )
        if self.url is None and self.method is PdMethod.RemoteTcp:
            raise FieldError("PdConfig has no url", "Give that of the server: tcp://HOST:PORT.")
        return {"decode_with": self.url or _PD_URL}


def _offered(config: EngineConfig, field: attrs.Attribute[Any], value: Any) -> Any:
    """Refuse a value of a field that is not offered."""
    if field.name in REFUSED and value is not None and value is not False:
        raise FieldError(f"EngineConfig.{field.name} is not offered", REFUSED[field.name])
    return value


@define(kw_only=True, on_setattr=_offered)
class EngineConfig:
    """What to load: a folder (`weight_path`), a file (`weight_file`) or a hub id (`model_id`), and
    limits. None leaves a limit to the plan.

    The fields from `hf_token` on are vllm.rs's that are not offered: any value but None or False is
    refused with what to do instead.
    """

    model_id: str | None = None
    weight_path: str | None = None
    weight_file: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_tokens: int | None = None
    """Most tokens of an answer, whatever its request asks for."""
    num_shards: int | None = None
    """Processes that share each layer: `--tp`."""
    isq: str | None = None
    """Block type to quantize to while loading: q4_0, q8_0, also as vllm.rs writes them (q4k)."""
    seed: int | None = None
    generation_cfg: GenerationConfig | None = None
    prefix_cache: bool | None = None
    fp8_kvcache: bool | None = None
    cpu_mem_fold: float | None = None
    """Host memory for blocks that leave the cache, as a multiple of it; needs `inferno-offload`."""
    pd_config: PdConfig | None = None
    """Needs `inferno-disaggregated`."""
    hf_token: str | None = None
    hf_token_path: str | None = None
    tokenizer: str | None = None
    tokenizer_config: str | None = None
    num_blocks: int | None = None
    kv_fraction: float | None = None
    device_id: int | None = None
    flash_context: bool | None = None
    prefix_cache_max_tokens: int | None = None
    server_mode: bool | None = None
    record_conversation: bool | None = None
    mcp_config: str | None = None
    mcp_command: str | None = None
    mcp_args: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.pd_config is not None:
            self.pd_config.options()  # or it is refused
        for field in attrs.fields(EngineConfig):
            _offered(self, field, getattr(self, field.name))

    @property
    def ref(self) -> str:
        """The model, as `inferno.LLM` takes it. A file beside a `model_id` is one of its files."""
        if self.model_id and self.weight_file and not self.weight_path:
            return f"{self.model_id}/{self.weight_file}"
        given = [r for r in (self.weight_path, self.weight_file, self.model_id) if r]
        if len(given) != 1:
            raise FieldError(
                f"EngineConfig names {len(given)} models",
                "Give weight_path, weight_file or model_id; or a model_id and one of its files.",
            )
        return given[0]

    def options(self) -> dict[str, Any]:
        """Options of `inferno.LLM`."""
        names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "seed", "cpu_mem_fold")
        given = {name: getattr(self, name) for name in names}
        if self.pd_config is not None:
            given |= self.pd_config.options()
        given["tp"] = self.num_shards
        given["isq"] = None if self.isq is None else ISQ.get(self.isq, self.isq)
        if self.prefix_cache is not None:
            given["cache_policy"] = "auto" if self.prefix_cache else "none"
        if self.fp8_kvcache:
            given["kv_cache_dtype"] = "fp8_e4m3"
        return {option: value for option, value in given.items() if value is not None}


def _given(values: SamplingParams | GenerationConfig | None) -> dict[str, Any]:
    fields = {} if values is None else attrs.asdict(values)
    return {name: value for name, value in fields.items() if value is not None}
