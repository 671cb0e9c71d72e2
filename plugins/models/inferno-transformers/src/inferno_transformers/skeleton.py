"""Builds transformers' module of a config, with inferno's matrices and without memory for
parameters."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from attrs import frozen
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)

from inferno.contracts import TEXT_PART_OF
from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno_transformers.headed import TEXT_MODELS, HeadedTextModel
from inferno_transformers.listed import scale_once
from inferno_transformers.matrices import host
from inferno_transformers.refusals import CANNOT, REMEDY
from inferno_transformers.step import NAME

MOST_LAYERS, MOST_TENSORS, LARGEST_TABLE = 1000, 100_000, 1 << 26
"""Limits beyond any published model, so that no config.json can exhaust time or memory."""


_ONE_AT_A_TIME = threading.Lock()
"""How a parameter is registered is changed for all of torch's modules, and changed back."""


@frozen(eq=False)
class Skeleton:
    """A model whose parameters are on meta; its buffers are computed."""

    model: Any
    """transformers' PreTrainedModel."""
    parameters: Mapping[str, tuple[int, ...]]
    """The shapes of the tensors that transformers loads into it, by name."""
    tied: tuple[str, ...]
    """Names of matrices tied to another."""
    keep_fp32: frozenset[str]
    """Names of parameters that stay float32 in any compute type."""
    tables: frozenset[str]
    """Those of them that transformers has as buffers."""
    is_stateful: bool
    """Whether transformers says that it keeps states other than keys and values."""


_FROM_PADDING = "create_position_ids_from_input_ids"
"""What embeddings have that count positions as RoBERTa does."""


def build(fields: Mapping[str, Any], plain: Collection[str] = ()) -> Skeleton:
    """Build the model of a config.json; modules at the paths `plain` keep torch's own matrices.
    Raises CheckpointError for a config that transformers cannot read, UnsupportedError if it is not
    a plain decoder."""
    config = _config(fields)
    with _ONE_AT_A_TIME, _parameters_on_meta(), torch.device("cpu"), _LargeOnMeta():
        try:
            model = _made(config, NAME)
        except KeyError as error:
            if error.args != (NAME,):
                raise _broken(fields, error) from error
            model = _written_out(fields, config)
        except Exception as error:  # inconsistent sizes raise anything
            raise _broken(fields, error) from error
    if any(hasattr(module, _FROM_PADDING) for module in model.modules()):
        cause = "its positions leave out tokens of padding that a text itself writes"
        raise UnsupportedError(f"{called(fields)} {CANNOT}: {cause}", REMEDY)
    parameters = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if large := [name for name, buffer in model.named_buffers() if buffer.is_meta]:
        raise UnsupportedError(f"its table {large[0]} has more than {LARGEST_TABLE} values", REMEDY)
    _freeze_rotary(model)
    tables = frozenset(_store_buffers(model))
    keep_fp32 = {*tables}
    for path, _ in model.named_parameters():
        if any(
            re.search(pattern.replace("*", ".*"), path)
            for pattern in model._keep_in_fp32_modules_strict
        ):
            keep_fp32.add(path)
    tied = host(model, {*plain, *(path.rpartition(".")[0] for path in keep_fp32)})
    scale_once(model)
    fp32, is_stateful = frozenset(keep_fp32), bool(model._is_stateful)
    return Skeleton(model.eval(), parameters, tied, fp32, tables, is_stateful)


def _made(config: Any, attention: str) -> Any:
    """transformers' model with the attention implementation of that name."""
    how = {
        "attn_implementation": attention,
        "experts_implementation": "eager",
        "dtype": torch.float32,
    }
    if config.model_type in TEXT_MODELS:
        return HeadedTextModel(config, **how)
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config, trust_remote_code=False, **how)


