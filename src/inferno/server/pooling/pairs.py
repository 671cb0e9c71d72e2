"""Scores pairs of strings: a query and a document. A reranker judges each pair by its next token, a
cross-encoder by its head; an embedding model compares their vectors."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferno.errors import RequestError
from inferno.llm.pooling import Classifier, Judge, Recipe
from inferno.request.sampling_params import SamplingParams
from inferno.server.generate.generation import Prepared
from inferno.server.generate.shape import Choice
from inferno.server.hosting.served_model import ServedModel, in_time
from inferno.server.http.parsing import Parsed
from inferno.server.pooling.embeddings import ONE_TOKEN, encode_inputs
from inferno.server.pooling.schema import PoolingRequest
from inferno.server.pooling.shape import Pooled, WholeShape, prepared

if TYPE_CHECKING:
    from inferno.text import ChatTemplate, Tokenizer

Pair = tuple[str, str]
_DOCUMENTS = ("document", "passage", "corpus")
"""Names of the prompt of documents, as sentence-transformers looks for it."""
_MAX_QUERIES = 16_000_000
"""Maximum characters of the queries in the prompts of one request."""


async def prepare_pairs(
    parsed: Parsed[Any],
    model: ServedModel,
    pairs: Sequence[Pair],
    *,
    instruction: str | None,
    max_tokens_per_doc: int | None = None,
    asymmetric: bool = False,
) -> tuple[Prepared, PairScores]:
    """Prepare the scoring of pairs. `asymmetric`: the first of each pair is a query, which some
    embedding models need to know. Raises RequestError."""
    pooling = model.preprocessor.pooling
    if pooling.classifier is not None:
        return await _classified(
            parsed, model, pairs, pooling.classifier, instruction, max_tokens_per_doc
        )
    if pooling.judge is not None and not pooling.is_embedder:
        return await _judged(parsed, model, pairs, pooling.judge, instruction, max_tokens_per_doc)
    if not pooling.is_embedder:
        raise RequestError(
            "this model is neither a reranker nor an embedding model: its checkpoint has no "
            "modules.json and no head of one label, and its architecture declares no way to judge",
            "Serve an embedding model, a reranker that judges by its next token, or a decoder that "
            "classifies with one label (a `score` head).",
            param="model",
        )
    if instruction is not None:
        raise RequestError(
            "instruction is for rerankers; this is an embedding model",
            "Write it into the strings.",
            param="instruction",
        )
    return await _compared(parsed, model, pairs, max_tokens_per_doc, asymmetric)


async def _classified(
    parsed: Parsed[PoolingRequest],
    model: ServedModel,
    pairs: Sequence[Pair],
    classifier: Classifier,
    instruction: str | None,
    max_tokens_per_doc: int | None,
) -> tuple[Prepared, PairScores]:
    if classifier.num_labels != 1:
        raise RequestError(
            f"this model has {classifier.num_labels} labels: none of them is a pair's score",
            "Serve a cross-encoder, which has one label.",
            param="model",
        )
    template = classifier.template
    if template is None and instruction is not None:
        raise RequestError(
            "this model's checkpoint has no chat template for a query, a document and an "
            "instruction",
            "Write the instruction into the query.",
            param="instruction",
        )
    wanted = classifier.instruction if instruction is None else instruction
    prompts, seconds = await _prompts(model, pairs, template, wanted, max_tokens_per_doc)
    ready = prepared(parsed, model, prompts, params=ONE_TOKEN, pooling="score", seconds=seconds)
    return ready, ClassifiedPairs(len(pairs), sigmoid=classifier.sigmoid)


async def _judged(
    parsed: Parsed[PoolingRequest],
    model: ServedModel,
    pairs: Sequence[Pair],
    judge: Judge,
    instruction: str | None,
    max_tokens_per_doc: int | None,
) -> tuple[Prepared, PairScores]:
    wanted = judge.instruction if instruction is None else instruction
    prompts, _ = await _prompts(model, pairs, judge.template, wanted, max_tokens_per_doc)
    params = SamplingParams(
        max_tokens=1, temperature=0, logprobs=0, logprob_token_ids=(judge.yes, judge.no)
    )
    return prepared(parsed, model, prompts, params=params), JudgedPairs(len(pairs))


async def _prompts(
    model: ServedModel,
    pairs: Sequence[Pair],
    template: ChatTemplate | None,
    instruction: str,
    max_tokens_per_doc: int | None,
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return each pair's prompt, rendered by the template or joined by the tokenizer, and where its
    second text begins. Raises RequestError."""
    tokenizer = model.needed_tokenizer("query")

    def encode_one(query: str, document: str) -> tuple[tuple[int, ...], int]:
        document = _cut(tokenizer, document, max_tokens_per_doc)
        if template is None:
            ids, second = tokenizer.encode_pair(query, document)
            return tuple(ids), second
        messages = [
            *([{"role": "system", "content": instruction}] if instruction else ()),
            {"role": "query", "content": query},
            {"role": "document", "content": document},
        ]
        return tuple(tokenizer.encode(template.render(messages), add_special_tokens=False)), 0

    if sum(len(query) for query, _ in pairs) > _MAX_QUERIES:
        raise RequestError(
            "the query is too long for so many documents: each is judged in its own prompt",
            "Send fewer documents, or a shorter query.",
            param="documents",
        )
    for query, document in pairs:
        model.preprocessor.check_characters(len(query), "query")
        if max_tokens_per_doc is None:
            model.preprocessor.check_characters(len(document), "documents")
    work = lambda: [encode_one(*pair) for pair in pairs]  # noqa: E731
    found = await in_time(work, sum(len(text) for pair in pairs for text in pair))
    return [ids for ids, _ in found], [second for _, second in found]


