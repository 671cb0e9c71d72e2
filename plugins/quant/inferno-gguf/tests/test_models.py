"""A model gives the same logits and the same greedy tokens from a GGUF file as from the checkpoint
it was made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf_models import write_gguf
from safetensors.torch import save_file
from torch import Tensor

from inferno.nn import IntGroups, MergedLinear
from inferno.testing import (
    Toy,
    count_tensors,
    generate,
    load_catalog,
    load_toy,
    plan_of,
    ragged_prompts,
    randomize,
)
from inferno_gguf.blocks import Blocks

NUM_GREEDY = 16
WIDTH = 256
"""One block of the larger types."""
COMMON: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
QWEN3 = {**COMMON, "architectures": ["Qwen3ForCausalLM"]}
LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"]}
CONFIGS = pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])

TORCH_ONLY = ("inferno-gguf", "inferno-qwen3", "inferno-llama")
"""Native kernels round what they multiply packed matrices by: here the formats are compared,
exactly."""


def random_tensors(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Random weights, by the names of the checkpoint."""
    architecture = load_catalog().architecture(config["architectures"][0]).item
    with torch.device("meta"):
        model = architecture.build(architecture.config(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for path, module in model.named_modules():
        path = path.replace(".qkv.parts.", ".").replace(".gate_up.parts.", ".")
        shapes |= {
            f"{path}.{name}": tuple(p.shape) for name, p in module.named_parameters(recurse=False)
        }
        if hasattr(module, "weight") and not isinstance(module.weight, torch.nn.Parameter):
            shapes[f"{path}.weight"] = module.weight.shape
    holder = torch.nn.ParameterDict(
        {name.replace(".", "/"): torch.ones(shape) for name, shape in shapes.items()}
    )
    randomize(holder)
    return {name.replace("/", "."): p.detach() for name, p in holder.items()}


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir()
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return folder


def load(path: Path, dtype: str = "float32") -> Toy:
    assert count_tensors(path, only=TORCH_ONLY) > 0
    return load_toy(path, dtype=dtype, only=TORCH_ONLY)


def assert_equal(ours: Toy, theirs: Toy, tolerance: float = 1e-4) -> None:
    prompts = ragged_prompts(ours.plan.vocab_size)
    for a, b in zip(
        generate(ours, prompts, NUM_GREEDY), generate(theirs, prompts, NUM_GREEDY), strict=True
    ):
        assert a.token_ids == b.token_ids
        torch.testing.assert_close(a.logits_NV, b.logits_NV, rtol=tolerance, atol=tolerance)


def dequantized(tensor: Tensor, kind: Type) -> tuple[Tensor, Tensor]:
    """What a file stores for the matrix in that type, and the values it stands for."""
    if kind in (
        Type.Q2_K,
        Type.Q3_K,
        Type.Q4_K,
        Type.Q5_K,
        Type.Q6_K,
    ):  # gguf-py has no quantizer for them: any blocks do
        values, nbytes = gguf.GGML_QUANT_SIZES[kind]
        generator = torch.Generator().manual_seed(tensor.numel())
        shape = (tensor.shape[0], tensor.shape[1] // values, nbytes)
        blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        halves = {Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q6_K: (208,)}.get(kind, (0, 2))
        scale = torch.tensor(
            [2.0**-9 if kind == Type.Q2_K else 2.0**-13]
        ).half()  # values of about 0.03
        for offset in halves:
            blocks[..., offset : offset + 2] = scale.view(torch.uint8)
        packed = blocks.flatten(1)
    else:
        packed = torch.from_numpy(gguf.quants.quantize(tensor.numpy(), kind))
    return packed, torch.from_numpy(gguf.quants.dequantize(packed.numpy(), kind))


@CONFIGS
@pytest.mark.parametrize(
    "kind",
    [pytest.param(Type.F32, marks=pytest.mark.slow), Type.BF16, Type.F16],
    ids=["f32", "bf16", "f16"],
)
def test_plain_types_give_the_same_tokens(
    config: dict[str, Any], kind: Type, tmp_path: Path
) -> None:
    tensors = random_tensors(config)
    types = {name: kind for name, t in tensors.items() if t.ndim > 1}
    if kind == Type.F16:
        tensors = {name: t.half().float() if t.ndim > 1 else t for name, t in tensors.items()}
    ours = load(write_gguf(tmp_path / "model.gguf", config, tensors, types=types))
    assert_equal(ours, load(save(tmp_path / "original", config, tensors)), tolerance=0.0)


@pytest.mark.parametrize("tied", [False, pytest.param(True, marks=pytest.mark.slow)])
@CONFIGS
def test_quantized_types_give_the_tokens_of_the_values_they_stand_for(
    config: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    """Every type at once: mixed within a layer and within what is fused, the embedding and the head
    too."""
    config = {**config, "tie_word_embeddings": tied}
    tensors = random_tensors(config)
    kinds = {
        "embed_tokens": Type.Q6_K,
        "lm_head": Type.Q5_0,
        "q_proj": Type.Q4_K,
        "k_proj": Type.Q4_K,
        "v_proj": Type.Q6_K,
        "o_proj": Type.Q5_K,
        "gate_proj": Type.Q8_0,
        "up_proj": Type.Q8_0,
        "down_proj": Type.Q3_K,
    }
    last = {
        "o_proj": Type.Q4_0,
        "gate_proj": Type.Q4_1,
        "up_proj": Type.Q5_1,
        "down_proj": Type.Q2_K,
    }
    stored, values, types = dict(tensors), dict(tensors), {}
    for name in tensors:
        module = name.split(".")[-2]
        if module in kinds:
            types[name] = (last if ".1." in name else {}).get(module, kinds[module])
            stored[name], values[name] = dequantized(tensors[name], types[name])
    ours = load(write_gguf(tmp_path / "model.gguf", config, stored, types=types))
    assert {use.name for use in ours.plan.schemes} == {t.name.lower() for t in types.values()}
    assert_equal(ours, load(save(tmp_path / "original", config, values)))
    blocks = [m for m in ours.model.modules() if isinstance(m, Blocks)]
    assert sum(m.data.nbytes for m in {id(m): m for m in blocks}.values()) == sum(
        use.nbytes for use in ours.plan.schemes
    )
    merged = (m.merged for m in ours.model.modules() if isinstance(m, MergedLinear))
    gate_up = [w for w in merged if w is not None and w.shape == (2 * WIDTH, WIDTH)]
    assert len(gate_up) == 1, (
        "only the first layer's gate and up are of one type: they become one matrix"
    )


def test_types_without_a_packed_weight_are_unpacked(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    types = {name: Type.TQ2_0 for name in tensors if "down_proj" in name} | {
        "lm_head.weight": Type.MXFP4
    }
    values = {
        n: torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), types[n]), types[n])
        )
        if n in types
        else t
        for n, t in tensors.items()
    }
    ours = load(write_gguf(tmp_path / "model.gguf", LLAMA, tensors, types=types))
    assert_equal(ours, load(save(tmp_path / "original", LLAMA, values)), tolerance=0.0)


def llama3_divisors(config: Mapping[str, Any]) -> Tensor:
    """What llama.cpp's converter writes for Llama 3's scaling, by its rule."""
    scaling = config["rope_scaling"]
    frequencies = config["rope_theta"] ** -(
        torch.arange(0, config["head_dim"], 2, dtype=torch.float64) / config["head_dim"]
    )
    low, high, original = (
        scaling[k]
        for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    divisors = []
    for frequency in frequencies.tolist():
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        divisors.append(
            1.0
            if wavelength < original / high
            else scaling["factor"]
            if wavelength > original / low
            else between
        )
    return torch.tensor(divisors)


def test_rotary_divisors_are_llama_3s_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = {**LLAMA, "rope_scaling": scaling}
    tensors, divisors = random_tensors(config), llama3_divisors(config)
    assert len(divisors.unique()) > 3
    path = write_gguf(
        tmp_path / "model.gguf",
        config,
        tensors,
        add=lambda w: w.add_tensor("rope_freqs.weight", divisors.numpy()),
    )
    assert_equal(load(path), load(save(tmp_path / "original", config, tensors)))


def test_yarn_is_the_original_one(tmp_path: Path) -> None:
    config = {
        **QWEN3,
        "attention_bias": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    tensors = random_tensors(config)
    path = write_gguf(tmp_path / "model.gguf", config, tensors, add=add)
    assert_equal(load(path), load(save(tmp_path / "original", config, tensors)), tolerance=0.0)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Type.F16, "bfloat16"), (Type.Q8_0, "bfloat16"), (Type.F32, "float32")]
)
def test_the_type_to_compute_in_follows_the_files(kind: Type, dtype: str, tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    types = {name: kind for name, t in tensors.items() if t.ndim > 1}
    path = write_gguf(tmp_path / "model.gguf", LLAMA, tensors, types=types)
    assert plan_of(path, dtype="auto").dtype == dtype


def test_a_file_of_float16_serves_activations_beyond_its_range(tmp_path: Path) -> None:
    """The product of gate and up reaches 10^6, as in models that were trained in bfloat16."""
    tensors = random_tensors(LLAMA)
    for name in tensors:
        if "gate_proj" in name or "up_proj" in name:
            tensors[name] = tensors[name] * 1e3 / tensors[name].norm(dim=1, keepdim=True)
        elif "down_proj" in name:
            tensors[name] = tensors[name] * 1e-5
    types = {name: Type.F16 for name, t in tensors.items() if t.ndim > 1}
    path = write_gguf(tmp_path / "model.gguf", LLAMA, tensors, types=types)
    prompt, largest = [3, 1, 4, 1, 5, 9], list[float]()
    wide = load_toy(path, dtype="float32", only=TORCH_ONLY)
    for name, module in wide.model.named_modules():
        if name.endswith("down_proj"):
            module.register_forward_pre_hook(lambda _, x: largest.append(float(x[0].abs().max())))
    exact = wide.logits(prompt)
    assert max(largest) > 65_504
    served = load_toy(path, dtype="auto").logits(prompt)
    assert served.isfinite().all()
    assert (served - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("kind", [Type.IQ1_S, Type.IQ2_XS, Type.IQ3_S, Type.TQ2_0])
def test_types_that_are_unpacked_are_named_with_what_they_take(kind: Type, tmp_path: Path) -> None:
    tensors, types = random_tensors(LLAMA), {}
    values, nbytes = gguf.GGML_QUANT_SIZES[kind]
    draw = torch.Generator().manual_seed(5)
    for name, tensor in tensors.items():
        if "mlp" in name:
            rows, columns = tensor.shape
            shape = rows, columns // values * nbytes
            tensors[name] = torch.zeros(shape, dtype=torch.uint8).random_(0, 48, generator=draw)
            types[name] = kind
    path = write_gguf(tmp_path / "model.gguf", LLAMA, tensors, types=types)
    plan = plan_of(path, dtype="bfloat16")
    [note] = [note for note in plan.notes if "as much memory" in note]
    name, times = kind.name.lower(), 2 * values / nbytes
    assert f"{name}: 6 matrices" in note and f"{times:.1f} times" in note and "--isq" in note
    [use] = [use for use in plan.schemes if use.name == name]
    assert use.stored_nbytes == 6 * WIDTH * WIDTH // values * nbytes
    assert use.nbytes == 6 * WIDTH * WIDTH * 2
    toy = load_toy(path, isq="int4", dtype="bfloat16", only=TORCH_ONLY)
    assert any(isinstance(m, IntGroups) for m in toy.model.modules()), "the remedy is none"


def test_dense_models_are_quantized_while_loading(tmp_path: Path) -> None:
    folder = save(tmp_path / "original", LLAMA, random_tensors(LLAMA))
    toy = load_toy(folder, isq="q8_0", only=TORCH_ONLY)
    assert any(isinstance(m, Blocks) and m.layout == "q8_0" for m in toy.model.modules())
    logits, exact = toy.logits([1, 2, 3]), load(folder).logits([1, 2, 3])
    assert 0 < (logits - exact).abs().max() < 0.05 * exact.abs().max()
