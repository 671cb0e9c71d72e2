"""The Python API of vllm.rs, over `inferno.LLM`. A field is honoured, or refused by its name."""

from inferno_vllm_rs.config import (
    DType,
    EngineConfig,
    FieldError,
    GenerationConfig,
    PdConfig,
    PdMethod,
    PdRole,
    SamplingParams,
)
from inferno_vllm_rs.engine import Engine, EngineStream, GenerationOutput, Message, StreamItem

__all__ = [
    "DType",
    "Engine",
    "EngineConfig",
    "EngineStream",
    "FieldError",
    "GenerationConfig",
    "GenerationOutput",
    "Message",
    "PdConfig",
    "PdMethod",
    "PdRole",
    "SamplingParams",
    "StreamItem",
]
