"""Tiny, random checkpoints, and an app that serves one with the engine in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
from litestar.testing import TestClient
from tests.fake_engine import FakeClient, byte_backend

from inferno.core.engine import Engine
from inferno.llm import LLM, AsyncLLM
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Opened, Options, open_model
from inferno.server import create_app
from inferno.testing.tiny import randomize

transformers = pytest.importorskip("transformers")
pytest.importorskip("inferno_qwen3", reason="needs inferno-qwen3")

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
OPTIONS = Options(
    device="cpu", dtype="float32", max_model_len=600, max_num_seqs=4, max_num_batched_tokens=64
)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Is it? "


def write(
    folder: Path,
    *modules: tuple[str, dict[str, Any]],
    bare: bool = False,
    template: str = TEMPLATE,
    tokenizer: tokenizers.Tokenizer | None = None,
    **config: Any,
) -> Any:
    """Write a random model; return transformers' own."""
    shape = transformers.Qwen3Config(**{**SIZES, **config})
    model = transformers.Qwen3ForCausalLM(shape).eval()
    randomize(model)
    (model.model if bare else model).save_pretrained(folder)
    stored = json.loads((folder / "config.json").read_text())
    stored["architectures"] = ["Qwen3ForCausalLM"]  # as published embedding models say
    (folder / "config.json").write_text(json.dumps(stored))
    (tokenizer or byte_backend()).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    entries = []
    for i, (kind, settings) in enumerate(modules):
        path = f"{i}_{kind}"
        entries.append({"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(settings))
    if entries:
        (folder / "modules.json").write_text(json.dumps(entries))
    return model


def opened_llm(folder: Path) -> AsyncLLM:
    """An AsyncLLM whose engine runs in this process."""
    return llm_of(open_model(str(folder), OPTIONS))


def opened_in_this_process(folder: Path) -> LLM:
    """An LLM with the same options."""
    with open_model(str(folder), OPTIONS) as opened:
        return LLM.of(Engine.load(opened), Preprocessor.open(opened))


def llm_of(opened: Opened) -> AsyncLLM:
    """The same for an opened model, which is closed once the tokenizer is read, as by
    `AsyncLLM.of_opened`."""
    with opened:
        preprocessor, engine = Preprocessor.open(opened), Engine.load(opened)
    client = FakeClient(cast(Any, engine))
    client.plan, client.stats = engine.plan, engine.stats()
    return AsyncLLM.of(client, preprocessor)


@contextmanager
def serving(folder: Path) -> Iterator[TestClient[Any]]:
    with serving_llm(opened_llm(folder)) as http:
        yield http


@contextmanager
def serving_llm(llm: AsyncLLM) -> Iterator[TestClient[Any]]:
    app = create_app(llm)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield http