def _written_out(fields: Mapping[str, Any], config: Any) -> Any:
    """The model of code that has a class for each attention implementation, none for another's:
    with the one that writes attention out (`scores`), and inferno's masks."""
    try:
        model = _made(config, "eager")
    except Exception as error:
        raise _broken(fields, error) from error
    model.config._attn_implementation = NAME
    return model


def _config(fields: Mapping[str, Any]) -> Any:
    """Read config.json with transformers. Raises unless its model is a text-only decoder."""
    kind, name = str(fields.get("model_type")), called(fields)
    if kind not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"no installed plugin provides the architecture {name!r}, nor does transformers "
            f"{transformers.__version__} "
            f"(model_type {kind!r})",
            "Upgrade transformers, or install a plugin for it.",
        )
    entry: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[kind], None)
    masked = CONFIG_MAPPING[kind] in MODEL_FOR_MASKED_LM_MAPPING
    is_text = entry is None and kind in TEXT_MODELS and TEXT_PART_OF in fields
    is_causal = entry is not None and _means(fields, kind, entry, by_name=masked)
    if masked and not is_causal and not CONFIG_MAPPING[kind]().is_encoder_decoder:
        raise UnsupportedError(
            f"{name} is an encoder (model_type {kind!r}): it reads a text in both directions and "
            "generates none",
            "inferno serves decoders; some of them embed and rerank, such as Qwen3-Embedding and "
            "Qwen3-Reranker. Encoders run in sentence-transformers or text-embeddings-inference.",
        )
    if entry is None and not is_text:
        raise UnsupportedError(
            f"{name}: transformers {transformers.__version__} has no causal language model of the "
            f"type {kind!r}",
            REMEDY,
        )
    if not is_causal and not is_text:
        raise UnsupportedError(
            f"{name} is not the causal language model of {kind!r}: that is {entry.__name__}", REMEDY
        )
    for key in (
        "num_hidden_layers",
        CONFIG_MAPPING[kind].attribute_map.get("num_hidden_layers", "num_hidden_layers"),
    ):
        if isinstance(layers := fields.get(key), int) and layers > MOST_LAYERS:
            raise CheckpointError(
                f"its config.json says {key} {layers}", f"It must be at most {MOST_LAYERS}."
            )
    given = {
        k: v
        for k, v in fields.items()
        if k not in ("quantization_config", "torch_dtype", "dtype", "auto_map", TEXT_PART_OF)
    }
    try:
        config = CONFIG_MAPPING[kind].from_dict(json.loads(json.dumps(given), object_hook=_floats))
    except Exception as error:  # its validation raises exceptions of many kinds
        raise CheckpointError(
            f"transformers cannot read this config.json: {error}", "Correct the file."
        ) from error
    if reason := _refusal(config):
        raise UnsupportedError(f"{name} {CANNOT}: {reason}", REMEDY)
    config.use_cache = False
    return config


def called(fields: Mapping[str, Any]) -> str:
    """What messages call a model: by its class, else its type; and what it is a part of."""
    kind = str(fields.get("model_type"))
    if (whole := fields.get(TEXT_PART_OF)) is not None:
        return f"{whole}, and its text part ({kind})"
    return _class(fields) or kind


def _class(fields: Mapping[str, Any]) -> str:
    return str((fields.get("architectures") or [""])[0])


def _means(fields: Mapping[str, Any], kind: str, found: type, *, by_name: bool) -> bool:
    """Whether a config means transformers' causal language model of its type: it names it, or,
    except `by_name`, names it in another spelling, its base class, or no class at all."""
    name = _class(fields)
    if by_name:
        return name == found.__name__
    if TEXT_PART_OF in fields or name in ("", found.__name__):
        return True
    families = {_plain(kind), _plain(_SUFFIX.sub("", found.__name__))}
    return bool(_SUFFIX.search(name)) and _plain(_SUFFIX.sub("", name)) in families


