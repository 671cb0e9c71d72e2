"""Latent attention of DeepSeek's models, with an index where they have one."""

from __future__ import annotations

from inferno.nn import LatentAttention
from inferno_deepseek.config import DeepseekConfig
from inferno_deepseek.indexed_config import IndexedConfig
from inferno_deepseek.indexer import Indexer


def latent_attention(config: DeepseekConfig, layer_id: int) -> LatentAttention:
    """Build a layer's attention."""
    indexer: Indexer | None = None
    if isinstance(config, IndexedConfig) and not config.shares(layer_id):
        indexer = Indexer(config, config.index_spec(layer_id))
    return LatentAttention(
        layer_id,
        config.attention_spec(layer_id),
        hidden_size=config.hidden_size,
        nope=config.qk_nope_head_dim,
        rotated=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        q_lora_rank=config.q_lora_rank,
        indexer=indexer,
    )
