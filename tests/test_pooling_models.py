"""Embeddings and rerankers over HTTP with real, tiny models, compared with transformers.

Suffixes: L tokens of a prompt, D hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from litestar.testing import TestClient
from tests.fake_engine import FakeClient, byte_backend

from inferno.core.engine import Engine
from inferno.llm import AsyncLLM
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model
from inferno.server import create_app
from inferno.testing.tiny import randomize

transformers = pytest.importorskip("transformers")
pytest.importorskip("inferno_qwen3", reason="needs inferno-qwen3")

YES, NO = ord("y"), ord("n")
TEXTS = ["a short one", "b", "a longer one, of more than a block of sixteen tokens"]
SIZES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Is it? "


def write(
    folder: Path, *modules: tuple[str, dict[str, Any]], bare: bool = False, **config: Any
) -> Any:
    """Write a random model; return transformers' own."""
    shape = transformers.Qwen3Config(**SIZES, **config)
    model = transformers.Qwen3ForCausalLM(shape).eval()
    randomize(model)
    (model.model if bare else model).save_pretrained(folder)
    stored = json.loads((folder / "config.json").read_text())
    stored["architectures"] = ["Qwen3ForCausalLM"]  # as published embedding models say
    (folder / "config.json").write_text(json.dumps(stored))
    byte_backend().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    entries = []
    for i, (kind, settings) in enumerate(modules):
        path = f"{i}_{kind}"
        entries.append({"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(settings))
    if entries:
        (folder / "modules.json").write_text(json.dumps(entries))
    return model


@contextmanager
def serving(folder: Path) -> Iterator[TestClient[Any]]:
    options = Options(
        device="cpu", dtype="float32", max_model_len=600, max_num_seqs=4, max_num_batched_tokens=64
    )
    with open_model(str(folder), options) as opened:
        preprocessor, engine = Preprocessor.open(opened), Engine.load(opened)
    client = FakeClient(cast(Any, engine))
    client.plan = engine.plan
    app = create_app(AsyncLLM.of(client, preprocessor))
    with TestClient(app, raise_server_exceptions=False) as http:
        yield http


def hidden(model: Any, text: str) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = model.model(torch.tensor([list(text.encode())])).last_hidden_state
    return states[0]


@pytest.mark.parametrize("mode", ["lasttoken", "mean", "max", "cls"])
def test_embeddings_are_transformers(tmp_path: Path, mode: str) -> None:
    bare = mode == "lasttoken"
    pooling = ("Pooling", {"pooling_mode": mode})
    model = write(tmp_path, ("Transformer", {}), pooling, ("Normalize", {}), bare=bare)
    with serving(tmp_path) as http:
        for _ in range(2):  # the second time from the prefix cache
            answer = http.post("/v1/embeddings", json={"input": TEXTS}).json()
        assert answer["usage"]["prompt_tokens"] == sum(map(len, TEXTS))
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == bare
        for text, entry in zip(TEXTS, answer["data"], strict=True):
            x_LD = hidden(model, text)
            pooled = {"lasttoken": x_LD[-1], "mean": x_LD.mean(0), "cls": x_LD[0]}
            expected_D = pooled[mode] if mode in pooled else x_LD.amax(0)
            expected_D = expected_D / expected_D.norm()
            found_D = torch.tensor(entry["embedding"])
            torch.testing.assert_close(found_D, expected_D, rtol=1e-4, atol=1e-4)


def test_a_generative_model_embeds_and_says_how(tmp_path: Path) -> None:
    model = write(tmp_path, is_matryoshka=True)
    with serving(tmp_path) as http:
        body = {"input": TEXTS[0], "dimensions": 8}
        answer = http.post("/v1/embeddings", json=body).json()
    assert answer["x_inferno"] == {"pooling": "last", "normalized": True}
    expected_D = hidden(model, TEXTS[0])[-1][:8]
    found_D = torch.tensor(answer["data"][0]["embedding"])
    torch.testing.assert_close(found_D, expected_D / expected_D.norm(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_a_reranker_compares_two_logits(tmp_path: Path, own: bool) -> None:
    """By the checkpoint's own module and template, or by those that the family declares."""
    settings = {"true_token_id": YES, "false_token_id": NO}
    model = write(tmp_path, *[("Transformer", {}), ("LogitScore", settings)][: 2 * own])
    if not own:
        _add_words(tmp_path)
    with serving(tmp_path) as http:
        body = {"query": "which?", "documents": TEXTS}
        found = http.post("/v1/rerank", json=body).json()["results"]
        prompts = [
            f"query: which?\ndocument: {text}\nIs it? " if own else _published(text)
            for text in TEXTS
        ]
        tokens = [http.post("/tokenize", json={"prompt": p}).json()["tokens"] for p in prompts]
    yes, no = (YES, NO) if own else (257, 258)
    expected = {}
    for i, ids in enumerate(tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        expected[i] = torch.softmax(logits[[yes, no]], 0)[0].item()
    assert {r["index"]: r["relevance_score"] for r in found} == pytest.approx(expected, abs=1e-4)
    scores = [r["relevance_score"] for r in found]
    assert scores == sorted(scores, reverse=True)


def _add_words(folder: Path) -> None:
    backend = byte_backend()
    backend.add_tokens(["yes", "no"])
    backend.save(str(folder / "tokenizer.json"))


def _published(document: str) -> str:
    """The prompt of the model card."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
        f"answer the query\n<Query>: which?\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
