"""Scores pairs of strings: a query and a document. A reranker judges each pair by its next token, a
cross-encoder by its head; an embedding model compares their vectors."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferno.errors import RequestError
from inferno.llm.pooling import Classifier, Judge, Recipe
from inferno.request.requests import Reduction
from inferno.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inferno.llm.outputs import TextDelta
    from inferno.llm.preprocessor import Preprocessor
    from inferno.text import ChatTemplate, Tokenizer

Pair = tuple[str, str]
MAX_PAIRS = 1024
"""Of a request."""
_DOCUMENTS = ("document", "passage", "corpus")
"""Names of the prompt of documents, as sentence-transformers looks for it."""
_MAX_QUERIES = 16_000_000
"""Maximum characters of the queries in the prompts of one request."""


class PairScoring(ABC):
    """The prompts of some pairs, and what their scores are made of."""

    method: str
    """How a score is made, for people."""
    params = SamplingParams(max_tokens=1)
    pooling: Reduction | None = None

    def __init__(self, prompts: list[tuple[int, ...]], seconds: Sequence[int] = ()) -> None:
        self.prompts = prompts
        """The token ids of each."""
        self.seconds = seconds
        """Where the second text of each begins, if the model needs to know."""

    def numbers(self, result: TextDelta) -> Sequence[float]:
        """Return what a prompt's only step computed for `scores`."""
        return result.embedding or ()

    @abstractmethod
    def scores(self, numbers: Sequence[Sequence[float]]) -> list[float]:
        """Return each pair's score, of the `numbers` of each prompt: 0 to 1, a cosine, or a
        logit."""


def scoring_of(
    preprocessor: Preprocessor,
    pairs: Sequence[Pair],
    *,
    instruction: str | None = None,
    max_tokens_per_doc: int | None = None,
    asymmetric: bool = False,
) -> PairScoring:
    """Return how the model scores pairs. `asymmetric`: the first of each pair is a query, which
    some embedding models need to know. Raises RequestError."""
    pooling = preprocessor.pooling
    if pooling.classifier is not None:
        return _classified(preprocessor, pairs, pooling.classifier, instruction, max_tokens_per_doc)
    if pooling.judge is not None and not pooling.is_embedder:
        judge = pooling.judge
        wanted = judge.instruction if instruction is None else instruction
        prompts, _ = _prompts(preprocessor, pairs, judge.template, wanted, max_tokens_per_doc)
        return JudgedPairs(judge, prompts)
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
    return _compared(preprocessor, pairs, max_tokens_per_doc, asymmetric)


def _classified(
    preprocessor: Preprocessor,
    pairs: Sequence[Pair],
    classifier: Classifier,
    instruction: str | None,
    max_tokens_per_doc: int | None,
) -> PairScoring:
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
    prompts, seconds = _prompts(preprocessor, pairs, template, wanted, max_tokens_per_doc)
    return ClassifiedPairs(classifier, prompts, seconds)


