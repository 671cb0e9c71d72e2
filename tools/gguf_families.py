"""Compares the model families' GGUF files with llama.cpp: `python tools/gguf_families.py LLAMA_CPP
--llama PYTHON`.

LLAMA_CPP is a checkout of llama.cpp, PYTHON an environment's with llama-cpp-python and gguf. Of
every config that a family's tests imitate and that a GGUF file can say
(`ArchitectureTests.in_gguf`), transformers makes a model with random weights, and llama.cpp's own
converter writes it in F32, F16 and Q8_0 (`CHANGED` says what is fitted to it). Comparisons:

- *transformers*: inferno with the F32 and the F16 file, and transformers with what was converted
  (the weights are bfloat16 numbers: what of them is in F16's range is in both files exactly);
- *llama.cpp*: both with the F32 file, and inferno with the Q8_0 file beside llama.cpp with its
  values unpacked to F32.

gpt-oss is converted with its experts in MXFP4, too. `--written` compares instead the F32 files that
`inferno convert` writes: llama.cpp's tokens with transformers'. Exits with 1 if anything differs.
Where llama.cpp itself differs from transformers, `LLAMA_CPP_DIFFERS` says why.

Suffixes: L tokens of a sequence, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf_parity import (
    LLAMA,
    NATIVE,
    NEAR,
    OPTIONS,
    ROOT,
    Answer,
    Array,
    Comparison,
    LlamaCpp,
    Refused,
    Task,
    compare,
    theirs,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from inferno.catalog import load_catalog
from inferno.errors import InfernoError
from inferno.plan import Options, reopen, resolve
from inferno.testing import ArchitectureTests, transformers_model
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno.testing.tiny import MAX_MODEL_LEN, Toy, generate, ragged_prompts
from inferno.weights.loading import load_model
from inferno_convert.convert import convert

FAMILIES = ROOT / "plugins/models"
NUM_TOKENS = 24
NEAR_GELU = 1e-2
"""With "gelu", which llama.cpp looks up in a table of 16-bit numbers: transformers with one comes
within 3e-4 of it."""
LENGTHS = (33, 40, 48, 49, 70)
"""Of the prompts: beyond every window, and beyond the original contexts that are meant to be left
(transformers changes the rotary factors of longrope there, the engines have those of their longest
context from the first token on)."""
KINDS = ("F32", "F16", "Q8_0")
WRITTEN = "llama.cpp with inferno's file, beside transformers"
COLUMNS = (
    "transformers F32",
    "transformers F16",
    "llama.cpp F32",
    "llama.cpp Q8_0",
    "llama.cpp beside transformers",
)


# What is compared
# ----------------------------------------------------------------------

_WINDOWS = {"sliding_window_pattern": 6, "num_hidden_layers": 7}
CHANGED: dict[str, dict[str, Any]] = {
    # Files do not say which layers have a window: each but every sixth.
    "gemma Gemma3": _WINDOWS,
    "gemma Gemma3Scaled": _WINDOWS,
    "gemma Gemma3WithVision": _WINDOWS,
    # llama.cpp knows a DeepSeek without a latent of queries by its number of layers.
    "deepseek V2Lite": {"num_hidden_layers": 27},
    "deepseek Moonlight": {"num_hidden_layers": 27},
    # What its converter reads in the place of GlmForCausalLM's own fields.
    "glm4 Glm": {"seq_length": 256, "layernorm_epsilon": 1.5625e-7},
    "glm4 GlmEdge": {"seq_length": 256, "layernorm_epsilon": 1e-5},
}
"""Case -> fields of its config that are other than in the family's tests."""

MORE: dict[str, dict[str, Any]] = {
    # Files do not say how scores are scaled: readers know it by the number of layers.
    "gemma Gemma2": {"num_hidden_layers": 46, "query_pre_attn_scalar": 16},
    "gemma Gemma3": {
        "num_hidden_layers": 62,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 6,
    },
}
"""Case -> fields of another model that is compared, too."""

