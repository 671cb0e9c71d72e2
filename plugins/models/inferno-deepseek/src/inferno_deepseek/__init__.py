"""DeepSeekMoE, DeepSeek-V2 to V3.2, Ling, Kimi K2, GLM-4.7-Flash and GLM-5 for inferno. Imports no
torch until a model is built."""

from __future__ import annotations

from attrs import evolve

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture, Divided, spelled
from inferno_deepseek.gguf import DEEPSEEK, DEEPSEEK_MOE, DEEPSEEK_V32, GLM_DSA, GLM_FLASH, V3
from inferno_deepseek.gguf import LING as LING_FILES
from inferno_deepseek.spellings import LING

_STOP = ("<｜end▁of▁sentence｜>", "<|im_end|>")
"""DeepSeek's and Kimi's."""
_GLM_STOP = ("<|endoftext|>", "<|user|>", "<|observation|>")
_UNQUANTIZED = ("*.gate", "*.weights_proj")


_DIVIDES: dict[str, Divided] = {
    **DECODER,
    **dict.fromkeys(("q_proj", "q_b_proj", "kv_b_proj"), "query heads"),
}


FIRST = Architecture(
    name="DeepseekForCausalLM",
    model_types=("deepseek", "deepseek_ocr2_text"),
    config="inferno_deepseek.first_config:DeepseekMoEConfig.from_json",
    build="inferno_deepseek.first:DeepseekForCausalLM",
    adapt="inferno.contracts:per_expert",
    dialects={"gguf": DEEPSEEK_MOE},
    stop_tokens=_STOP,
    divides=DECODER,
    checkpoints=("deepseek-ai/deepseek-moe-16b-base", "deepseek-ai/deepseek-moe-16b-chat"),
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    ling = evolve(FIRST, adapt="inferno_deepseek.spellings:with_normal_head", stop_tokens=())
    return [
        FIRST,
        spelled(ling, LING, {"gguf": LING_FILES}),
        Architecture(
            name="DeepseekV2ForCausalLM",
            model_types=("deepseek_v2",),
            config="inferno_deepseek.config:DeepseekV2Config.from_json",
            build="inferno_deepseek.model:DeepseekV2ForCausalLM",
            dialects={"gguf": DEEPSEEK},
            stop_tokens=_STOP,
            divides=_DIVIDES,
            checkpoints=(
                "deepseek-ai/DeepSeek-V2",
                "deepseek-ai/DeepSeek-V2-Chat",
                "deepseek-ai/DeepSeek-V2-Lite",
                "deepseek-ai/DeepSeek-V2-Lite-Chat",
                "deepseek-ai/DeepSeek-V2.5",
                "deepseek-ai/DeepSeek-Coder-V2-Instruct",
                "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
            ),
        ),
        Architecture(
            name="DeepseekV3ForCausalLM",
            model_types=("deepseek_v3", "kimi_k2"),
            config="inferno_deepseek.config:DeepseekV3Config.from_json",
            build="inferno_deepseek.model:DeepseekV3ForCausalLM",
            mtp="inferno_deepseek.model:mtp_layers",
            dialects={"gguf": V3},
            stop_tokens=_STOP,
            divides=_DIVIDES,
            checkpoints=(
                "deepseek-ai/DeepSeek-V3",
                "deepseek-ai/DeepSeek-V3-0324",
                "deepseek-ai/DeepSeek-V3.1",
                "deepseek-ai/DeepSeek-R1",
                "deepseek-ai/DeepSeek-R1-0528",
                "moonshotai/Kimi-K2-Instruct",
                "moonshotai/Moonlight-16B-A3B-Instruct",
            ),
        ),
        Architecture(
            name="Glm4MoeLiteForCausalLM",
            model_types=("glm4_moe_lite",),
            config="inferno_deepseek.config:Glm4MoeLiteConfig.from_json",
            build="inferno_deepseek.model:DeepseekV3ForCausalLM",
            mtp="inferno_deepseek.model:mtp_layers",
            dialects={"gguf": GLM_FLASH},
            stop_tokens=_GLM_STOP,
            divides=_DIVIDES,
            checkpoints=("zai-org/GLM-4.7-Flash",),
        ),
        Architecture(
            name="DeepseekV32ForCausalLM",
            model_types=("deepseek_v32",),
            config="inferno_deepseek.indexed_config:IndexedConfig.from_json",
            build="inferno_deepseek.model:DeepseekV3ForCausalLM",
            mtp="inferno_deepseek.model:mtp_layers",
            dialects={"gguf": DEEPSEEK_V32},
            unquantized=_UNQUANTIZED,
            stop_tokens=_STOP,
            divides=_DIVIDES,
            checkpoints=(
                "deepseek-ai/DeepSeek-V3.2",
                "deepseek-ai/DeepSeek-V3.2-Exp",
                "deepseek-ai/DeepSeek-V3.2-Speciale",
            ),
        ),
        Architecture(
            name="GlmMoeDsaForCausalLM",
            model_types=("glm_moe_dsa",),
            config="inferno_deepseek.indexed_config:GlmMoeDsaConfig.from_json",
            build="inferno_deepseek.model:DeepseekV3ForCausalLM",
            mtp="inferno_deepseek.model:mtp_layers",
            dialects={"gguf": GLM_DSA},
            unquantized=_UNQUANTIZED,
            stop_tokens=_GLM_STOP,
            divides=_DIVIDES,
            checkpoints=("zai-org/GLM-5", "zai-org/GLM-5-FP8"),
        ),
    ]
