"""Embeddings, reranking and scores over a fake model."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from litestar.testing import TestClient
from tests.fake_engine import TOKENIZER
from tests.server.server_fakes import FakeLLM

from inferno.contracts import Reranker, TextAssets
from inferno.llm import TextDelta
from inferno.llm.pooling import Judge, PoolingConfig
from inferno.request.requests import Logprobs
from inferno.request.sampling_params import SamplingParams
from inferno.text import ChatTemplate

Start = Callable[..., TestClient[Any]]
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
MEAN = {**POOLING, "config": {"pooling_mode": "mean"}}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
PAIR = "{% for m in messages %}{{ m.role[0] }}={{ m.content }};{% endfor %}"


def pooling_of(*modules: dict[str, Any], config: Any = None, **assets: Any) -> PoolingConfig:
    given = TextAssets(modules=modules, **assets)
    return PoolingConfig.of(given, config or {}, TOKENIZER, ChatTemplate({"default": PAIR}))


# --- the model's own configuration ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_pooling_is_the_checkpoints(settings: dict[str, Any], pooling: str) -> None:
    config = pooling_of(TRANSFORMER, {**POOLING, "config": settings})
    assert (config.pooling, config.normalize, config.is_embedder) == (pooling, False, True)
    assert pooling_of(TRANSFORMER, {**POOLING, "config": settings}, NORMALIZE).normalize


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        (({**POOLING, "config": {"pooling_mode": "median"}},), "median"),
        (({**MEAN}, {"type": "sentence_transformers.models.LayerNorm"}), "LayerNorm"),
        (({**MEAN}, NORMALIZE, DENSE), "the order Transformer, Pooling, Normalize, Dense"),
        (({**MEAN}, DENSE), "2_Dense has no model.safetensors"),
        (({**MEAN}, {**NORMALIZE, "config": {"module_input_name": "token_embeddings"}}), "token_"),
        (({"type": "sentence_transformers.models.WordEmbeddings"},), "WordEmbeddings"),
        (({**POOLING, "config": {"pooling_mode": ["cls", "median"]}},), "cls and median"),
        (({**POOLING, "config": {}},), "not given"),
    ],
)
def test_what_cannot_be_pooled_has_a_reason(modules: Any, why: str) -> None:
    assert why in pooling_of(TRANSFORMER, *modules).unsupported


def dense(activation: str = "Identity", **settings: Any) -> dict[str, Any]:
    """A layer that turns (a, b, c, d) into (a, b + 1)."""
    weight = np.eye(2, 4, dtype=np.float32)
    tensors = {"linear.weight": weight, "linear.bias": np.array([0, 1], np.float32)}
    shape = {"in_features": 4, "out_features": 2, "activation_function": f"torch.nn.{activation}"}
    return {**DENSE, "config": {**shape, **settings}, "read": lambda: tensors}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"activation": "Hardshrink"}, "the activation torch.nn.Hardshrink"),
        ({"activation_function": "own.Tanh"}, "the activation own.Tanh"),
        ({"bias": False}, "linear.bias"),
        ({"out_features": 3}, "has the tensors"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
        ({"module_output_name": "other"}, "into other"),
    ],
)
def test_a_layer_that_is_not_computed_has_a_reason(settings: dict[str, Any], why: str) -> None:
    assert why in pooling_of(TRANSFORMER, MEAN, dense(**settings)).unsupported
    assert (
        "takes 4 numbers, not 8"
        in pooling_of(TRANSFORMER, MEAN, dense(), config={"hidden_size": 8}).unsupported
    )


def test_sizes_are_those_of_the_config() -> None:
    assert pooling_of(config={}).dimensions is None
    assert pooling_of(config={"is_matryoshka": True}).dimensions == ()
    assert pooling_of(config={"matryoshka_dimensions": [32, 64]}).dimensions == (32, 64)


def test_a_checkpoints_own_judge_comes_before_its_familys() -> None:
    family = Reranker(template="F" + PAIR, yes="y", no="n", instruction="I")
    module = {"type": "x.LogitScore", "config": {"true_token_id": 5, "false_token_id": 6}}
    assets = TextAssets(modules=(module,), prompts={"query": "find"})
    template = ChatTemplate({"default": PAIR})
    own = PoolingConfig.of(assets, {}, TOKENIZER, template, family).judge
    assert own is not None
    assert (own.yes, own.no, own.instruction, own.template) == (5, 6, "find", template)
    theirs = PoolingConfig.of(TextAssets(), {}, TOKENIZER, template, family).judge
    assert theirs is not None and (theirs.yes, theirs.no) == (ord("y"), ord("n"))
    assert theirs.template.render([{"role": "query", "content": "q"}]) == "Fq=q;"
    absent = Reranker(template=PAIR, yes="not a token", no="n")
    assert PoolingConfig.of(TextAssets(), {}, TOKENIZER, template, absent).judge is None


# --- embeddings -----------------------------------------------------------------------------------


def test_an_embedding_of_each_input_in_order(client: Start) -> None:
    llm = FakeLLM()
    body = client(llm).post("/v1/embeddings", json={"input": ["a", "bb", "c"]}).json()
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    assert body["object"] == "list" and body["model"] == "fake"
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 4
    assert llm.poolings == ["last"], "one request to the engine"
    assert body["x_inferno"] == {"pooling": "last", "normalized": True}
    for entry, first in zip(body["data"], b"abc", strict=True):
        vector = entry["embedding"]
        assert sum(x * x for x in vector) == pytest.approx(1)
        assert vector[2] / vector[0] == pytest.approx(first / 3)


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("ab", [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([97, 98], [b"ab"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
    ],
)
def test_inputs_are_strings_or_token_ids(client: Start, sent: Any, prompts: list[bytes]) -> None:
    llm = FakeLLM()
    answer = client(llm).post("/v1/embeddings", json={"input": sent})
    assert answer.status_code == 200
    assert [ids for ids, _ in llm.seen] == [tuple(prompt) for prompt in prompts]


def test_base64_is_little_endian_float32(client: Start) -> None:
    start = client()
    plain = start.post("/v1/embeddings", json={"input": "a"}).json()["data"][0]["embedding"]
    coded = start.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"}).json()
    floats = struct.unpack("<4f", base64.b64decode(coded["data"][0]["embedding"]))
    assert floats == pytest.approx(plain)


def test_dimensions_cut_and_normalize(client: Start) -> None:
    start = client(FakeLLM(pooling=PoolingConfig(dimensions=(2,), size=4, normalize=False)))
    body = start.post("/v1/embeddings", json={"input": "a", "dimensions": 2}).json()
    assert body["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    whole = start.post("/v1/embeddings", json={"input": "a", "dimensions": 4}).json()
    assert whole["data"][0]["embedding"] == [3.0, 4.0, 97.0, 1.0]


def test_the_request_may_name_the_pooling(client: Start) -> None:
    llm = FakeLLM()
    body = {"input": "a", "pooling": "max", "normalize": False}
    answer = client(llm).post("/v1/embeddings", json=body).json()
    assert llm.poolings == ["max"]
    assert answer["x_inferno"] == {"pooling": "max", "normalized": False}
    assert answer["data"][0]["embedding"] == [3.0, 4.0, 97.0, 1.0]


def test_truncation_keeps_the_beginning(client: Start) -> None:
    llm = FakeLLM(max_model_len=6)
    start = client(llm)
    for limit in (3, -1):
        body = {"input": ["abcdefgh", "ab"], "truncate_prompt_tokens": limit}
        assert start.post("/v1/embeddings", json=body).status_code == 200
    assert [ids for ids, _ in llm.seen] == [tuple(b) for b in (b"abc", b"ab", b"abcdef", b"ab")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "a" * 5000}, "input"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "cache_salt": "@"}, "cache_salt"),
    ],
)
def test_bad_requests_name_the_field(
    refusing: TestClient[Any], body: dict[str, Any], param: str
) -> None:
    answer = refusing.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_embeddings_and_scores_have_the_layers_behind_the_pooling(client: Start) -> None:
    pooling = pooling_of(TRANSFORMER, MEAN, dense(), config={"hidden_size": 4})
    assert (pooling.unsupported, pooling.size) == ("", 2)
    start = client(FakeLLM(pooling=pooling))
    [entry] = start.post("/v1/embeddings", json={"input": "a"}).json()["data"]
    assert entry["embedding"] == [3.0, 5.0]
    pair = {"text_1": "a", "text_2": "b"}  # they differ in what the layer drops
    [scored] = start.post("/v1/score", json=pair).json()["data"]
    assert scored["score"] == pytest.approx(1)
    card = start.get("/v1/models/fake").json()
    assert '"size": 2' in json.dumps(card)


def test_a_model_that_cannot_embed_says_why(client: Start) -> None:
    start = client(FakeLLM(pooling=PoolingConfig(unsupported="its modules.json has Dense")))
    answer = start.post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 400 and "Dense" in answer.json()["error"]["message"]
    assert start.post("/v1/embeddings", json={"input": "a", "pooling": "mean"}).status_code == 200


# --- reranking and scores -------------------------------------------------------------------------

EMBEDDER = PoolingConfig(is_embedder=True, prompts={"query": "Q:"})


class Judging(FakeLLM):
    """Holds a document of n tokens for relevant with log-odds n - 10."""

    def stream_all(
        self, prompts: Sequence[Any], params: SamplingParams, **options: Any
    ) -> AsyncGenerator[list[TextDelta], None]:
        encoded = [self.preprocessor.encode_prompt(prompt) for prompt in prompts]
        self.seen += [(ids, params) for ids in encoded]

        async def run() -> AsyncGenerator[list[TextDelta], None]:
            yield [
                TextDelta(
                    index=i,
                    token_ids=(1,),
                    finish_reason="length",
                    logprobs=(self._score(len(ids), params.logprob_token_ids),),
                )
                for i, ids in enumerate(encoded)
            ]

        return run()

    def _score(self, length: int, ids: tuple[int, ...]) -> Logprobs:
        return Logprobs(1, -0.1, 1, tuple(zip(ids, (float(length - 10), 0.0), strict=True)))


def judging(**options: Any) -> Judging:
    judge = Judge(template=ChatTemplate({"default": PAIR}), yes=7, no=8, **options)
    return Judging(pooling=PoolingConfig(judge=judge))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_reranker_judges_each_document(client: Start, path: str) -> None:
    llm = judging()
    body = {"query": "q", "documents": ["a", {"text": "aaa"}, "aa"]}
    answer = client(llm).post(path, json=body).json()
    assert [r["index"] for r in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["document"] == {"text": "aaa"}
    assert bytes(llm.seen[0][0]) == b"q=q;d=a;"
    assert llm.seen[0][1].logprob_token_ids == (7, 8)
    assert answer["results"][2]["relevance_score"] == pytest.approx(1 / (1 + 2.718281828**2))
    assert answer["usage"]["total_tokens"] == 8 + 9 + 10
    assert "probability" in answer["x_inferno"]["method"]


def test_top_n_and_documents_as_asked(client: Start) -> None:
    body = {"query": "q", "documents": ["a", "aaa"], "top_n": 1, "return_documents": False}
    [result] = client(judging()).post("/v1/rerank", json=body).json()["results"]
    assert sorted(result) == ["index", "relevance_score"] and result["index"] == 1


def test_instructions_are_the_requests_or_the_models(client: Start) -> None:
    llm = judging(instruction="find")
    start = client(llm)
    body = {"query": "q", "documents": ["abcdef"], "max_tokens_per_doc": 2}
    start.post("/v1/rerank", json=body)
    start.post("/v1/rerank", json={**body, "instruction": "seek"})
    assert [bytes(ids) for ids, _ in llm.seen] == [b"s=find;q=q;d=ab;", b"s=seek;q=q;d=ab;"]


def test_an_embedding_model_compares_vectors(client: Start) -> None:
    llm = FakeLLM(pooling=EMBEDDER)
    body = {"query": "a", "documents": ["z", "Q:a", "z"]}
    answer = client(llm).post("/v1/rerank", json=body).json()
    assert [bytes(ids) for ids, _ in llm.seen] == [b"Q:a", b"z"], "each string once"
    assert answer["results"][0]["index"] == 1
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)
    scores = {r["index"]: r["relevance_score"] for r in answer["results"]}
    assert scores[0] == scores[2] < 1
    assert answer["x_inferno"] == {"method": "cosine similarity"}


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("one", "two", "count"), [("a", "a", 1), ("a", ["a", "b"], 2), (["a", "b"], ["c", "d"], 2)]
)
def test_scores_of_pairs(client: Start, path: str, one: Any, two: Any, count: int) -> None:
    llm = FakeLLM(pooling=EMBEDDER)
    answer = client(llm).post(path, json={"text_1": one, "text_2": two}).json()
    assert [(d["index"], d["object"]) for d in answer["data"]] == [
        (i, "score") for i in range(count)
    ]
    assert b"Q:" not in {bytes(ids)[:2] for ids, _ in llm.seen}, "scores are symmetric"
    if (one, two) == ("a", "a"):
        assert answer["data"][0]["score"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": [{"title": "a"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "q", "documents": [3]}, "documents[0]"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": "i"}, "instruction"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["a", ""]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": 3}, "text_2"),
    ],
)
def test_bad_pairs_name_the_field(
    client: Start, path: str, body: dict[str, Any], param: str
) -> None:
    answer = client(FakeLLM(pooling=EMBEDDER)).post(path, json=body)
    assert answer.status_code == 400, answer.json()
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "q", "documents": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ],
)
def test_a_model_for_neither_says_so(client: Start, path: str, body: dict[str, Any]) -> None:
    answer = client().post(path, json=body)
    assert answer.status_code == 400
    assert "neither a reranker nor an embedding model" in answer.json()["error"]["message"]


def test_the_openai_package_reads_embeddings(client: Start) -> None:
    openai = pytest.importorskip("openai")
    http = client()
    sdk = openai.OpenAI(api_key="x", base_url=f"{http.base_url}/v1", http_client=http)
    default = sdk.embeddings.create(model="fake", input=["a", "b"])
    plain = sdk.embeddings.create(model="fake", input=["a", "b"], encoding_format="float")
    assert default.data[1].embedding == pytest.approx(plain.data[1].embedding)
    assert default.usage.total_tokens == 2
