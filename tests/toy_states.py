"""A toy model with recurrent layers, beside attention or alone, and its naive reference.

A recurrent layer's output depends on every token before it: a sum that decays, and a convolution
over three tokens. Suffixes: T packed tokens, S sequences, L tokens of one, D hidden, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from safetensors.torch import save_file
from torch import Tensor, nn

from inferno.catalog import Catalog, Offer
from inferno.configs import read_config
from inferno.contracts import Architecture, AttentionSpec, CacheTensor, StateSpec
from inferno.nn import Attention, Embedding, Linear, RMSNorm, State, TiedLMHead
from inferno.nn.batch import Batch
from inferno.testing.tiny import torch_only

DECAY, TAPS, HEADS = 0.9, (0.5, -0.25), 2


@frozen(kw_only=True)
class ToyConfig:
    vocab_size: int
    hidden_size: int
    layers: tuple[str, ...]
    """Each "state", "attention" or "window"."""
    max_position_embeddings: int = 512
    window: int = 24

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> ToyConfig:
        return read_config(cls, config)

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        size = self.hidden_size
        state = StateSpec(
            tensors={
                "sum": CacheTensor((size,), "float32"),
                "conv": CacheTensor((len(TAPS), size), "compute"),
            }
        )
        attention = AttentionSpec(
            num_heads=HEADS, num_kv_heads=HEADS, head_dim=size // HEADS, scale=0.3
        )
        window = attrs.evolve(attention, sliding_window=self.window)
        kinds: dict[str, AttentionSpec | StateSpec] = {
            "state": state,
            "attention": attention,
            "window": window,
        }
        return [kinds[layer] for layer in self.layers]


class ToyRecurrence(nn.Module):
    def __init__(self, layer_id: int, spec: StateSpec, size: int) -> None:
        super().__init__()
        self.state = State(layer_id, spec)
        self.v_proj, self.o_proj = Linear(size, size), Linear(size, size)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        states, v_TD = self.state.load(batch), self.v_proj(x_TD).float()
        outputs, sums, last = [], [], []
        first = count()
        for s, (i, j) in enumerate(zip(batch.query_starts, batch.query_starts[1:], strict=False)):
            if not batch.follows or not batch.follows[s]:
                row = next(first)
                sum_D, before_KD = states["sum"][row], states["conv"][row].float()
            for v_D in v_TD[i:j]:
                sum_D = DECAY * sum_D + v_D
                outputs.append(sum_D + sum(t * b for t, b in zip(TAPS, before_KD, strict=True)))
                before_KD = torch.cat([v_D[None], before_KD[:-1]])
            sums.append(sum_D)
            last.append(before_KD)
        self.state.store(batch, sum=torch.stack(sums), conv=torch.stack(last))
        y_TD: Tensor = self.o_proj(torch.stack(outputs).to(x_TD.dtype))
        return y_TD


class ToyAttention(nn.Module):
    def __init__(self, layer_id: int, spec: AttentionSpec, size: int) -> None:
        super().__init__()
        self.attention = Attention(layer_id, spec)
        self.v_proj, self.o_proj = Linear(size, size), Linear(size, size)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        v_TD = self.v_proj(x_TD)
        y_TD: Tensor = self.o_proj(self.attention(x_TD, v_TD, v_TD, batch))
        return y_TD


class ToyForCausalLM(nn.Module):
    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.embed = Embedding(config.vocab_size, size)
        self.layers = nn.ModuleList(
            ToyRecurrence(i, spec, size)
            if isinstance(spec, StateSpec)
            else ToyAttention(i, spec, size)
            for i, spec in enumerate(config.cache_specs())
        )
        self.norms = nn.ModuleList(RMSNorm(size, 1e-6) for _ in (*config.layers, None))
        self.head = TiedLMHead(self.embed)

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.embed(batch.token_ids_T)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x_TD = x_TD + layer(norm(x_TD), batch)
        y_TD: Tensor = self.norms[-1](x_TD)
        return y_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = self.head(x_SD)
        return y_SV


ARCHITECTURE = Architecture(name="ToyForCausalLM", config=ToyConfig.from_json, build=ToyForCausalLM)


def catalog_with_toy(installed: Catalog | None = None) -> Catalog:
    """What is installed, less the kernels unless told otherwise, and the toy."""
    catalog = installed or torch_only()
    offers = (Offer(ARCHITECTURE, "inferno"), *catalog.of("inferno_architectures"))
    return Catalog(catalog.plugins, {**catalog.offers, "inferno_architectures": offers})


def write_toy(folder: Path, layers: Sequence[str], *, size: int = 32, vocab: int = 64) -> str:
    """A checkpoint of random weights, which are bfloat16 numbers."""
    generator = torch.Generator().manual_seed(len(layers))

    def random(*shape: int) -> Tensor:
        values: Tensor = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        rounded: Tensor = values.bfloat16().float()
        return rounded

    tensors = {"embed.weight": random(vocab, size) * 4}
    for i in range(len(layers) + 1):
        tensors[f"norms.{i}.weight"] = 1 + random(size)
    for i in range(len(layers)):
        for name in ("v_proj", "o_proj"):
            tensors[f"layers.{i}.{name}.weight"] = random(size, size)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["ToyForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": size,
        "layers": list(layers),
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def naive_logits(
    tensors: Mapping[str, Tensor], config: ToyConfig, token_ids: Sequence[int]
) -> Tensor:
    """Logits after every token of one sequence, (L, V), in float64 and all at once."""
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    length = len(token_ids)
    back_LL = torch.arange(length)[:, None] - torch.arange(length)

    def normed(x_LD: Tensor, i: int) -> Tensor:
        scale = (x_LD.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return x_LD * scale * weights[f"norms.{i}.weight"]

    x_LD = weights["embed.weight"][list(token_ids)]
    for i, kind in enumerate(config.layers):
        h_LD = normed(x_LD, i)
        v_LD = h_LD @ weights[f"layers.{i}.v_proj.weight"].T
        if kind == "state":
            decays_LL = (DECAY ** back_LL.double()).masked_fill(back_LL < 0, 0)
            y_LD = decays_LL @ v_LD
            for distance, tap in enumerate(TAPS, 1):
                y_LD[distance:] += tap * v_LD[:-distance]
        else:
            hidden_LL = back_LL < 0
            if kind == "window":
                hidden_LL |= back_LL >= config.window
            q_HLC, v_HLC = (t.view(len(t), HEADS, -1).transpose(0, 1) for t in (h_LD, v_LD))
            scores_HLL = 0.3 * q_HLC @ v_HLC.transpose(1, 2)
            weights_HLL = scores_HLL.masked_fill(hidden_LL, float("-inf")).softmax(-1)
            y_LD = (weights_HLL @ v_HLC).transpose(0, 1).flatten(1)
        x_LD = x_LD + y_LD @ weights[f"layers.{i}.o_proj.weight"].T
    return normed(x_LD, len(config.layers)) @ weights["embed.weight"].T
