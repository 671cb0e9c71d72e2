from __future__ import annotations

from typing import Any

from inferno.testing import EncoderTests

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 192,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA: dict[str, Any] = {
    **BERT,
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "max_position_embeddings": 194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


class TestBert(EncoderTests):
    """bge, e5, gte and all-MiniLM."""

    config = BERT


class TestBertThatClassifies(EncoderTests):
    """cross-encoder/ms-marco-MiniLM: one label, of the pooled first token."""

    config = {**BERT, **ONE_LABEL, "architectures": ["BertForSequenceClassification"]}


class TestXLMRoberta(EncoderTests):
    """bge-m3 and multilingual-e5: positions from 2 on, one token type."""

    config = ROBERTA


class TestXLMRobertaThatClassifies(EncoderTests):
    """bge-reranker-v2-m3."""

    config = {**ROBERTA, **ONE_LABEL, "architectures": ["XLMRobertaForSequenceClassification"]}
