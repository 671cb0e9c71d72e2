"""Reading `config.json`: an architecture's attrs class, filled by name, and the fields that most
decoders share. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import attrs
import cattrs
from attrs import frozen

from inferno.contracts import AttentionNeed
from inferno.errors import CheckpointError

C = TypeVar("C")


@frozen(kw_only=True)
class RopeScaling:
    """Rotary position embedding: its base, and how it is stretched past the trained context.

    `rope_type` is one of default, linear, dynamic, yarn (arXiv:2309.00071), llama3, longrope
    (arXiv:2402.13753); fields as in transformers' `rope_parameters`.
    """

    rope_type: str = "default"
    rope_theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    # yarn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    # yarn, longrope
    attention_factor: float | None = None
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    # longrope
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        *,
        theta: float = 10_000.0,
        layer_type: str = "full_attention",
    ) -> RopeScaling:
        """From `rope_parameters`, or the older `rope_theta` + `rope_scaling`; `theta` where neither
        names a base. Where there is one for each type of layer, it is that of `layer_type`."""
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        scaling = scaling.get(layer_type, scaling) if isinstance(scaling, Mapping) else scaling
        if not isinstance(scaling, Mapping):
            raise CheckpointError(
                f"config.json: rope_scaling is {scaling!r}", "It must be an object or null."
            )
        given = config.get("rope_theta")
        merged = {"rope_theta": theta if given is None else given, **scaling}
        merged["rope_type"] = scaling.get("rope_type") or scaling.get("type") or "default"
        merged.setdefault("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
        rope = read_config(cls, {k: v for k, v in merged.items() if v is not None})
        known = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
        if rope.rope_type not in known:
            raise CheckpointError(
                f"config.json: rope_type {rope.rope_type!r} is not known",
                f"Known: {', '.join(known)}.",
            )
        for name, wrong, must in (
            (
                "rope_theta",
                rope.rope_theta <= (rope.rope_type == "yarn"),
                "above 0, for yarn above 1",
            ),
            ("factor", rope.factor <= 0, "above 0"),
            (
                "original_max_position_embeddings",
                (rope.original_max_position_embeddings or 2) < 2,
                "at least 2",
            ),
            (
                "partial_rotary_factor",
                not 0 < rope.partial_rotary_factor <= 1,
                "above 0 and at most 1",
            ),
            ("beta_fast", rope.beta_fast <= 0, "above 0"),
            ("beta_slow", rope.beta_slow <= 0, "above 0"),
            (
                "high_freq_factor",
                rope.high_freq_factor <= rope.low_freq_factor,
                "above low_freq_factor",
            ),
            ("short_factor", min(rope.short_factor, default=1.0) <= 0, "above 0, every one"),
            ("long_factor", min(rope.long_factor, default=1.0) <= 0, "above 0, every one"),
        ):
            if wrong:
                raise CheckpointError(
                    f"config.json: {name} is {getattr(rope, name)}", f"It must be {must}."
                )
        return rope

    def check_width(self, head_dim: int) -> None:
        """Raises CheckpointError unless heads so wide can be turned: by whole pairs, longrope by a
        factor for each."""
        turned = int(head_dim * self.partial_rotary_factor)
        if turned < 2 or turned % 2:
            raise CheckpointError(
                f"config.json: {turned} numbers of a head of {head_dim} are to rotate",
                "They rotate in pairs: check head_dim and partial_rotary_factor.",
            )
        for name in ("short_factor", "long_factor") if self.rope_type == "longrope" else ():
            if (count := len(getattr(self, name))) != turned // 2:
                raise CheckpointError(
                    f"config.json: {name} has {count} numbers",
                    f"It must have {turned // 2}, half of what rotates.",
                )


def _number(value: Any, kind: type) -> Any:
    """bool is no number here, nor are NaN and Infinity, which Python's JSON has; 1e3 is no int,
    "12" is neither."""
    allowed = (int, float) if kind is float else (int,)
    if (
        isinstance(value, bool)
        or not isinstance(value, allowed)
        or not -math.inf < value < math.inf
    ):
        raise TypeError(f"{value!r} is not {'a number' if kind is float else 'an integer'}")
    return kind(value)


def _switch(value: Any, kind: type) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


_converter = cattrs.Converter(forbid_extra_keys=False, detailed_validation=True)
_converter.register_structure_hook(int, _number)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook(bool, _switch)  # bool is a kind of int to cattrs


def read_config(cls: type[C], config: Mapping[str, Any]) -> C:
    """`config` as `cls`, an attrs class whose fields are named as in `config.json`; other fields
    are left alone.

    A null counts as absent where the field has a default. Raises CheckpointError naming each bad
    field.
    """
    fields = attrs.fields_dict(cls)  # type: ignore[arg-type]
    given = {
        name: value
        for name, value in config.items()
        if name in fields and not (value is None and fields[name].default is not attrs.NOTHING)
    }
    _check_sizes(given)
    try:
        return _converter.structure(given, cls)
    except cattrs.ClassValidationError as error:
        problems = "; ".join(cattrs.transform_error(error, path="config.json")[:5])
        raise CheckpointError(
            f"{cls.__name__}: {problems}", "Check the model's config.json."
        ) from error


_LISTED = (
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)
"""Numbers of things that are listed one by one, before any tensor is looked for."""
_MOST_LISTED, _LARGEST = 10_000, 2**31 - 1
"""Far beyond any model, and found out in no time."""


def _check_sizes(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        most = _MOST_LISTED if name in _LISTED else _LARGEST
        if isinstance(value, int) and abs(value) > most:
            raise CheckpointError(f"config.json: {name} is {value}", f"It must be at most {most}.")


def check_known(config: Mapping[str, Any], field: str, *known: Any) -> None:
    """Raises CheckpointError when `field` is given and none of `known`: the model would compute
    something else."""
    if field in config and config[field] not in known:
        raise CheckpointError(
            f"config.json: {field} is {config[field]!r}",
            f"This plugin computes {' or '.join(map(repr, known))} only.",
        )


def check_positive(**numbers: int) -> None:
    """Raises CheckpointError unless every one is at least 1: sizes that a tensor could not have."""
    for name, number in numbers.items():
        if number < 1:
            raise CheckpointError(f"config.json: {name} is {number}", "It must be at least 1.")


def check_experts(num_experts: int, picked: int, groups: int = 1, top_groups: int = 1) -> None:
    """Raises CheckpointError unless so many can be picked, from the `top_groups` best of equally
    large groups."""
    check_positive(
        num_experts=num_experts, num_experts_per_tok=picked, n_group=groups, topk_group=top_groups
    )
    in_group, rest = divmod(num_experts, groups)
    if rest or top_groups > groups or picked > top_groups * in_group:
        grouped = (
            f", topk_group {top_groups} of n_group {groups}"
            if (groups, top_groups) != (1, 1)
            else ""
        )
        raise CheckpointError(
            f"config.json: num_experts_per_tok is {picked} of {num_experts} experts{grouped}",
            "Groups must be equally large, and those picked must have enough experts.",
        )


def layers_behind(num_hidden_layers: int, count: int) -> tuple[str, ...]:
    """Name patterns (`ModelConfig.unused_tensors`) of layers stored behind the last, which guess
    further tokens."""
    return tuple(
        f"model.layers.{layer}.*" for layer in range(num_hidden_layers, num_hidden_layers + count)
    )


FULL, SLIDING = "full_attention", "sliding_attention"
"""What `layer_types` says of a layer."""


@frozen(kw_only=True)
class DecoderConfig:
    """What nearly every decoder reads of its `config.json`, under the names it has there. A
    family's own class adds fields, gives others another default, and says more in `from_json`."""

    activations: ClassVar[tuple[str | None, ...]] = ("silu", "swish")
    """What `hidden_act` may be."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """Left out: as many as query heads."""
    head_dim: int = 0
    """Left out: hidden_size / num_attention_heads."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope: RopeScaling = RopeScaling()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Raises CheckpointError naming what this class does not compute, or no tensor could
        have."""
        read = read_config(cls, config)
        check_known(config, "hidden_act", *cls.activations)
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        )
        given = (
            name for name in ("num_key_value_heads", "head_dim") if config.get(name) is not None
        )
        check_positive(**{name: getattr(read, name) for name in (*sizes, *given)})
        if not read.head_dim and read.hidden_size % read.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {read.hidden_size} is no multiple of "
                f"num_attention_heads {read.num_attention_heads}",
                "Check them, or say what head_dim is.",
            )
        read = attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            head_dim=read.head_dim or read.hidden_size // read.num_attention_heads,
            rope=RopeScaling.from_json(config),
        )
        read.rope.check_width(read.head_dim)
        return read

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_need(self, layer: int) -> AttentionNeed:
        return AttentionNeed(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )

    def attention_needs(self) -> list[AttentionNeed]:
        return [self.attention_need(layer) for layer in range(self.num_hidden_layers)]


@frozen(kw_only=True)
class WindowedConfig(DecoderConfig):
    """A decoder with a sliding window in some of its layers, or in all."""

    sliding_window: int | None = None
    """In tokens, the current one included."""
    layer_types: tuple[str, ...] = ()
    """Each layer's, `FULL` or `SLIDING`; where `config.json` has none, as `slides` says."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        if read.sliding_window is not None:
            check_positive(sliding_window=read.sliding_window)
        types = read.layer_types or tuple(
            SLIDING if read.slides(n) else FULL for n in range(read.num_hidden_layers)
        )
        if len(types) != read.num_hidden_layers or not set(types) <= {FULL, SLIDING}:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(set(types)))}",
                f"It must have {read.num_hidden_layers}, each {FULL} or {SLIDING}.",
            )
        return attrs.evolve(read, layer_types=types)

    def slides(self, layer: int) -> bool:
        """Whether this layer has the window, where `layer_types` does not say."""
        return True

    def attention_need(self, layer: int) -> AttentionNeed:
        window = self.sliding_window if self.layer_types[layer] == SLIDING else None
        return attrs.evolve(super().attention_need(layer), sliding_window=window)


