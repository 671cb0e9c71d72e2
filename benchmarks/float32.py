"""The float32 reference of a GGUF file: transformers' model of it, whose weights are dequantized by
gguf-py. Nothing of inferno is in it.

Suffixes: L tokens of a text, D hidden size, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from attrs import frozen
from torch import Tensor

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@frozen(eq=False)
class Reference:
    """A Llama with a tied head."""

    model: Any

    @classmethod
    def of_gguf(cls, path: str | os.PathLike[str]) -> Reference:
        from transformers import LlamaConfig, LlamaForCausalLM

        reader = gguf.GGUFReader(Path(path))

        def field(name: str) -> Any:
            entry = reader.get_field(f"llama.{name}")
            assert entry is not None, f"{path}: a Llama's file has llama.{name}"
            return entry.contents()

        heads, key_heads = field("attention.head_count"), field("attention.head_count_kv")
        config = LlamaConfig(
            vocab_size=field("vocab_size"),
            hidden_size=field("embedding_length"),
            intermediate_size=field("feed_forward_length"),
            num_hidden_layers=field("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            max_position_embeddings=field("context_length"),
            rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
            rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
            tie_word_embeddings=True,
        )
        with torch.device("meta"):
            model: Any = LlamaForCausalLM(config)
        weights = {}
        for stored in reader.tensors:
            value = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
            module, parameter = stored.name.rsplit(".", 1)
            if module.startswith("blk."):
                _, layer, module = module.split(".")
                if module in ("attn_q", "attn_k"):
                    value = _halves(value, heads if module == "attn_q" else key_heads)
                weights[f"model.layers.{layer}.{_NAMES[module]}.{parameter}"] = value
            else:
                weights[f"{_NAMES[module]}.{parameter}"] = value
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        rotary = model.model.rotary_emb
        model.model.rotary_emb = type(rotary)(config)  # its tables are not weights
        return cls(model.eval())

    def hidden(self, token_ids: Sequence[int]) -> Tensor:
        """The final hidden states of a text, (L, D)."""
        with torch.inference_mode():
            states_LD: Tensor = self.model.model(torch.tensor([list(token_ids)])).last_hidden_state[
                0
            ]
        return states_LD

    def logits(self, token_ids: Sequence[int], first: int = 0) -> Tensor:
        """The logits at a text's positions from `first` on, (L - first, V)."""
        with torch.inference_mode():
            logits_LV: Tensor = self.model.lm_head(self.hidden(token_ids)[first:])
        return logits_LV

    def logprobs(self, token_ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The log-probability of each token but the first after those before it, (L - 1,)."""
        chunks = []
        states_LD = self.hidden(token_ids)[:-1]
        targets_L = torch.tensor(list(token_ids)[1:])
        with torch.inference_mode():
            for states_KD, targets_K in zip(
                states_LD.split(256), targets_L.split(256), strict=True
            ):
                logprobs_KV = self.model.lm_head(states_KD).double().log_softmax(-1)
                chunks.append(logprobs_KV.gather(-1, targets_K[:, None])[:, 0].float())
        return torch.cat(chunks).numpy()

    def greedy(
        self, prompt: Sequence[int], max_tokens: int, end: int
    ) -> tuple[list[int], list[float]]:
        """The most likely tokens after a prompt, `end` included, and by how much each one's logit
        is above the second best."""
        cache, given = None, list(prompt)
        tokens, margins = list[int](), list[float]()
        with torch.inference_mode():
            while len(tokens) < max_tokens and tokens[-1:] != [end]:
                done = self.model(torch.tensor([given]), past_key_values=cache, use_cache=True)
                best = done.logits[0, -1].topk(2)
                cache, given = done.past_key_values, [int(best.indices[0])]
                tokens += given
                margins.append(float(best.values[0] - best.values[1]))
        return tokens, margins


def _halves(rows: Tensor, heads: int) -> Tensor:
    """Rows of rotary heads in halves, as transformers rotates them, of rows in pairs, as a file has
    them."""
    return rows.view(heads, -1, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)
