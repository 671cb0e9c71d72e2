"""Reading `config.json`: the strict reader, rotary settings, and the configs that most decoders
share. Imports no torch."""

from inferno.configs.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    SwitchedWindowConfig,
    WindowedConfig,
)
from inferno.configs.gguf import GGUF_EXPERT_FIELDS, GGUF_EXPERT_MODULES, GGUF_FIELDS, GGUF_MODULES
from inferno.configs.reader import (
    check_experts,
    check_known,
    check_positive,
    layers_behind,
    read_config,
)
from inferno.configs.rope import RopeConfig

__all__ = [
    "DecoderConfig",
    "FULL",
    "GGUF_EXPERT_FIELDS",
    "GGUF_EXPERT_MODULES",
    "GGUF_FIELDS",
    "GGUF_MODULES",
    "RopeConfig",
    "SLIDING",
    "SwitchedWindowConfig",
    "WindowedConfig",
    "check_experts",
    "check_known",
    "check_positive",
    "layers_behind",
    "read_config",
]
