"""Embeddings and rerankers over HTTP with real, tiny models, compared with transformers.

Suffixes: L tokens of a prompt, D hidden size.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fake_engine import byte_backend
from tests.tiny_served import (
    SIZES,
    opened_in_this_process,
    opened_llm,
    serving,
    transformers,
    write,
)

from inferno.errors import CheckpointError, RequestError
from inferno.testing.tiny import randomize

YES, NO = ord("y"), ord("n")
TEXTS = ["a short one", "b", "a longer one, of more than a block of sixteen tokens"]


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


def test_the_python_api_pools_alike(tmp_path: Path) -> None:
    model = write(tmp_path, ("Transformer", {}), ("Pooling", {"pooling_mode": "mean"}))

    async def embed(**options: Any) -> list[list[float]]:
        async with opened_llm(tmp_path) as llm:
            return await llm.embed(TEXTS, **options)

    plain, unit = asyncio.run(embed()), asyncio.run(embed(pooling="last", normalize=True))
    for text, vector, last in zip(TEXTS, plain, unit, strict=True):
        x_LD = hidden(model, text)
        torch.testing.assert_close(torch.tensor(vector), x_LD.mean(0), rtol=1e-4, atol=1e-4)
        expected_D = x_LD[-1] / x_LD[-1].norm()
        torch.testing.assert_close(torch.tensor(last), expected_D, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_a_reranker_compares_two_logits(tmp_path: Path, own: bool) -> None:
    """By the checkpoint's own module and template, or by those that the family declares."""
    settings = {"true_token_id": YES, "false_token_id": NO}
    model = write(tmp_path, *[("Transformer", {}), ("LogitScore", settings)][: 2 * own])
    if not own:
        _add_words(tmp_path)
    with serving(tmp_path) as http:
        body = {"query": "which?", "documents": TEXTS}
        ranking = http.post("/v1/rerank", json=body).json()["results"]
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
    assert {r["index"]: r["relevance_score"] for r in ranking} == pytest.approx(expected, abs=1e-4)
    scores = [r["relevance_score"] for r in ranking]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("kind", ["embedder", "judge", "classifier"])
def test_the_python_api_scores_alike(tmp_path: Path, kind: str) -> None:
    if kind == "classifier":
        write_classifier(tmp_path, "Qwen3")
    elif kind == "judge":
        settings = {"true_token_id": YES, "false_token_id": NO}
        write(tmp_path, ("Transformer", {}), ("LogitScore", settings))
    else:
        write(tmp_path, ("Transformer", {}), ("Pooling", {"pooling_mode": "mean"}))
    with serving(tmp_path) as http:
        answer = http.post("/v1/score", json={"text_1": "which?", "text_2": TEXTS}).json()
    with opened_in_this_process(tmp_path) as llm:
        scores = llm.score("which?", TEXTS)
        assert asyncio.run(_scored(tmp_path, TEXTS)) == pytest.approx(scores, abs=1e-5)
        assert scores == pytest.approx([each["score"] for each in answer["data"]], abs=1e-5)
        assert llm.score(["which?"] * 2, TEXTS[:2]) == pytest.approx(scores[:2], abs=1e-5)
        with pytest.raises(RequestError, match="2 strings, text_2 3"):
            llm.score(["a", "b"], TEXTS)
        with pytest.raises(RequestError, match="text_2 has an empty string"):
            llm.score("which?", ["a", ""])
        if kind != "judge":
            with pytest.raises(RequestError, match="instruction"):
                llm.score("which?", TEXTS, instruction="Judge.")


async def _scored(folder: Path, texts: list[str]) -> list[float]:
    async with opened_llm(folder) as llm:
        with pytest.raises(RequestError, match="2 strings, text_2 3"):
            await llm.score(["a", "b"], texts)
        return await llm.score("which?", texts)


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


FAMILIES = ("Qwen3", "Qwen2", "Llama", "Mistral")


def write_classifier(folder: Path, family: str, **config: Any) -> Any:
    """Write a random sequence classifier; return transformers' own."""
    sizes = {k: v for k, v in SIZES.items() if family == "Qwen3" or k != "head_dim"}
    shape = getattr(transformers, f"{family}Config")(
        **{**sizes, "num_labels": 1, "pad_token_id": 0, **config}
    )
    model = getattr(transformers, f"{family}ForSequenceClassification")(shape).eval()
    randomize(model)
    model.save_pretrained(folder)
    byte_backend().save(str(folder / "tokenizer.json"))
    return model


def logits_of(model: Any, text: str) -> list[float]:
    with torch.inference_mode():
        values: list[float] = model(torch.tensor([list(text.encode())])).logits[0].tolist()
    return values


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cross_encoder_scores_pairs_like_transformers(tmp_path: Path, family: str) -> None:
    model = write_classifier(tmp_path, family)
    expected = [torch.tensor(logits_of(model, "which?" + text)).sigmoid().item() for text in TEXTS]
    with serving(tmp_path) as http:
        for _ in range(2):  # the second time from the prefix cache
            answer = http.post("/v1/rerank", json={"query": "which?", "documents": TEXTS}).json()
        body = {"text_1": "which?", "text_2": TEXTS}
        scored = http.post("/v1/score", json=body).json()["data"]
        card = http.get(f"/v1/models/{answer['model']}").json()
        text = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
    scores = {r["index"]: r["relevance_score"] for r in answer["results"]}
    assert scores == pytest.approx(dict(enumerate(expected)), abs=1e-4)
    assert [entry["score"] for entry in scored] == pytest.approx(expected, abs=1e-4)
    assert answer["x_inferno"]["method"] == "sigmoid of the label's logit"
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert card["x_inferno"]["capabilities"] == ["rerank"]
    assert text.status_code == 400 and "generates no text" in text.json()["error"]["message"]


def test_a_cross_encoder_may_have_a_template_and_scores_without_a_sigmoid(tmp_path: Path) -> None:
    trained = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model = write_classifier(tmp_path, "Qwen3", sentence_transformers=trained)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role in ('query', 'document', 'system') %}"
        "<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    )
    with serving(tmp_path) as http:
        body = {"query": "which?", "documents": TEXTS, "instruction": "be strict"}
        results = http.post("/v1/rerank", json=body).json()["results"]
    prompt = "<system>be strict<query>which?<document>"
    expected = {i: logits_of(model, prompt + text)[0] for i, text in enumerate(TEXTS)}
    assert {r["index"]: r["relevance_score"] for r in results} == pytest.approx(expected, abs=1e-4)


def test_what_a_classifier_cannot_do_is_a_400(tmp_path: Path) -> None:
    write_classifier(tmp_path, "Qwen3", num_labels=3)
    with serving(tmp_path) as http:
        body = {"query": "which?", "documents": TEXTS}
        many = http.post("/v1/rerank", json=body)
        chat = http.post("/tokenize", json={"prompt": "x"})
        card = http.get("/v1/models").json()["data"][0]["id"]
        can = http.get(f"/v1/models/{card}").json()["x_inferno"]["capabilities"]
    assert many.status_code == 400 and "3 labels" in many.json()["error"]["message"]
    assert chat.status_code == 200 and can == []
    (tmp_path / "one").mkdir()
    write_classifier(tmp_path / "one", "Qwen3")
    with serving(tmp_path / "one") as http:
        refused = http.post("/v1/rerank", json={**body, "instruction": "be strict"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "instruction"


def test_a_classifier_without_its_head_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["architectures"] = ["Qwen3ForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match="stores no head for labels"):
        opened_llm(tmp_path)