LLAMA_CPP_DIFFERS = {
    "deepseek Moonlight": "latents are normed with the config's epsilon, not 1e-6",
    "deepseek V2": "groups of experts are worth their two best, V3's rule",
    "gpt-oss GptOss20B": "YaRN's bounds are rounded to whole frequencies",
    "gpt-oss GptOss20B MXFP4": "the same",
    "phi Phi3Mini4k": "no window",
    "qwen3 Yarn": "no biases; it refuses the file",
    "stablelm Tied": "no tied head; it refuses the file",
}
"""Case -> what llama.cpp computes otherwise than transformers. inferno is to agree with
transformers there."""

Tensors = dict[str, Tensor]
Variant = Callable[[Any, dict[str, Any]], tuple[Tensors, dict[str, Any]]]


@dataclass
class Case:
    """A config that a family's tests imitate."""

    family: str
    name: str
    config: Mapping[str, Any]
    variant: str = ""
    """How its checkpoint is stored otherwise than transformers stores it."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.family, self.name, self.variant)))


def cases(families: list[str] | None) -> Iterator[Case]:
    for folder in sorted(FAMILIES.iterdir()):
        family = folder.name.removeprefix("inferno-")
        if families and family not in families:
            continue
        for path in sorted(folder.glob("tests/test_*.py")):
            for name, config in configs(path):
                case = Case(family, name, changed(config, CHANGED.get(f"{family} {name}", {})))
                yield case
                yield from (
                    replace(case, variant=variant)
                    for about, variant in VARIANTS
                    if about == str(case)
                )
                if more := MORE.get(str(case)):
                    yield Case(
                        family, f"{name}, {more['num_hidden_layers']} layers", changed(config, more)
                    )


def changed(config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Its own fields, or its language model's."""
    if "text_config" in config:
        return {**config, "text_config": {**config["text_config"], **fields}}
    return {**config, **fields}


def configs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in vars(module).items():
        if (
            isinstance(value, type)
            and issubclass(value, ArchitectureTests)
            and value.__module__ == path.stem
        ):
            if hasattr(value, "config") and value.in_gguf:
                yield name.removeprefix("Test"), value.config


# The checkpoints
# ----------------------------------------------------------------------


def save(case: Case, path: Path) -> Any:
    """What is to be converted; returns transformers' model of it."""
    model: Any = transformers_model(case.config)
    model.save_pretrained(path)
    config = dict(case.config)
    if case.variant:
        tensors, config = VARIANTS[f"{case.family} {case.name}", case.variant](model, config)
        clones = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        save_file(clones, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    rows = model.get_input_embeddings().weight.shape[0]  # some converters count the tokens
    vocabulary = {"vocab": {f"t{i}": i for i in range(rows)}}
    (path / "tokenizer.json").write_text(json.dumps({"model": vocabulary, "added_tokens": []}))
    return model


def with_packed_experts(model: Any, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """gpt-oss as published. What the random blocks stand for is put into the model."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    draw, tensors = torch.Generator().manual_seed(0), dict(model.state_dict())
    for name, param in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = param.shape
            shape = (experts, rows, columns // 32)
            blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=draw)
            scales = torch.randint(121, 125, shape, dtype=torch.uint8, generator=draw)
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            param.data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    return tensors, {**config, "quantization_config": {"quant_method": "mxfp4"}}


def with_predict_layer(model: Any, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """GLM-4.5 as published: a multi-token-prediction layer after the last, which is not run."""
    tensors, width = stored_tensors(model), config["hidden_size"]
    last, behind = (f"model.layers.{config['num_hidden_layers'] - 1 + i}" for i in range(2))
    tensors |= {
        f"{behind}{name.removeprefix(last)}": t
        for name, t in tensors.items()
        if name.startswith(f"{last}.")
    }
    tensors |= {
        f"{behind}.{name}.weight": torch.ones(width)
        for name in ("enorm", "hnorm", "shared_head.norm")
    }
    embedding = tensors["model.embed_tokens.weight"]
    tensors |= {
        f"{behind}.{name}.weight": embedding for name in ("embed_tokens", "shared_head.head")
    }
    tensors[f"{behind}.eh_proj.weight"] = torch.ones(width, 2 * width)
    return tensors, {**config, "num_nextn_predict_layers": 1}


CHATGLM = {
    "model.embed_tokens.": "transformer.embedding.word_embeddings.",
    "lm_head.": "transformer.output_layer.",
    "model.norm.": "transformer.encoder.final_layernorm.",
    "model.layers.": "transformer.encoder.layers.",
    "self_attn.o_proj.": "self_attention.dense.",
    "self_attn.qkv_proj.": "self_attention.query_key_value.",
    "mlp.gate_up_proj.": "mlp.dense_h_to_4h.",
    "mlp.down_proj.": "mlp.dense_4h_to_h.",
}
"""Parts of names, in transformers and in the code that glm-4-9b-chat came with."""


def as_chatglm(model: Any, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """glm-4-9b-chat as first published, with code of its own: q, k and v in one matrix."""
    tensors = stored_tensors(model)
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}.self_attn"
        for part in ("weight", "bias"):
            tensors[f"{path}.qkv_proj.{part}"] = torch.cat(
                [tensors.pop(f"{path}.{name}_proj.{part}") for name in "qkv"]
            )
    for part, replaced in CHATGLM.items():
        tensors = {name.replace(part, replaced): tensor for name, tensor in tensors.items()}
    first = {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "multi_query_group_num": "num_key_value_heads",
        "ffn_hidden_size": "intermediate_size",
        "layernorm_epsilon": "layernorm_epsilon",
        "seq_length": "seq_length",
        "padded_vocab_size": "vocab_size",
    }
    fields = {name: config[ours] for name, ours in first.items()}
    ratio = config.get("rope_theta", 10_000.0) / 10_000
    return tensors, {
        **fields,
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "rope_ratio": ratio,
    }


def stored_tensors(model: Any) -> Tensors:
    """As `save_pretrained` names them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder, "model.safetensors"))


