"""What clients ask about a model before they use it: sizes, and what it can do."""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen

from inferno.errors import InfernoError
from inferno.server.model import ServedModel

Capability = Literal["chat", "completion", "tools", "reasoning", "embeddings", "rerank"]


@frozen(kw_only=True)
class Description:
    """A loaded model."""

    architecture: str
    family: str
    """`model_type` of its config.json."""
    format: str
    """Of its checkpoint: safetensors, gguf."""
    quantization: str
    """The scheme of most of its weights' bytes; the compute dtype for dense ones."""
    device: str
    nbytes: int
    """Bytes of its weights in memory."""
    max_model_len: int
    """The longest context that is served."""
    trained_len: int | None
    """The longest context of its config.json."""
    hidden_size: int | None
    has_template: bool
    capabilities: tuple[Capability, ...]

    @classmethod
    def of(cls, model: ServedModel) -> Description:
        plan, config = model.llm.plan, model.llm.plan.config
        text = {**config, **(config.get("text_config") or {})}
        largest = max(plan.schemes, key=lambda use: use.nbytes, default=None)
        name = "dense" if largest is None else largest.layout or largest.name
        return cls(
            architecture=plan.architecture,
            family=str(config.get("model_type", "")),
            format=plan.format,
            quantization=plan.dtype if name in ("dense", plan.dtype) else name,
            device=plan.device.torch_name,
            nbytes=sum(use.nbytes for use in plan.schemes),
            max_model_len=model.preprocessor.max_model_len,
            trained_len=_whole(text.get("max_position_embeddings")),
            hidden_size=_whole(text.get("hidden_size")),
            has_template=model.preprocessor.template.exists,
            capabilities=capabilities(model),
        )


def capabilities(model: ServedModel) -> tuple[Capability, ...]:
    """Return what the model can do."""
    preprocessor, pooling = model.preprocessor, model.preprocessor.pooling
    found: list[Capability] = []
    if preprocessor.template.exists and model.tokenizer is not None:
        found.append("chat")
        if model.output_format is not None and model.output_format.has_tools:
            found.append("tools")
        if _can_reason(model):
            found.append("reasoning")
    found.append("completion")
    if not pooling.unsupported:
        found.append("embeddings")
    if pooling.judge is not None or pooling.is_embedder:
        found.append("rerank")
    return tuple(found)


def _can_reason(model: ServedModel) -> bool:
    """Whether the chat template knows thoughts."""
    try:
        source = model.preprocessor.template.source()
    except InfernoError:
        return False
    return any(word in source for word in ("enable_thinking", "reasoning", "thinking", "<think>"))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