async def _compared(
    parsed: Parsed[PoolingRequest],
    model: ServedModel,
    pairs: Sequence[Pair],
    max_tokens_per_doc: int | None,
    asymmetric: bool,
) -> tuple[Prepared, PairScores]:
    recipe = model.preprocessor.pooling.recipe(normalize=True)
    tokenizer = model.needed_tokenizer("query")
    before_query = before_document = recipe.prompt
    if asymmetric:
        prompts = model.preprocessor.pooling.prompts
        before_query = prompts.get("query", recipe.prompt)
        kind = next((name for name in _DOCUMENTS if name in prompts), "")
        before_document = prompts.get(kind, recipe.prompt)
    cut = await in_time(
        lambda: [_cut(tokenizer, document, max_tokens_per_doc) for _, document in pairs],
        sum(len(document) for _, document in pairs),
    )
    rows = [
        (before_query + query, before_document + document)
        for (query, _), document in zip(pairs, cut, strict=True)
    ]
    strings = list(dict.fromkeys(text for row in rows for text in row))
    at = {text: i for i, text in enumerate(strings)}
    ids = await encode_inputs(model, strings, param="documents")
    ready = prepared(parsed, model, ids, params=ONE_TOKEN, pooling=recipe.pooling)
    at_each = [(at[query], at[text]) for query, text in rows]
    return ready, ComparedPairs(len(strings), at_each, recipe)


def _cut(tokenizer: Tokenizer, document: str, limit: int | None) -> str:
    if limit is None:
        return document
    document = document[: (limit + 1) * tokenizer.longest_token]
    ids = tokenizer.encode(document, add_special_tokens=False)
    return document if len(ids) <= limit else tokenizer.decode(ids[:limit])


class PairScores(ABC):
    """What is computed for pairs, and the score of each: 0 to 1, a cosine, or a logit."""

    method: str
    choices: Sequence[Any]

    @abstractmethod
    def scores(self) -> list[float]:
        """Return each pair's score."""


class JudgedPairs(PairScores):
    """One prompt for each pair."""

    method = "probability of the token that means relevant"

    def __init__(self, count: int) -> None:
        self.choices = [Choice(i) for i in range(count)]

    def scores(self) -> list[float]:
        return [_probability(choice) for choice in self.choices]


class ClassifiedPairs(PairScores):
    """One prompt for each pair, and one logit for each prompt."""

    def __init__(self, count: int, *, sigmoid: bool) -> None:
        self.choices: Sequence[Pooled] = [Pooled(i) for i in range(count)]
        self.method = "sigmoid of the label's logit" if sigmoid else "logit of the label"
        self._sigmoid = sigmoid

    def scores(self) -> list[float]:
        logits = [choice.vector[0] for choice in self.choices]
        return [_sigmoid(logit) for logit in logits] if self._sigmoid else logits


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + math.exp(-x))


def _probability(choice: Choice) -> float:
    """Return the probability of the first of the two tokens among both."""
    (_, yes), (_, no) = choice.logprobs[0].top
    if math.isinf(yes) and math.isinf(no):
        return 0.5
    return _sigmoid(yes - no)


class ComparedPairs(PairScores):
    """One vector for each different string."""

    method = "cosine similarity"

    def __init__(self, count: int, pairs: Sequence[tuple[int, int]], recipe: Recipe) -> None:
        self.choices: Sequence[Pooled] = [Pooled(i) for i in range(count)]
        self._pairs, self._recipe = pairs, recipe

    def scores(self) -> list[float]:
        vectors = self._recipe.finish([choice.vector for choice in self.choices])
        return [sum(map(operator.mul, vectors[i], vectors[j])) for i, j in self._pairs]


class PairsShape(WholeShape[Any]):
    """An answer made from the scores of pairs."""

    def __init__(self, pairs: PairScores) -> None:
        self.pairs, self.choices = pairs, pairs.choices

    def notes(self) -> dict[str, Any]:
        return {"method": self.pairs.method}