VARIANTS: dict[tuple[str, str], Variant] = {
    ("gpt-oss GptOss20B", "MXFP4"): with_packed_experts,
    ("glm4-moe Air", "with its predict layer"): with_predict_layer,
    ("glm4 Glm", "as first published"): as_chatglm,
}


# The engines
# ----------------------------------------------------------------------


@torch.inference_mode()
def by_transformers(model: nn.Module, task: Task) -> Answer:
    """Greedy, without a cache."""
    token_ids, logits = [], []
    for prompt in task.prompts:
        ids, rows_NV = list(prompt), []
        for _ in range(NUM_TOKENS):
            rows_NV.append(
                model(torch.tensor([ids]), use_cache=False).logits[0, -1].float().numpy()
            )
            ids.append(int(rows_NV[-1].argmax()))
        token_ids.append(ids[len(prompt) :])
        logits.append(np.stack(rows_NV))
    return Answer([], token_ids, logits, 0.0)


def by_inferno(path: Path, task: Task, disable: frozenset[str]) -> Answer:
    plan = resolve(
        str(path), Options(**{**OPTIONS, "max_model_len": MAX_MODEL_LEN, "disable": disable})
    )
    outcomes = generate(Toy(plan, load_model(reopen(plan))), task.prompts, NUM_TOKENS)
    logits: list[Array] = [outcome.logits_NV.numpy() for outcome in outcomes]
    return Answer([], [list(outcome.token_ids) for outcome in outcomes], logits, 0.0)


# The run
# ----------------------------------------------------------------------


@dataclass
class Row:
    """One case: what was compared, by name; what is missing, with the reason."""

    case: Case
    converter: str = ""
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        if WRITTEN in self.comparisons:
            return self.comparisons[WRITTEN].right or str(self.case) in LLAMA_CPP_DIFFERS
        beside = [
            name
            for name in COLUMNS
            if name.startswith("transformers") or str(self.case) not in LLAMA_CPP_DIFFERS
        ]
        return all(name in self.comparisons and self.comparisons[name].right for name in beside)