_SUFFIX = re.compile(r"(ForCausalLM|LMHeadModel|TextModel|Model)$")
"""What follows the family's name in a class that has its decoder."""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _refusal(config: Any) -> str | None:
    """Say why a model of that config is not a plain decoder, or None."""
    if config.is_encoder_decoder:
        return "it is half of an encoder-decoder"
    if config.get_text_config() is not config:
        return "it reads more than text"
    kinds = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if kinds:
        return f"its layers have the types {', '.join(sorted(map(str, kinds)))}"
    least, most = getattr(config, "time_step_limit", None) or (0.0, math.inf)
    if least > 0 or most < math.inf:
        return "its code limits the time steps of prompts, but not those of single tokens"
    if config.model_type == "nemotron_h":
        return "transformers' code gives a token alone other numbers than one within a prompt"
    if config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False):
        return "its positions are a bias on the scores (ALiBi)"
    return None


def _floats(found: dict[str, Any]) -> Any:
    """What transformers writes for a number that JSON has not: {"__float__": "Infinity"}."""
    return float(found["__float__"]) if [*found] == ["__float__"] else found


_LAYERS = {
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "conv",
    "hybrid",
    "hybrid_sliding",
    "moe",
    "mlp",
}
"""What a layer may be called: whether it runs, the inspection sees."""


def _broken(fields: Mapping[str, Any], error: Exception) -> InfernoError:
    cause = f"transformers cannot build {called(fields)}: {error}"
    if isinstance(error, AttributeError) and "Config" in str(error):  # it asks its own class
        return UnsupportedError(
            f"transformers {transformers.__version__} has a fault: {cause}",
            "Install another version of transformers.",
        )
    return CheckpointError(cause, "Check the model's config.json.")


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Context in which parameters take no memory, but a module's own tables are computed."""
    original, count = nn.Module.register_parameter, itertools.count(1)
    thread = threading.get_ident()

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(module, name, param)
        if threading.get_ident() != thread:
            return
        if param is not None and not param.is_meta:
            param = module._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)
        if param is not None:  # nothing is drawn for it: in a large mixture, that takes seconds
            vars(param)["_is_hf_initialized"] = True
        if next(count) > MOST_TENSORS:
            raise ValueError(f"it has more than {MOST_TENSORS} tensors")

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


class _LargeOnMeta(TorchFunctionMode):
    """Context that makes tensors larger than any table on meta, as parameters are before
    registration."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _FACTORIES:
            shape: Tensor = func(*args, **{**given, "device": "meta"})
            if shape.numel() > LARGEST_TABLE:
                return shape
        return func(*args, **given)


_FACTORIES = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
    torch.arange,
    torch.eye,
}


def _freeze_rotary(model: Any) -> None:
    """Fix frequencies that depend on a step's longest context to those of the longest served, as in
    `inferno.nn.Rope`: a cached key must not change."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if kind == "longrope":
            longest = model.config.max_position_embeddings
            module.inv_freq, _ = ROPE_INIT_FUNCTIONS[kind](
                module.config, torch.device("cpu"), seq_len=longest
            )
        if kind in (
            "longrope",
            "dynamic",
        ):  # "dynamic" does not scale up to max_position_embeddings, the longest context
            module.rope_type = "default"
        elif isinstance(kind, dict) and {"longrope", "dynamic"} & set(kind.values()):
            raise UnsupportedError(
                "its rotary frequencies follow the context's length in some layers only", REMEDY
            )


def _store_buffers(model: Any) -> set[str]:
    """Turn buffers that checkpoints store into parameters, for the loader. Returns their names:
    they stay float32."""
    names = set()
    for path, module in model.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in module._non_persistent_buffers_set:
                if not buffer.is_floating_point():
                    raise UnsupportedError(
                        f"{type(module).__name__}.{name} is stored as {buffer.dtype}", REMEDY
                    )
                del module._buffers[name]
                module.register_parameter(
                    name, nn.Parameter(buffer.to("meta"), requires_grad=False)
                )
                names.add(f"{path}.{name}" if path else name)
    return names
