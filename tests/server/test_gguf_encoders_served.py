"""Encoders in GGUF files over HTTP, written of the tiny BERT of `test_encoders_served`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.server.test_encoders_served import (
    QUERY,
    TEXTS,
    given,
    mean_of,
    serving,
    vectors,
    write,
)

from inferno.errors import UnsupportedError
from inferno.testing.converting import convert


def file_of(folder: Path) -> Path:
    special = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep")}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    convert(str(folder), "f32", folder / "model.gguf")
    return folder / "model.gguf"


@pytest.mark.parametrize(("mode", "read"), [("mean", None), ("cls", 0), ("lasttoken", -1)])
def test_a_file_says_how_states_are_pooled(tmp_path: Path, mode: str, read: int | None) -> None:
    pooling = ("Pooling", {"pooling_mode": mode})
    model = write(tmp_path, ("Transformer", {}), pooling, ("Normalize", {}))
    with torch.inference_mode():
        states = [model(**given(text)).last_hidden_state[0] for text in TEXTS]
    one = [x_LD.mean(0) if read is None else x_LD[read] for x_LD in states]
    with serving(file_of(tmp_path)) as http:
        matrix = vectors(http, input=TEXTS)
    expected = torch.nn.functional.normalize(torch.stack(one), dim=1)
    torch.testing.assert_close(matrix, expected, rtol=1e-4, atol=1e-5)


def test_older_spellings_of_a_pooling_are_the_same(tmp_path: Path) -> None:
    model = write(tmp_path, ("Transformer", {}), ("Pooling", {"pooling_mode_mean_tokens": True}))
    with serving(file_of(tmp_path)) as http:
        [vector] = vectors(http, input=TEXTS[0])
    torch.testing.assert_close(vector, mean_of(model, TEXTS[0]), rtol=1e-4, atol=1e-5)


def test_a_cross_encoder_in_a_file_tells_both_texts_apart(tmp_path: Path) -> None:
    model = write(tmp_path, labels=1)
    with torch.inference_mode():
        expected = [float(model(**given(QUERY, t)).logits[0, 0].sigmoid()) for t in TEXTS]
    with serving(file_of(tmp_path)) as http:
        ranked = http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    scores = {r["index"]: r["relevance_score"] for r in ranked["results"]}
    assert scores == pytest.approx(dict(enumerate(expected)), abs=1e-5)


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([("Pooling", {"pooling_mode": "max"})], "max"),
        ([("Pooling", {"pooling_mode": "mean"}), ("Dense", {"in_features": 32})], "Dense"),
    ],
)
def test_what_files_cannot_say_of_embeddings_is_refused(
    tmp_path: Path, modules: list[tuple[str, dict[str, Any]]], named: str
) -> None:
    write(tmp_path, ("Transformer", {}), *modules)
    with pytest.raises(UnsupportedError, match=f"how its embeddings are made: {named}"):
        file_of(tmp_path)
    assert not (tmp_path / "model.gguf").exists()
