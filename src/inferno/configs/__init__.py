"""Reading `config.json`: the strict reader, rotary settings, and the configs that most decoders
share. Imports no torch."""

from inferno.configs.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    SwitchedWindowConfig,
    WindowedConfig,
)
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
