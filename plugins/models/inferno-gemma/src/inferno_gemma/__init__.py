"""Gemma 1, 2 and 3 (text) for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.configs import GGUF_FIELDS, GGUF_MODULES
from inferno.contracts import Architecture, GgufNames

_END_OF_TURN = ("<end_of_turn>",)
_BUILD = "inferno_gemma.model:GemmaForCausalLM"

# llama.cpp multiplies by what is stored: its converters add the 1 of every norm.
_NORMS = ("output_norm", "blk.{n}.attn_norm", "blk.{n}.ffn_norm")
_SANDWICH_NORMS = (*_NORMS, "blk.{n}.post_attention_norm", "blk.{n}.post_ffw_norm")
_HEAD_NORMS = (*_SANDWICH_NORMS, "blk.{n}.attn_q_norm", "blk.{n}.attn_k_norm")

_TIED = {stored: ours for stored, ours in GGUF_MODULES.items() if stored != "output"}

GGUF = GgufNames(
    architecture="gemma", fields=GGUF_FIELDS, modules=_TIED, added=dict.fromkeys(_NORMS, 1.0)
)
GGUF2 = GgufNames(
    architecture="gemma2",
    fields={
        **GGUF_FIELDS,
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
    },
    modules={
        **_TIED,
        "blk.{n}.post_attention_norm": "model.layers.{n}.post_attention_layernorm",
        "blk.{n}.ffn_norm": "model.layers.{n}.pre_feedforward_layernorm",
        "blk.{n}.post_ffw_norm": "model.layers.{n}.post_feedforward_layernorm",
    },
    constants={"query_pre_attn_scalar": 0},
    added=dict.fromkeys(_SANDWICH_NORMS, 1.0),
)
GGUF3 = GgufNames(
    architecture="gemma3",
    fields={
        **GGUF_FIELDS,
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        "rope_local_base_freq": "rope.freq_base_swa",
    },
    modules={
        **GGUF_MODULES,
        **GGUF2.modules,
        "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_norm",
        "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_norm",
    },
    constants={"query_pre_attn_scalar": 0},
    added=dict.fromkeys(_HEAD_NORMS, 1.0),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="GemmaForCausalLM",
            config="inferno_gemma.config:gemma",
            build=_BUILD,
            gguf=GGUF,
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-2b-it",
                "google/gemma-7b-it",
                "google/gemma-1.1-2b-it",
                "google/gemma-1.1-7b-it",
                "google/codegemma-2b",
                "google/codegemma-7b-it",
            ),
        ),
        Architecture(
            name="Gemma2ForCausalLM",
            config="inferno_gemma.config:gemma2",
            build=_BUILD,
            gguf=GGUF2,
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-2-2b-it",
                "google/gemma-2-9b-it",
                "google/gemma-2-27b-it",
                "google/gemma-2-2b-jpn-it",
                "google/shieldgemma-2b",
            ),
        ),
        Architecture(
            name="Gemma3ForCausalLM",
            config="inferno_gemma.config:gemma3",
            build=_BUILD,
            gguf=GGUF3,
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-3-270m-it",
                "google/gemma-3-1b-it",
                "google/medgemma-27b-text-it",
                "EssentialAI/rnj-1-instruct",
            ),
        ),
        Architecture(
            name="Gemma3ForConditionalGeneration",
            config="inferno_gemma.config:gemma3_text",
            build=_BUILD,
            adapt="inferno_gemma.multimodal:text_part",
            stop_tokens=_END_OF_TURN,
            checkpoints=(
                "google/gemma-3-4b-it",
                "google/gemma-3-12b-it",
                "google/gemma-3-27b-it",
                "google/medgemma-4b-it",
            ),
            note="text only: the vision tower of this checkpoint is not loaded",
        ),
    ]
