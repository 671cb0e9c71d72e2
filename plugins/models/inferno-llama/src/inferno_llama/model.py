"""Llama: the plain decoder that many families are configs of.

https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783; reference: transformers/models/llama.
Suffixes: T packed tokens, D hidden, X heads x head dim, H heads, C head dim, S sampled rows, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.batch import Batch
from inferno.nn import Attention, Embedding, GatedMLP, Linear, LMHead, MergedLinear, RMSNorm, Rope, Rotation, TiedLMHead
from inferno_llama.config import LlamaConfig


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig, layer_id: int) -> None:
        super().__init__()
        need = config.attention_need
        heads_X, kv_heads_X = need.num_heads * need.head_dim, need.num_kv_heads * need.head_dim
        bias = config.attention_bias
        self.head_dim = need.head_dim
        self.qkv = MergedLinear(config.hidden_size, bias=bias, q_proj=heads_X, k_proj=kv_heads_X, v_proj=kv_heads_X)
        self.attention = Attention(layer_id, need)
        self.o_proj = Linear(heads_X, config.hidden_size, bias=bias)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv(x_TD)
        q_THC = rotate(q_TX.unflatten(-1, (-1, self.head_dim)))
        k_THC = rotate(k_TX.unflatten(-1, (-1, self.head_dim)))
        y_TD: Tensor = self.o_proj(self.attention(q_THC.flatten(1), k_THC.flatten(1), v_TX, batch))
        return y_TD


class LlamaLayer(nn.Module):
    def __init__(self, config: LlamaConfig, layer_id: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_id)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x_TD: Tensor, rotate: Rotation, batch: Batch) -> Tensor:
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), rotate, batch)
        y_TD: Tensor = x_TD + self.mlp(self.post_attention_layernorm(x_TD))
        return y_TD


class LlamaModel(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope, max_position_embeddings=config.max_position_embeddings)

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.embed_tokens(batch.token_ids_T)
        rotate = self.rope(batch.positions_T)
        for layer in self.layers:
            x_TD = layer(x_TD, rotate, batch)
        y_TD: Tensor = self.norm(x_TD)
        return y_TD


class LlamaForCausalLM(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaModel(config)
        self.lm_head = (
            TiedLMHead(self.model.embed_tokens)
            if config.tie_word_embeddings
            else LMHead(config.hidden_size, config.vocab_size)
        )

    def forward(self, batch: Batch) -> Tensor:
        x_TD: Tensor = self.model(batch)
        return x_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        y_SV: Tensor = self.lm_head(x_SD)
        return y_SV
