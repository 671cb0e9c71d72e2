"""Encoders of the BERT family for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, Dialect
from inferno_bert.gguf import BERT, BERT_HEAD, MODERN, MODERN_HEAD, NOMIC

_TABLES = ("*.position_embeddings", "*.token_type_embeddings")


def _encoder(
    name: str,
    config: str,
    module: str,
    *,
    aliases: tuple[str, ...] = (),
    model_types: tuple[str, ...] = (),
    checkpoints: tuple[str, ...] = (),
    gguf: Dialect | None = None,
) -> Architecture:
    """Declare a class, `XModel` or `XForSequenceClassification`. `config` is its config class."""
    classifies = name.endswith("ForSequenceClassification")
    gated = "gated_" if module == "gated" else ""
    return Architecture(
        name=name,
        aliases=aliases,
        model_types=model_types,
        config=f"inferno_bert.{config}.from_json",
        build=f"inferno_bert.{module}:{'Classifier' if classifies else 'Encoder'}",
        adapt=f"inferno_bert.stored:{gated}{'classifier' if classifies else 'encoder'}",
        unquantized=_TABLES,
        dialects={} if gguf is None else {"gguf": gguf},
        checkpoints=checkpoints,
    )


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        _encoder(
            "BertModel",
            "config:BertConfig",
            "bert",
            aliases=("BertForMaskedLM", "BertForPreTraining"),
            model_types=("bert",),
            gguf=BERT,
            checkpoints=(
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
        _encoder(
            "BertForSequenceClassification",
            "config:BertConfig",
            "bert",
            checkpoints=("cross-encoder/ms-marco-MiniLM-L6-v2",),
            gguf=BERT_HEAD,
        ),
        _encoder(
            "XLMRobertaModel",
            "config:RobertaConfig",
            "bert",
            aliases=("RobertaModel", "XLMRobertaForMaskedLM", "RobertaForMaskedLM"),
            model_types=("xlm-roberta", "roberta"),
            checkpoints=("BAAI/bge-m3", "intfloat/multilingual-e5-large"),
        ),
        _encoder(
            "XLMRobertaForSequenceClassification",
            "config:RobertaConfig",
            "bert",
            aliases=("RobertaForSequenceClassification",),
            checkpoints=("BAAI/bge-reranker-v2-m3", "BAAI/bge-reranker-base"),
        ),
        _encoder(
            "ModernBertModel",
            "modernbert_config:ModernBertConfig",
            "modernbert",
            aliases=("ModernBertForMaskedLM",),
            model_types=("modernbert",),
            gguf=MODERN,
            checkpoints=("Alibaba-NLP/gte-modernbert-base", "nomic-ai/modernbert-embed-base"),
        ),
        _encoder(
            "ModernBertForSequenceClassification",
            "modernbert_config:ModernBertConfig",
            "modernbert",
            checkpoints=("Alibaba-NLP/gte-reranker-modernbert-base",),
            gguf=MODERN_HEAD,
        ),
        _encoder(
            "NomicBertModel",
            "gated_config:NomicConfig",
            "gated",
            model_types=("nomic_bert",),
            gguf=NOMIC,
            checkpoints=("nomic-ai/nomic-embed-text-v1.5",),
        ),
        _encoder("NomicBertForSequenceClassification", "gated_config:NomicConfig", "gated"),
        _encoder(
            "GteModel",
            "gated_config:GteConfig",
            "gated",
            aliases=("NewModel", "NewForMaskedLM", "NewForTokenClassification", "GteNewModel"),
            model_types=("gte", "new"),
            checkpoints=(
                "Snowflake/snowflake-arctic-embed-m-v2.0",
                "Alibaba-NLP/gte-base-en-v1.5",
                "Alibaba-NLP/gte-large-en-v1.5",
                "Alibaba-NLP/gte-multilingual-base",
            ),
        ),
        _encoder(
            "GteForSequenceClassification",
            "gated_config:GteConfig",
            "gated",
            aliases=("NewForSequenceClassification", "GteNewForSequenceClassification"),
            checkpoints=("Alibaba-NLP/gte-multilingual-reranker-base",),
        ),
    ]
