"""Reading `config.json`: the strict reader, rotary settings, patterns of paths, the configs that
most decoders share, and those of encoders of images and audio. Imports no torch."""

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
    windows_of,
    with_dense_layers,
)
from inferno.configs.mamba import (
    NO_LIMITS,
    MambaConfig,
    check_mamba2_heads,
    mamba2_state,
    time_step_limit,
)
from inferno.configs.mel import (
    HEARING,
    HearsMel,
    MelConfig,
    MelProcessor,
    grid_tokens,
    heard,
    heard_by,
    tower_name,
)
from inferno.configs.patterns import PatternError, begins_with
from inferno.configs.processors import given_looks, grid_processor, transformers_processor
from inferno.configs.reader import (
    check_experts,
    check_known,
    check_positive,
    read_config,
)
from inferno.configs.rope import RopeConfig
from inferno.configs.vision import (
    ENCODER,
    DeepVisionConfig,
    SeesGrids,
    SeesGridsDeeply,
    SiglipConfig,
    VisionConfig,
    siglip_part,
    with_vision,
)

__all__ = [
    "CONV",
    "DeepVisionConfig",
    "ENCODER",
    "DecoderConfig",
    "FULL",
    "HEARING",
    "HearsMel",
    "MTPConfig",
    "MambaConfig",
    "MelConfig",
    "MelProcessor",
    "NO_LIMITS",
    "PatternError",
    "RopeConfig",
    "SLIDING",
    "SeesGrids",
    "SeesGridsDeeply",
    "SiglipConfig",
    "SwitchedWindowConfig",
    "VisionConfig",
    "WindowedConfig",
    "begins_with",
    "check_experts",
    "check_known",
    "check_mamba2_heads",
    "check_positive",
    "given_looks",
    "grid_processor",
    "grid_tokens",
    "heard",
    "heard_by",
    "mamba2_state",
    "numbered_layers",
    "read_config",
    "siglip_part",
    "time_step_limit",
    "tower_name",
    "transformers_processor",
    "typed_layers",
    "windows_of",
    "with_dense_layers",
    "with_vision",
]