def _prompts(
    preprocessor: Preprocessor,
    pairs: Sequence[Pair],
    template: ChatTemplate | None,
    instruction: str,
    max_tokens_per_doc: int | None,
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return each pair's prompt, rendered by the template or joined by the tokenizer, and where its
    second text begins. Raises RequestError."""
    tokenizer = preprocessor.needed_tokenizer("query")

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
            "the query is too long for this many documents: it is repeated in the prompt of each",
            "Send fewer documents, or a shorter query.",
            param="documents",
        )
    for query, document in pairs:
        preprocessor.check_characters(len(query), "query")
        if max_tokens_per_doc is None:
            preprocessor.check_characters(len(document), "documents")
    encoded = [encode_one(*pair) for pair in pairs]
    return [ids for ids, _ in encoded], [second for _, second in encoded]


def _compared(
    preprocessor: Preprocessor,
    pairs: Sequence[Pair],
    max_tokens_per_doc: int | None,
    asymmetric: bool,
) -> PairScoring:
    recipe = preprocessor.pooling.recipe(normalize=True)
    tokenizer = preprocessor.needed_tokenizer("query")
    before_query = before_document = recipe.prompt
    if asymmetric:
        prompts = preprocessor.pooling.prompts
        before_query = prompts.get("query", recipe.prompt)
        kind = next((name for name in _DOCUMENTS if name in prompts), "")
        before_document = prompts.get(kind, recipe.prompt)
    rows = [
        (before_query + query, before_document + _cut(tokenizer, document, max_tokens_per_doc))
        for query, document in pairs
    ]
    texts = list(dict.fromkeys(text for row in rows for text in row))
    for text in texts:
        preprocessor.check_characters(len(text), "documents")
    at = {text: i for i, text in enumerate(texts)}
    ids = [tuple(tokenizer.encode(text, add_special_tokens=True)) for text in texts]
    return ComparedPairs(ids, [(at[query], at[document]) for query, document in rows], recipe)


def _cut(tokenizer: Tokenizer, document: str, limit: int | None) -> str:
    if limit is None:
        return document
    document = document[: (limit + 1) * tokenizer.longest_token]
    ids = tokenizer.encode(document, add_special_tokens=False)
    return document if len(ids) <= limit else tokenizer.decode(ids[:limit])


class JudgedPairs(PairScoring):
    """One prompt for each pair: the numbers are two log-probabilities."""

    method = "probability of the token that means relevant"

    def __init__(self, judge: Judge, prompts: list[tuple[int, ...]]) -> None:
        super().__init__(prompts)
        self.params = SamplingParams(
            max_tokens=1, temperature=0, logprobs=0, logprob_token_ids=(judge.yes, judge.no)
        )

    def numbers(self, result: TextDelta) -> Sequence[float]:
        return [logprob for _, logprob in result.logprobs[0].top] if result.logprobs else ()

    def scores(self, numbers: Sequence[Sequence[float]]) -> list[float]:
        return [_probability(yes, no) for yes, no in numbers]


class ClassifiedPairs(PairScoring):
    """One prompt for each pair: the number is its logit."""

    pooling = "score"

    def __init__(
        self, classifier: Classifier, prompts: list[tuple[int, ...]], seconds: Sequence[int]
    ) -> None:
        super().__init__(prompts, seconds)
        self._sigmoid = classifier.sigmoid
        self.method = "sigmoid of the label's logit" if self._sigmoid else "logit of the label"

    def scores(self, numbers: Sequence[Sequence[float]]) -> list[float]:
        return [_sigmoid(logit) if self._sigmoid else logit for logit, *_ in numbers]


class ComparedPairs(PairScoring):
    """One prompt for each different string: the numbers are its vector."""

    method = "cosine similarity"

    def __init__(
        self, prompts: list[tuple[int, ...]], pairs: Sequence[tuple[int, int]], recipe: Recipe
    ) -> None:
        super().__init__(prompts)
        self.pooling = recipe.pooling
        self._pairs, self._recipe = pairs, recipe

    def scores(self, numbers: Sequence[Sequence[float]]) -> list[float]:
        vectors = self._recipe.finish(numbers)
        return [sum(map(operator.mul, vectors[i], vectors[j])) for i, j in self._pairs]


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + math.exp(-x))


def _probability(yes: float, no: float) -> float:
    """Return the probability of the first of two tokens among both."""
    return 0.5 if math.isinf(yes) and math.isinf(no) else _sigmoid(yes - no)


def paired(text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[Pair]:
    """Return the pairs of strings: one with one, one with each of many, or many with as many.
    Raises RequestError."""
    ones, twos = ([text] if isinstance(text, str) else list(text) for text in (text_1, text_2))
    if len(ones) == 1:
        ones = ones * len(twos)
    if len(ones) != len(twos) or not 0 < len(ones) <= MAX_PAIRS:
        raise RequestError(
            f"text_1 has {len(ones)} strings, text_2 {len(twos)}",
            f"Send as many of each, 1 to {MAX_PAIRS}, or one text_1.",
            param="text_2",
        )
    for name, texts in (("text_1", ones), ("text_2", twos)):
        if not all(texts):
            raise RequestError(f"{name} has an empty string", "Leave it out.", param=name)
    return list(zip(ones, twos, strict=True))
