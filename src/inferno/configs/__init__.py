"""Reading `config.json`: the strict reader, rotary settings, patterns of paths, and the configs
that most decoders share. Imports no torch."""

from inferno.configs.decoder import (
    CONV,
    FULL,
    SLIDING,
    DecoderConfig,
    MTPConfig,
    SwitchedWindowConfig,
    WindowedConfig,
    numbered_layers,
    typed_layers,
)
from inferno.configs.mamba import (
    NO_LIMITS,
    MambaConfig,
    check_mamba2_heads,
    mamba2_state,
    time_step_limit,
)
from inferno.configs.patterns import PatternError, begins_with
from inferno.configs.reader import (
    check_experts,
    check_known,
    check_positive,
    read_config,
)
from inferno.configs.rope import RopeConfig

__all__ = [
    "CONV",
    "DecoderConfig",
    "FULL",
    "MTPConfig",
    "MambaConfig",
    "NO_LIMITS",
    "PatternError",
    "RopeConfig",
    "SLIDING",
    "SwitchedWindowConfig",
    "WindowedConfig",
    "begins_with",
    "check_experts",
    "check_known",
    "check_mamba2_heads",
    "check_positive",
    "mamba2_state",
    "numbered_layers",
    "read_config",
    "time_step_limit",
    "typed_layers",
]
