"""The demo model, written as GGUF with its tokenizer and chat template, says what it always
says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import gguf
import pytest
from gguf.constants import GGMLQuantizationType as Type
from gguf_models import write_gguf
from safetensors.torch import load_file

from inferno import LLM, SamplingParams
from inferno.testing import plan_of

GREEDY = SamplingParams(temperature=0, max_tokens=48)


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    with as_file(files(pytest.importorskip("inferno_demo")) / "model") as folder:
        yield folder


@pytest.fixture(scope="module")
def questions(original: Path) -> list[list[dict[str, str]]]:
    lines = (original.parent / "known.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [
        k["question"] for k in map(json.loads, lines) if "question" in k and not k.get("tools")
    ]
    return [[{"role": "user", "content": q}] for q in prompts[:: len(prompts) // 12]]


@pytest.fixture(scope="module")
def answers(original: Path, questions: list[list[dict[str, str]]]) -> list[str]:
    with LLM(str(original), memory="2GiB") as llm:
        return [o.outputs[0].text for o in llm.chat(questions, GREEDY)]


def converted(original: Path, path: Path, kind: Type) -> Path:
    """What llama.cpp's converter makes of it."""
    config = json.loads((original / "config.json").read_text())
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    texts = json.loads((original / "tokenizer_config.json").read_text())
    added = {t["content"]: t for t in tokenizer["added_tokens"]}
    vocab = sorted(
        (i, t)
        for t, i in {
            **tokenizer["model"]["vocab"],
            **{t: a["id"] for t, a in added.items()},
        }.items()
    )

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([t for _, t in vocab])
        writer.add_token_types(
            [(3 if added[t]["special"] else 4) if t in added else 1 for _, t in vocab]
        )
        writer.add_token_merges(
            [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
        )
        writer.add_eos_token_id(config["eos_token_id"])
        writer.add_chat_template(texts["chat_template"])

    tensors = load_file(original / "model.safetensors")
    types = {name: kind if t.ndim > 1 else Type.F32 for name, t in tensors.items()}
    return write_gguf(path, config, tensors, types=types, add=add)


def test_the_same_answers(
    original: Path,
    questions: list[list[dict[str, str]]],
    answers: list[str],
    tmp_path: Path,
) -> None:
    path = converted(original, tmp_path / "demo-bf16.gguf", Type.BF16)
    plan = plan_of(path, dtype="auto", max_model_len=None)
    assert (plan.format, plan.dtype, plan.max_model_len) == ("gguf", "bfloat16", 2048)
    with LLM(str(path), memory="2GiB") as llm:
        assert [o.outputs[0].text for o in llm.chat(questions, GREEDY)] == answers


def test_nearly_the_same_answers_from_eight_bits(
    original: Path,
    questions: list[list[dict[str, str]]],
    answers: list[str],
    tmp_path: Path,
) -> None:
    path = converted(original, tmp_path / "demo-q8_0.gguf", Type.Q8_0)
    assert [use.name for use in plan_of(path).schemes] == ["q8_0"]
    with LLM(str(path), memory="2GiB") as llm:
        given = [o.outputs[0].text for o in llm.chat(questions, GREEDY)]
    assert sum(a == b for a, b in zip(given, answers, strict=True)) >= 0.8 * len(answers)
