"""Encoders over HTTP: a tiny BERT with WordPiece, compared with transformers as
sentence-transformers calls it."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tests.tiny_served import llm_of, serving_llm, transformers

from inferno.plan import Options, open_model
from inferno.testing.tiny import randomize

LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{c}" for c in LETTERS), "?", ":"]
TEXTS = ["a heap", "tea", "a longer text of many words, of more than sixteen tokens", "a [SEP] b"]
QUERY = "what is a heap?"


def tokenizer() -> tokenizers.Tokenizer:
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    backend.enable_truncation(8)  # as published files say, for whoever trained it
    backend.enable_padding(length=8)
    return backend


def write(folder: Path, *modules: tuple[str, dict[str, Any]], labels: int = 0, **more: Any) -> Any:
    """Write a random model; return transformers' own."""
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        num_labels=labels or 2,
    )
    kind = transformers.BertForSequenceClassification if labels else transformers.BertModel
    model = kind(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    if more:
        stored = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stored, **more}))
    entries = []
    for i, (name, settings) in enumerate(modules):
        path = f"{i}_{name}" if i else ""
        entries.append({"idx": i, "path": path, "type": f"sentence_transformers.models.{name}"})
        (folder / path).mkdir(exist_ok=True)
        if i:
            (folder / path / "config.json").write_text(json.dumps(settings))
    if entries:
        (folder / "modules.json").write_text(json.dumps(entries))
    return model


def given(text: str, second: str | None = None) -> dict[str, torch.Tensor]:
    """transformers' inputs of a text or a pair."""
    backend = tokenizer()
    backend.no_truncation()
    backend.no_padding()
    encoding = backend.encode(text, second)
    return {
        "input_ids": torch.tensor([encoding.ids]),
        "token_type_ids": torch.tensor([encoding.type_ids]),
    }


def serving(folder: Path) -> AbstractContextManager[Any]:
    """Serve a model of 128 positions in steps of 64 tokens."""
    options = Options(device="cpu", dtype="float32", max_num_seqs=4, max_num_batched_tokens=64)
    return serving_llm(llm_of(open_model(str(folder), options)))


def mean_of(model: Any, text: str) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = model(**given(text)).last_hidden_state
    return torch.nn.functional.normalize(states[0].mean(0), dim=0)


def vectors(http: Any, **body: Any) -> torch.Tensor:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return torch.tensor([entry["embedding"] for entry in answer.json()["data"]])


def test_embeddings_are_the_mean_of_all_states_unless_the_checkpoint_says_so(
    tmp_path: Path,
) -> None:
    model = write(tmp_path)
    with serving(tmp_path) as http:
        matrix = vectors(http, input=TEXTS)
        first = vectors(http, input=TEXTS[0], pooling="first", normalize=False)[0]
        name = http.get("/v1/models").json()["data"][0]["id"]
        card = http.get(f"/v1/models/{name}").json()["x_inferno"]
    torch.testing.assert_close(
        matrix, torch.stack([mean_of(model, text) for text in TEXTS]), rtol=1e-4, atol=1e-5
    )
    with torch.inference_mode():
        expected = model(**given(TEXTS[0])).last_hidden_state[0, 0]
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert card["capabilities"] == ["embeddings"]
    assert card["embeddings"]["why"].endswith("the mean of the tokens' states, normalized")


def test_an_encoder_writes_its_prompts_by_name_and_cuts_vectors(tmp_path: Path) -> None:
    pooling = ("Pooling", {"pooling_mode": "mean"})
    dimensions: dict[str, Any] = {"matryoshka_dimensions": [8, 16]}
    model = write(tmp_path, ("Transformer", {}), pooling, ("Normalize", {}), **dimensions)
    prompts = {"query": "query: ", "passage": "passage: ", "plain": "text: "}
    settings = {"prompts": prompts, "default_prompt_name": "plain"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with serving(tmp_path) as http:
        for name, before in ({**prompts, "": ""}).items():
            matrix = vectors(http, input=TEXTS[:2], prompt_name=name)
            expected = torch.stack([mean_of(model, before + text) for text in TEXTS[:2]])
            torch.testing.assert_close(matrix, expected, rtol=1e-4, atol=1e-5)
        [plain] = vectors(http, input=TEXTS[0])
        [cut] = vectors(http, input=TEXTS[0], dimensions=8)
        ranked = http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS[:2]}).json()
        unknown = http.post("/v1/embeddings", json={"input": "x", "prompt_name": "question"})
    torch.testing.assert_close(plain, mean_of(model, "text: a heap"), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cut, plain[:8] / plain[:8].norm(), rtol=1e-4, atol=1e-5)
    scores = {r["index"]: r["relevance_score"] for r in ranked["results"]}
    for i, text in enumerate(TEXTS[:2]):
        cosine = mean_of(model, f"query: {QUERY}") @ mean_of(model, f"passage: {text}")
        assert scores[i] == pytest.approx(float(cosine), abs=1e-5)
    error = unknown.json()["error"]
    assert unknown.status_code == 400 and error["param"] == "prompt_name"
    assert "passage, plain, query" in error["message"]


def test_an_encoder_joins_several_poolings(tmp_path: Path) -> None:
    pooling = ("Pooling", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
    model = write(tmp_path, ("Transformer", {}), pooling)
    with serving(tmp_path) as http:
        matrix = vectors(http, input=TEXTS)
    for text, vector in zip(TEXTS, matrix, strict=True):
        with torch.inference_mode():
            x_LD = model(**given(text)).last_hidden_state[0]
        expected = torch.cat([x_LD[0], x_LD.mean(0)])
        torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("identity", [False, True])
def test_a_cross_encoder_scores_pairs_by_their_token_types(tmp_path: Path, identity: bool) -> None:
    named = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    model = write(tmp_path, labels=1, **(named if identity else {}))
    with torch.inference_mode():
        logits = [model(**given(QUERY, text)).logits[0, 0] for text in TEXTS]
    expected = [float(x if identity else x.sigmoid()) for x in logits]
    with serving(tmp_path) as http:
        ranked = http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
        body = {"text_1": QUERY, "text_2": TEXTS}
        scored = http.post("/v1/score", json=body).json()["data"]
    scores = {r["index"]: r["relevance_score"] for r in ranked["results"]}
    assert scores == pytest.approx(dict(enumerate(expected)), abs=1e-5)
    assert [entry["score"] for entry in scored] == pytest.approx(expected, abs=1e-5)
    assert [r["index"] for r in ranked["results"]] == sorted(scores, key=lambda i: -scores[i])


def test_a_text_that_is_too_long_and_a_request_to_generate_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with serving(tmp_path) as http:
        long = "a " * 200
        refused = http.post("/v1/embeddings", json={"input": long})
        cut = http.post("/v1/embeddings", json={"input": long, "truncate_prompt_tokens": -1})
        text = http.post("/v1/completions", json={"prompt": "x"})
        chat = http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        )
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert cut.status_code == 200 and cut.json()["usage"]["prompt_tokens"] == 64
    assert text.status_code == 400 and "generates no text" in text.json()["error"]["message"]
    assert chat.status_code == 400
