"""The bodies of /v1/embeddings, /v1/rerank and /v1/score, and the support of their fields."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from inferno.server.fields.support import Field, honoured

_MODEL = "A served name; the served model when left out."
_COMMON = honoured(
    model=_MODEL,
    priority="Lower runs first.",
    cache_salt="Only requests with equal salts share cached prefixes; at most 128 characters.",
    request_id="Returned as the header x-request-id, unless the request has that header.",
)
_NO_EFFECT = (Field("user", "accepted", "The end user's name is not used."),)
_TEXT_ONLY = "Leave it out: input is text only."
_REFUSED = (
    Field("mm_processor_kwargs", "refused", _TEXT_ONLY, harmless=({},)),
    Field("additional_data", "refused", "Leave it out."),
)

EMBEDDINGS = (
    *honoured(
        input="A string, a list of strings, token ids, or a list of those; at most 2048.",
        encoding_format="float, or base64 of little-endian float32.",
        dimensions="Cuts vectors to this size and normalizes them, if config.json says that the "
        "model was trained for it (`is_matryoshka`, `matryoshka_dimensions`), or if it is the "
        "model's own size; else a 400.",
        pooling="last, first, mean, max, weighted_mean or mean_sqrt_len; the checkpoint's own when "
        "left out (`modules.json`), else last, or mean for an encoder.",
        prompt_name="Which of the checkpoint's prompts is written before strings (`query`); empty: "
        "none; its default when left out (`config_sentence_transformers.json`).",
        normalize="Whether vectors have length 1; the checkpoint's own when left out, else true.",
        add_special_tokens="Whether the tokenizer adds its own; true unless said.",
        truncate_prompt_tokens="Cuts longer inputs to this number of tokens, at the end; -1 is "
        "the context. Without it, an input that is too long gets a 400.",
    ),
    *_COMMON,
    *_NO_EFFECT,
    *_REFUSED,
    Field("messages", "refused", "Send strings as input."),
    Field("embed_dtype", "refused", "Vectors are float32.", harmless=("float32",)),
    Field("endianness", "refused", "base64 is little-endian.", harmless=("little", "native")),
)

RERANK = (
    *honoured(
        query="The string that documents are compared with.",
        documents="Strings, or objects with `text`; at most 1024.",
        top_n="Number of results, best first; all when left out.",
        return_documents="Whether results have `document`; true unless said, as in Jina's API.",
        instruction="What the query asks for, if the model reads an instruction; its own when "
        "left out.",
        max_tokens_per_doc="Cuts longer documents to this number of tokens.",
    ),
    *_COMMON,
    *_NO_EFFECT,
    *_REFUSED,
    Field("rank_fields", "accepted", "Of objects, `text` is read.", harmless=(["text"], [])),
    Field("max_chunks_per_doc", "accepted", "A document is one chunk.", harmless=(1,)),
    Field("truncate_prompt_tokens", "refused", "Use max_tokens_per_doc."),
)

SCORE = (
    *honoured(
        text_1="A string, or a list of strings.",
        text_2="A string, or a list: as long as text_1, or text_1 is one string.",
        instruction="As in rerank.",
    ),
    *_COMMON,
    *_NO_EFFECT,
    *_REFUSED,
    Field("truncate_prompt_tokens", "refused", "Shorten the strings before they are sent."),
)


@frozen(kw_only=True)
class PoolingRequest:
    """What these bodies have in common."""

    model: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None


@frozen(kw_only=True)
class EmbeddingRequest(PoolingRequest):
    """The body of POST /v1/embeddings."""

    path: ClassVar[str] = "/v1/embeddings"
    rows: ClassVar[tuple[Field, ...]] = EMBEDDINGS

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None


@frozen(kw_only=True)
class RerankRequest(PoolingRequest):
    """The body of POST /v1/rerank, in the form of Jina's and Cohere's APIs."""

    path: ClassVar[str] = "/v1/rerank"
    rows: ClassVar[tuple[Field, ...]] = RERANK

    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None
    max_tokens_per_doc: int | None = None


@frozen(kw_only=True)
class ScoreRequest(PoolingRequest):
    """The body of POST /v1/score, in vLLM's form."""

    path: ClassVar[str] = "/v1/score"
    rows: ClassVar[tuple[Field, ...]] = SCORE

    text_1: str | list[str]
    text_2: str | list[str]
    instruction: str | None = None
