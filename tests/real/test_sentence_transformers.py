"""A trained encoder beside sentence-transformers itself, with the modules that its checkpoints may
have. It brings scikit-learn and SciPy, so the other tests do not require it:
`pip install sentence-transformers`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferno import LLM

library: Any = pytest.importorskip(
    "sentence_transformers", reason="pip install sentence-transformers"
)
FAR = 1e-5
"""Of numbers of vectors of length 1 to 6."""
OPTIONS: Mapping[str, Any] = {"memory": "1GiB", "packed_cache": "none", "threads": 1}
TEXTS = [
    "A heap is a tree.",
    "x",
    "What is the capital of France? Paris has been it since the tenth century. " * 12,
    "Ünïcode, 你好, [SEP] and [MASK] as they stand in a text",
]
QUERY = {"query": "Represent this question: "}


def written(source: Path, to: Path, pooling: str, last: str) -> Path:
    """Write the checkpoint with other poolings, and a Dense layer or none behind it."""
    shutil.copytree(source, to)
    kinds = pooling.split()
    pooled = {"word_embedding_dimension": 384}
    pooled |= {f"pooling_mode_{kind}": True for kind in kinds}
    change(to / "1_Pooling" / "config.json", lambda given: dict.fromkeys(given, False) | pooled)
    change(to / "config_sentence_transformers.json", lambda c: {**c, "prompts": QUERY})
    change(to / "config.json", lambda c: {**c, "is_matryoshka": True})
    names = ["Normalize"] if last == "normalized" else ["Dense"] if last == "dense" else []
    kind = "sentence_transformers.models"
    if names == ["Dense"]:
        torch.manual_seed(0)
        layer = library.models.Dense(384 * len(kinds), 96, activation_function=torch.nn.Tanh())
        to.joinpath("2_Dense").mkdir()
        layer.save(str(to / "2_Dense"))
    more = [{"idx": 2, "name": "2", "path": f"2_{n}", "type": f"{kind}.{n}"} for n in names]
    change(to / "modules.json", lambda modules: [*modules[:2], *more])
    return to


def change(path: Path, by: Any) -> None:
    path.write_text(json.dumps(by(json.loads(path.read_text()))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "last"),
    [
        ("mean_tokens", "normalized"),
        ("mean_tokens", "plain"),
        ("mean_tokens", "dense"),
        ("cls_token", "normalized"),
        ("max_tokens", "normalized"),
        ("mean_sqrt_len_tokens", "plain"),
        ("weightedmean_tokens", "normalized"),
        ("lasttoken", "normalized"),
        ("mean_tokens cls_token", "normalized"),
        ("lasttoken weightedmean_tokens mean_sqrt_len_tokens mean_tokens max_tokens", "plain"),
        ("max_tokens mean_tokens cls_token", "dense"),
    ],
)
def test_embeddings_are_those_of_sentence_transformers(
    pooling: str,
    last: str,
    folder: Path,
    tmp_path: Path,
) -> None:
    path = written(folder, tmp_path / "model", pooling, last)
    theirs = library.SentenceTransformer(str(path), device="cpu")
    with LLM(str(path), **OPTIONS) as llm:
        ours = np.array(llm.embed(TEXTS))
        asked = np.array(llm.embed(TEXTS, prompt_name="query"))
        cut = np.array(llm.embed(TEXTS, dimensions=64))
    assert np.abs(ours - theirs.encode(TEXTS, batch_size=1)).max() < FAR
    expected = theirs.encode(TEXTS, batch_size=1, prompt_name="query")
    assert np.abs(asked - expected).max() < FAR < np.abs(asked - ours).max()
    expected = theirs.encode(TEXTS, batch_size=1, truncate_dim=64, normalize_embeddings=True)
    assert np.abs(cut - expected).max() < FAR


@pytest.mark.slow
def test_scores_are_those_of_a_cross_encoder(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    auto: Any = AutoTokenizer
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    model.classifier.weight.data.normal_()
    model.save_pretrained(tmp_path)
    auto.from_pretrained(folder).save_pretrained(tmp_path)
    theirs = library.CrossEncoder(str(tmp_path), device="cpu")
    expected = theirs.predict([(TEXTS[0], text) for text in TEXTS], batch_size=1)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert np.abs(np.array(llm.score(TEXTS[0], TEXTS)) - expected).max() < FAR
    assert expected.std() > 0.01