def measure(case: Case, converter: LlamaCpp, llama: LlamaCpp, disable: frozenset[str]) -> Row:
    row = Row(case)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "toy")
        model = save(case, source)
        task = Task([], ragged_prompts(int(model.get_input_embeddings().weight.shape[0]), LENGTHS))
        reference = by_transformers(model, task)
        near = NEAR_GELU if "gelu" in str(model.config) else NEAR["F32"]
        for kind in KINDS:
            path, values = Path(folder, f"{kind}.gguf"), Path(folder, f"{kind}-values.gguf")
            try:
                row.converter = converter.ask(
                    "convert", source=str(source), kind=kind, path=str(path)
                )["converter"]
                ours = by_inferno(path, task, disable)
                if kind != "Q8_0":
                    row.comparisons[f"transformers {kind}"] = compare(ours, reference, NEAR["F32"])
                if kind != "F16":
                    same = kind == "F32" and case.variant != "MXFP4"
                    if not same:
                        llama.ask("values", path=str(path), target=str(values))
                    answer = theirs(
                        llama, str(path if same else values), task, NUM_TOKENS, MAX_MODEL_LEN
                    )
                    row.comparisons[f"llama.cpp {kind}"] = compare(ours, answer, near)
                    if kind == "F32":
                        row.comparisons["llama.cpp beside transformers"] = compare(
                            answer, reference, near
                        )
            except (InfernoError, Refused) as error:
                row.missing[kind] = str(error)
    return row


def measure_written(case: Case, llama: LlamaCpp) -> Row:
    """Compare what llama.cpp computes with a file of `inferno convert`."""
    row = Row(case, "inferno")
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "toy"), Path(folder, "toy.gguf")
        model = save(case, source)
        (source / "tokenizer.json").write_bytes(tiny_tokenizer())
        task = Task([], ragged_prompts(int(model.get_input_embeddings().weight.shape[0]), LENGTHS))
        near = NEAR_GELU if "gelu" in str(model.config) else NEAR["F32"]
        try:
            convert(str(source), "f32", path)
            answer = theirs(llama, str(path), task, NUM_TOKENS, MAX_MODEL_LEN)
            row.comparisons[WRITTEN] = compare(answer, by_transformers(model, task), near)
        except (InfernoError, Refused) as error:
            row.missing["F32"] = str(error)
    return row


def report(rows: list[Row], columns: Sequence[str]) -> Iterator[str]:
    yield (
        f"Greedy tokens that are equal, of {len(LENGTHS)} x {NUM_TOKENS}, and the largest "
        f"difference between logits where the"
    )
    yield "contexts were equal, in standard deviations of the logits.\n"
    yield "| family | config | converter | " + " | ".join(columns) + " |"
    yield "|---|---|---|" + "---|" * len(columns)
    for row in rows:
        cells = [row.comparisons.get(name) for name in columns]
        shown = [
            f"{c.equal}/{c.total} {c.furthest:.0e}{'' if c.right else ' DIFFERENT'}" if c else "-"
            for c in cells
        ]
        name = " ".join(filter(None, (row.case.name, row.case.variant)))
        yield f"| {row.case.family} | {name} | {row.converter} | {' | '.join(shown)} |"
    for row in rows:
        for reason in dict.fromkeys(row.missing.values()):
            kinds = ", ".join(kind for kind, given in row.missing.items() if given == reason)
            yield f"\n{row.case} {kinds}: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path, help="of llama.cpp: its converter and gguf-py")
    parser.add_argument(
        "--llama",
        type=Path,
        default=LLAMA,
        help="python of an environment with llama-cpp-python and gguf",
    )
    parser.add_argument("--families", nargs="+", help="only these: qwen3 gemma ...")
    parser.add_argument(
        "--written", action="store_true", help="compare the files that inferno writes instead"
    )
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    converter, llama = (
        LlamaCpp(Path(sys.executable), "gguf_convert.py", str(args.checkout)),
        LlamaCpp(args.llama),
    )
    installed = {plugin.distribution for plugin in load_catalog().plugins}
    rows = []
    for case in cases(args.families):
        # Files of Mistral and Llama are one another's, and Llama's plugin reads both where it is
        # installed.
        unwanted = {NATIVE, "inferno-llama"} if case.family == "mistral" else {NATIVE}
        if args.written:
            rows.append(measure_written(case, llama))
        else:
            rows.append(measure(case, converter, llama, frozenset(unwanted & installed)))
        print(
            f"{case}: {'as it should be' if rows[-1].right else 'DIFFERENT'}",
            file=sys.stderr,
            flush=True,
        )
    converter.close()
    llama.close()
    print("\n".join(report(rows, [WRITTEN] if args.written else COLUMNS)))
    if not all(row.right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
