"""A conversation with a real, tiny model hits the prefix cache in the turns that it generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.test_replay import MERGING, merging_backend
from tests.tiny_served import serving, write

from inferno.server.chat.turns import Turns

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BLOCK = 16
WORDS = {str(token): 100 for token in (97, 98, 99, 10, 32)}
"""Bytes that the tokenizer would merge."""


@pytest.mark.parametrize("remembers", [True, False])
def test_cached_tokens_cover_the_turn(
    tmp_path: Path, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not remembers:
        monkeypatch.setattr(Turns, "note", lambda *arguments: None)
    write(tmp_path, template=TEMPLATE, tokenizer=merging_backend(), vocab_size=320)
    user = {"role": "user", "content": "Say something."}
    body: dict[str, Any] = {
        "messages": [user],
        "max_tokens": 60,
        "temperature": 1,
        "seed": 1,
        "logit_bias": WORDS,
        "return_token_ids": True,
    }
    with serving(tmp_path) as http:
        first = http.post("/v1/chat/completions", json=body).json()
        [choice] = first["choices"]
        generated = [*first["prompt_token_ids"], *choice["token_ids"]]
        text = MERGING.decode(generated, skip_special_tokens=False)
        assert MERGING.encode(text) != generated, "the tokenizer would split it otherwise"
        body["messages"] = [user, choice["message"], user]
        second = http.post("/v1/chat/completions", json=body).json()
        why = http.get(f"/v1/debug/cache/{second['id']}").json()
    ids, usage = second["prompt_token_ids"], second["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert MERGING.decode(ids, skip_special_tokens=False).startswith(text)
    if remembers:
        assert ids[: len(generated)] == generated
        assert cached == (len(generated) - 1) // BLOCK * BLOCK
        assert why["closest"]["common_tokens"] == len(generated)
    else:
        assert cached < len(first["prompt_token_ids"]) + BLOCK
        assert why["first_difference"]["before"]["message"] == "the output"
        assert why["first_difference"]["here"]["message"] == "messages[1] (assistant)"
