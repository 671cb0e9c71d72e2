"""How embeddings are made, in GGUF files and as sentence-transformers' modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from inferno.contracts import TextAssets
from inferno.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
"""`pooling_type` -> sentence-transformers' name; 0 is none, 4 a reranker's head."""
_OLD_SWITCHES = {"mean_tokens": "mean", "cls_token": "cls"}
DENSE = ("dense_2.weight", "dense_3.weight")
"""Layers behind the pooling, in order, without bias and activation (EmbeddingGemma's). They are no
part of the model."""


def modules(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the modules of an embedding model. llama.cpp normalizes every embedding."""
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    mode = _POOLING.get(kind) if isinstance(kind, int) else None
    if mode is None:
        return ()
    return (
        {"type": "Transformer", "config": {}},
        {"type": "Pooling", "config": {"pooling_mode": mode}},
        {"type": "Normalize", "config": {}},
    )


def with_dense(
    found: tuple[Mapping[str, Any], ...],
    stored: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Tensor],
) -> tuple[Mapping[str, Any], ...]:
    """Return the modules with the layers behind the pooling. `stored` are their tensors' shapes, by
    name; `read` returns the values of one."""

    def layer(name: str) -> Mapping[str, Any]:
        outputs, inputs = stored[name]
        settings = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        return {
            "type": "Dense",
            "path": name.removesuffix(".weight"),
            "config": settings,
            "read": lambda: {"linear.weight": read(name).float().numpy()},
        }

    layers = tuple(layer(name) for name in DENSE if name in stored)
    return (*found[:2], *layers, *found[2:]) if found else ()


def pooling_metadata(assets: TextAssets) -> dict[str, int]:
    """Return the key of an embedding model's pooling, without the architecture's prefix. Raises
    UnsupportedError for modules that files cannot say: they would make other embeddings."""
    kinds = [str(each.get("type", "")).rpartition(".")[2] for each in assets.modules]
    if "Pooling" not in kinds:
        return {}
    settings = assets.modules[kinds.index("Pooling")].get("config", {})
    prefix = "pooling_mode_"
    on = {k.removeprefix(prefix) for k, v in settings.items() if k.startswith(prefix) and v is True}
    given = settings.get("pooling_mode") or sorted(on)
    mode = given if isinstance(given, str) else "+".join(map(str, given)) or "none"
    mode = _OLD_SWITCHES.get(mode, mode)
    known = {name: number for number, name in _POOLING.items()}
    others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize", "Dropout"})
    if others or mode not in known:
        raise UnsupportedError(
            f"GGUF files cannot say how its embeddings are made: {', '.join(others) or mode}",
            "Convert to safetensors or to a scheme of it instead.",
        )
    return {"pooling_type": known[mode]}
