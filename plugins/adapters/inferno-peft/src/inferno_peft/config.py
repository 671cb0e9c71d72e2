"""PEFT's `adapter_config.json`: the scale of each pair, and what is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import field, frozen

from inferno.errors import CheckpointError, UnsupportedError

MERGE = (
    "Merge it into the model, `inferno convert MODEL --adapter ADAPTER --to safetensors "
    "-o FOLDER`, and serve that."
)
WITH_PEFT = "Merge it into the model with PEFT's merge_and_unload, and serve that."
"""Of what only PEFT merges."""
DAMAGED = "Save the adapter again with PEFT's save_pretrained."
MAX_BYTES = 1 << 20
"""Of the file."""
NO_MERGE = "Train it as a LoRA without invocation tokens: it cannot be merged either."
_REFUSED = {
    "alora_invocation_tokens": "it is an activated LoRA (aLoRA), which begins in mid-prompt",
    "modules_to_save": "it replaces whole modules (modules_to_save)",
    "layer_replication": "it repeats layers (layer_replication)",
    "trainable_token_indices": "it trains single tokens (trainable_token_indices)",
    "lora_bias": "it has biases of its own (lora_bias)",
    "fan_in_fan_out": "its base stores matrices transposed (fan_in_fan_out)",
    "megatron_config": "it is of Megatron's layers (megatron_config)",
    "arrow_config": "it routes between adapters (Arrow)",
}
DORA = "it is a DoRA, which scales rows by their norms"
_KNOWN_USES = {"use_dora", "use_rslora"}
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations that also change the base model's matrices."""
_PLAIN = re.compile(r"[\w.]+", re.A)
_QUANTIFIERS, _MAX_QUANTIFIERS, _MAX_PATTERN = re.compile(r"[*+{?]"), 3, 200


T = TypeVar("T")


@frozen
class PeftConfig:
    """What a config says of every pair."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[str, int] = field(factory=dict)
    """By pattern of modules' paths; so are `alphas`."""
    alphas: Mapping[str, float] = field(factory=dict)
    parameters: tuple[str, ...] = ()
    """Those that are targets themselves, not as a linear layer's matrix: of experts."""
    tied: bool = False
    """Whether the pair of an output head that is the embedding is a copy of the embedding's."""

    @classmethod
    def parse(cls, data: bytes, *, merging: bool = False) -> PeftConfig:
        """Raises CheckpointError if it is damaged, UnsupportedError by the name of what it asks
        for besides pairs of matrices."""
        try:
            read = json.loads(data) if len(data) <= MAX_BYTES else None
        except (ValueError, RecursionError):
            read = None
        if not isinstance(read, dict):
            raise CheckpointError("adapter_config.json is no JSON object", DAMAGED)
        if (reason := refused(read)) is not None:
            raise UnsupportedError(
                f"the adapter cannot be served beside others: {reason}",
                NO_MERGE if "aLoRA" in reason else WITH_PEFT,
            )
        if read.get("use_dora") and not merging:
            raise UnsupportedError(f"the adapter cannot be served beside others: {DORA}", MERGE)
        ranks, alphas = read.get("rank_pattern") or {}, read.get("alpha_pattern") or {}
        for name, patterns in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
            if not isinstance(patterns, dict):
                raise CheckpointError(f"adapter_config.json: {name} is no object", DAMAGED)
            for key in patterns:
                _check_pattern(name, key)
        return cls(
            rank=_integer("r", read.get("r", 8)),
            alpha=_number("lora_alpha", read.get("lora_alpha", 8)),
            rslora=bool(read.get("use_rslora")),
            ranks={key: _integer(f"rank_pattern.{key}", each) for key, each in ranks.items()},
            alphas={key: _number(f"alpha_pattern.{key}", each) for key, each in alphas.items()},
            parameters=_strings("target_parameters", read.get("target_parameters") or ()),
            tied=bool(read.get("ensure_weight_tying")),
        )

    def rank_of(self, path: str) -> int:
        """Return the rank of a module's pair."""
        return _matching(self.ranks, path, self.rank)

    def scale_of(self, path: str) -> float:
        """Return the factor of a module's pair: alpha / r, or with rslora alpha / sqrt(r)
        (arXiv:2312.03732)."""
        rank, alpha = self.rank_of(path), _matching(self.alphas, path, self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def refused(config: Mapping[str, Any]) -> str | None:
    """Return what the config asks for besides pairs of matrices, or None."""
    if config.get("peft_type") != "LORA":
        return f"its peft_type is {str(config.get('peft_type'))[:40]!r}, not LORA"
    for name, reason in _REFUSED.items():
        if config.get(name):
            return reason
    if config.get("bias", "none") != "none":
        return "it trains biases (bias)"
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_BASE_CHANGING):
        return f"its initialization changes the base model ({start[:40]})"
    uses = (name for name, value in config.items() if name.startswith("use_") and value)
    return next((f"it uses {name[:40]}" for name in uses if name not in _KNOWN_USES), None)


def _check_pattern(name: str, key: str) -> None:
    """Raise CheckpointError for a regular expression whose search might take very long."""
    if _PLAIN.fullmatch(key):
        return
    try:
        re.compile(key)
    except (re.error, OverflowError, RecursionError):
        long = True
    else:
        long = len(key) > _MAX_PATTERN or len(_QUANTIFIERS.findall(key)) > _MAX_QUANTIFIERS
    if long:
        raise CheckpointError(
            f"adapter_config.json: {name} has the pattern {key[:60]!r}, which is wrong or too long",
            "Name the modules' paths instead.",
        )


def _matching(values: Mapping[str, T], path: str, default: T) -> T:
    """Return the value of the first pattern that matches the path or a tail of it, as PEFT."""
    for key, value in values.items():
        if re.match(rf"(.*\.)?({key})$", path):
            return value
    return default


def _strings(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise CheckpointError(f"adapter_config.json: {name} is {str(value)[:40]!r}", DAMAGED)
    return tuple(value)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise CheckpointError(f"adapter_config.json: {name} is {str(value)[:40]!r}", DAMAGED)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckpointError(f"adapter_config.json: {name} is {str(value)[:40]!r}", DAMAGED)
    return float(value)
