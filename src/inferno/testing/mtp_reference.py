"""Multi-token prediction by its definition, for tests: whole sequences, no cache.

Suffixes: L tokens of a sequence, D hidden.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from safetensors.torch import load_file
from torch import Tensor

from inferno.contracts import Lookahead
from inferno.testing.reference import transformers_model


def layers(config: Mapping[str, Any]) -> range:
    """The numbers under which the layers are stored."""
    first = int(config["num_hidden_layers"])
    return range(first, first + int(config["num_nextn_predict_layers"]))


@frozen(eq=False)
class MTPReference:
    """A model with multi-token-prediction layers by the definition: over whole sequences, without a
    cache, in float32."""

    model: Any
    """transformers', with the decoder layers of multi-token prediction after its own."""
    further: Sequence[Mapping[str, Tensor]]
    """The other tensors of each multi-token-prediction layer."""
    num_layers: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> MTPReference:
        num_layers, behind = config["num_hidden_layers"], layers(config)
        model: Any = transformers_model({**config, "num_hidden_layers": behind.stop})
        model.config.num_hidden_layers = num_layers  # its forward pass ends there
        draw, size = torch.Generator().manual_seed(1), config["hidden_size"]

        def norm() -> Tensor:
            return 1 + 0.2 * torch.randn(size, generator=draw)

        further = [
            {
                "enorm": norm(),
                "hnorm": norm(),
                "eh_proj": torch.randn(size, 2 * size, generator=draw) * (2 * size) ** -0.5,
                "shared_head.norm": norm(),
            }
            for _ in behind
        ]
        return cls(model, further, num_layers)

    def tensors(self, folder: Path) -> dict[str, Tensor]:
        """Every tensor as checkpoints store it, with the copies of embedding and head."""
        config = self.model.config
        config.num_hidden_layers += len(self.further)
        self.model.save_pretrained(folder)
        config.num_hidden_layers = self.num_layers
        tensors = {n: t.clone() for n, t in load_file(folder / "model.safetensors").items()}
        embedding = tensors["model.embed_tokens.weight"]
        for i, weights in enumerate(self.further):
            stored = {
                **weights,
                "embed_tokens": embedding,
                "shared_head.head": tensors.get("lm_head.weight", embedding),
            }
            prefix = f"model.layers.{self.num_layers + i}."
            tensors |= {f"{prefix}{name}.weight": t.clone() for name, t in stored.items()}
        return tensors

    @torch.no_grad()
    def predict(self, token_ids: Sequence[int], drafts: Sequence[int]) -> list[Tensor]:
        """Return the logits of each draft after `token_ids`, given the drafts before it."""
        known, depth = len(token_ids), len(self.further)
        ids_L = torch.tensor([*token_ids, *drafts])
        x_LD = self.model.model(ids_L[None, : known - 1]).last_hidden_state[0]
        logits = []
        for j in range(len(drafts)):
            layer = min(j, depth - 1)
            if j < depth:
                inputs_LD = x_LD
            else:  # the last layer goes on with its own output
                inputs_LD = torch.cat([inputs_LD, x_LD[-1:]])
            x_LD = self._layer(layer, inputs_LD, ids_L[layer + 1 :][: len(inputs_LD)])
            logits.append(F.linear(x_LD[-1], self.model.lm_head.weight))
        return logits

    def _layer(self, layer: int, x_LD: Tensor, ids_L: Tensor) -> Tensor:
        weights, inner, eps = self.further[layer], self.model.model, self.model.config.rms_norm_eps

        def norm(x: Tensor, name: str) -> Tensor:
            y: Tensor = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weights[name]
            return y

        both = torch.cat([norm(inner.embed_tokens(ids_L), "enorm"), norm(x_LD, "hnorm")], -1)
        h_1LD = F.linear(both, weights["eh_proj"])[None]
        positions = torch.arange(len(x_LD))[None]
        hidden = torch.full((len(x_LD), len(x_LD)), float("-inf")).triu(1)
        y = inner.layers[self.num_layers + layer](
            h_1LD,
            attention_mask=hidden[None, None],
            position_ids=positions,
            position_embeddings=inner.rotary_emb(h_1LD, positions),
        )
        y_1LD: Tensor = y[0] if isinstance(y, tuple) else y
        return norm(y_1LD[0], "shared_head.norm")


class SpyLookahead:
    """A `Lookahead` that records the logits of every draft, by row."""

    def __init__(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead
        self.batch, self.write = lookahead.batch, lookahead.write
        self.logits = defaultdict[int, list[Tensor]](list)

    def draw_draft(self, logits_SV: Tensor, rows: Sequence[int], offset: int) -> list[int]:
        for row, logits_V in zip(rows, logits_SV, strict=True):
            self.logits[row].append(logits_V)
        return self._lookahead.draw_draft(logits_SV, rows, offset)