@frozen(kw_only=True)
class SwitchedWindowConfig(WindowedConfig):
    """A window that `use_sliding_window` must switch on, and that the layers from
    `max_window_layers` on have."""

    max_window_layers: int = 28

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return super().from_json({**config, "sliding_window": window})

    def slides(self, layer: int) -> bool:
        return layer >= self.max_window_layers


GGUF_FIELDS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""What most decoders' GGUF files call the fields of `config.json`
(`contracts.GgufNames.fields`)."""

GGUF_MODULES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **{
        f"blk.{{n}}.{theirs}": f"model.layers.{{n}}.{ours}"
        for theirs, ours in {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items()
    },
}
"""What most decoders' GGUF files call the modules (`contracts.GgufNames.modules`)."""

GGUF_EXPERT_FIELDS: Mapping[str, str] = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
"""What GGUF files of mixtures of experts call theirs, beside `GGUF_FIELDS`."""

GGUF_EXPERT_MODULES: Mapping[str, str] = {
    **{theirs: ours for theirs, ours in GGUF_MODULES.items() if ".mlp." not in ours},
    "blk.{n}.ffn_gate_inp": "model.layers.{n}.mlp.gate",
    **{
        f"blk.{{n}}.ffn_{name}_exps": f"model.layers.{{n}}.mlp.experts.{{e}}.{name}_proj"
        for name in ("gate", "up", "down")
    },
}
"""The modules of decoders whose every layer has routed experts; with `GGUF_MODULES` those of mixed
ones."""
