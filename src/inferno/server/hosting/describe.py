"""What clients ask about a model before they use it: sizes, and what it can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from attrs import frozen

from inferno.images.mediums import AUDIO, IMAGE, Medium
from inferno.llm.pooling import pooling_name
from inferno.plan import SandboxUse
from inferno.server.hosting.served_model import ServedModel

Capability = Literal[
    "chat",
    "completion",
    "tools",
    "reasoning",
    "structured",
    "embeddings",
    "rerank",
    "vision",
    "audio",
]


Fields = Mapping[str, Mapping[str, list[str]]]
"""Names of fields by endpoint and support."""


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
    num_parameters: int
    nbytes: int
    """Bytes of its weights in memory."""
    max_model_len: int
    """The longest context that is served."""
    trained_len: int | None
    """The longest context of its config.json."""
    hidden_size: int | None
    chat_format: str
    """How it writes tool calls and reasoning; `none` if that is unknown."""
    grammars: tuple[str, ...]
    """The kinds of grammar that can constrain its output."""
    capabilities: tuple[Capability, ...]
    sandbox: SandboxUse | None
    """What confines its engine."""

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
            num_parameters=plan.num_parameters,
            nbytes=sum(use.nbytes for use in plan.schemes),
            max_model_len=model.preprocessor.max_model_len,
            trained_len=_whole(text.get("max_position_embeddings")),
            hidden_size=_whole(text.get("hidden_size")),
            chat_format=plan.chat_format.name,
            grammars=tuple(use.kind for use in plan.grammars),
            capabilities=capabilities(model),
            sandbox=plan.sandbox,
        )


_READS: tuple[tuple[Medium, Capability], ...] = ((IMAGE, "vision"), (AUDIO, "audio"))


def capabilities(model: ServedModel) -> tuple[Capability, ...]:
    """Return what the model can do."""
    preprocessor, pooling = model.preprocessor, model.preprocessor.pooling
    if pooling.classifier is not None:
        return ("rerank",) if pooling.classifier.num_labels == 1 else ()
    names: list[Capability] = []
    generates = pooling.generates
    if generates and preprocessor.template.exists and model.tokenizer is not None:
        names.append("chat")
        if preprocessor.images is not None:
            names += [kind for medium, kind in _READS if preprocessor.images.takes(medium)]
        if model.output_format is not None and model.output_format.has_tools:
            names.append("tools")
        if model.output_format is not None and model.output_format.reasoning is not None:
            names.append("reasoning")
    if generates:
        names.append("completion")
    if generates and model.llm.plan.grammars and model.tokenizer is not None:
        names.append("structured")
    if not pooling.unsupported:
        names.append("embeddings")
    if pooling.judge is not None or pooling.is_embedder:
        names.append("rerank")
    return tuple(names)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def fields_of(bodies: Iterable[type[Any]]) -> Fields:
    """Return the names of each body's fields by their support, by endpoint."""
    return {
        body.path: {
            verdict: [row.name for row in body.rows if row.verdict == verdict]
            for verdict in ("honoured", "accepted", "refused")
        }
        for body in bodies
    }


def details(model: ServedModel, fields: Fields) -> dict[str, Any]:
    """Return what a model's card says beyond OpenAI's fields."""
    description = Description.of(model)
    pooling = model.preprocessor.pooling
    embeds = "embeddings" in description.capabilities
    return {
        "architecture": description.architecture,
        "format": description.format,
        "quantization": description.quantization,
        "device": description.device,
        "weight_bytes": description.nbytes,
        "trained_context": description.trained_len,
        "capabilities": description.capabilities,
        "chat_format": description.chat_format,
        "grammars": description.grammars,
        "embeddings": {
            "pooling": pooling_name(pooling.pooling),
            "size": pooling.size,
            "why": pooling.reason,
        }
        if embeds
        else None,
        "sandbox": None
        if (use := description.sandbox) is None
        else {"name": use.name, "holds": use.holds, "lacks": use.lacks},
        "fields": fields,
    }
