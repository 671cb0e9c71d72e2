"""Encoders of the BERT family for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from collections.abc import Sequence

from inferno import hookimpl
from inferno.contracts import Architecture

_TABLES = ("*.position_embeddings", "*.token_type_embeddings")


def _bert(
    names: Sequence[str], model_types: Sequence[str] = (), checkpoints: Sequence[str] = ()
) -> Architecture:
    """Declare a class and other classes of the same model. Whether it classifies is in its name."""
    name, *aliases = names
    classifies = name.endswith("ForSequenceClassification")
    return Architecture(
        name=name,
        aliases=tuple(aliases),
        model_types=tuple(model_types),
        config=f"inferno_bert.config:{'Roberta' if 'oberta' in name.lower() else 'Bert'}Config"
        ".from_json",
        build=f"inferno_bert.bert:{'Classifier' if classifies else 'Encoder'}",
        adapt=f"inferno_bert.stored:{'classifier' if classifies else 'encoder'}",
        unquantized=_TABLES,
        checkpoints=tuple(checkpoints),
    )


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        _bert(
            ("BertModel", "BertForMaskedLM", "BertForPreTraining"),
            ("bert",),
            (
                "sentence-transformers/all-MiniLM-L6-v2",
                "BAAI/bge-small-en-v1.5",
                "BAAI/bge-base-en-v1.5",
                "BAAI/bge-large-en-v1.5",
                "intfloat/e5-base-v2",
                "thenlper/gte-base",
                "mixedbread-ai/mxbai-embed-large-v1",
                "Snowflake/snowflake-arctic-embed-m",
            ),
        ),
        _bert(
            ("BertForSequenceClassification",),
            checkpoints=("cross-encoder/ms-marco-MiniLM-L6-v2",),
        ),
        _bert(
            (
                "XLMRobertaModel",
                "RobertaModel",
                "CamembertModel",
                "XLMRobertaForMaskedLM",
                "RobertaForMaskedLM",
            ),
            ("xlm-roberta", "roberta", "camembert"),
            ("BAAI/bge-m3", "intfloat/multilingual-e5-large"),
        ),
        _bert(
            ("XLMRobertaForSequenceClassification", "RobertaForSequenceClassification"),
            checkpoints=("BAAI/bge-reranker-v2-m3", "BAAI/bge-reranker-base"),
        ),
    ]
