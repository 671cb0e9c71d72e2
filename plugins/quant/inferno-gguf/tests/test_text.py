"""What a file says of strings besides its vocabulary: ends of a turn, chat templates, sampling; and
what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf_vocabulary import write
from tokenizers import models

from inferno.errors import CheckpointError
from inferno.testing import ChatTemplate, eos_token_ids
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
PLAIN: dict[str, Any] = {
    "model": "gpt2",
    "tokens": ["a", "b", "ab", "<|x|>", "<|im_end|>"],
    "types": [1, 1, 1, 3, 3],
    "merges": ["a b"],
}


def test_ends_of_a_turn_are_all_that_the_file_names_or_that_their_names_tell(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "model.gguf",
        **{**PLAIN, "eos_token_id": 3, "eot_token_id": 2, "padding_token_id": 0},
    )
    assets = read_text(GgufFile.open(path))
    assert eos_token_ids(assets) == (3, 2, 4)
    assert assets.tokenizer_config == {"eos_token": "<|x|>", "eot_token": "ab", "pad_token": "a"}


def test_a_message_of_several_does_not_end_the_turn(tmp_path: Path) -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    path = write(
        tmp_path / "model.gguf", "gpt2", tokens, [1, 3, 3, 3], merges=["a b"], eos_token_id=2
    )
    assert set(eos_token_ids(read_text(GgufFile.open(path)))) == {2, 3}


def test_chat_templates(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    path = write(tmp_path / "model.gguf", **{**PLAIN, key: TEMPLATE})
    rendered = ChatTemplate.from_assets(read_text(GgufFile.open(path))).render(
        [{"role": "user", "content": "hi"}]
    )
    assert rendered == "<|user|>hi<|end|>"
    named = {key: TEMPLATE, f"{key}.tool_use": "tools {{ bos_token }}"}
    path = write(tmp_path / "model.gguf", **{**PLAIN, **named, "bos_token_id": 3})
    template = ChatTemplate.from_assets(read_text(GgufFile.open(path)))
    assert template.source() == TEMPLATE
    assert (
        template.render([{"role": "user", "content": "hi"}], tools=[{"type": "function"}])
        == "tools <|x|>"
    )


def test_recommended_sampling(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
    }
    config = read_text(
        GgufFile.open(write(tmp_path / "model.gguf", **{**PLAIN, **keys}))
    ).generation_config
    assert config == {"eos_token_id": [4], "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize(("kind", "mode"), [(0, None), (1, "mean"), (3, "lasttoken"), (4, None)])
def test_pooling_of_an_embedding_model(tmp_path: Path, kind: int, mode: str | None) -> None:
    path = write(tmp_path / "model.gguf", **{**PLAIN, "llama.pooling_type": kind})
    modules = read_text(GgufFile.open(path)).modules
    modes = [m["config"]["pooling_mode"] for m in modules if m["type"] == "Pooling"]
    assert modes == ([] if mode is None else [mode])


def test_a_tokenizer_that_the_file_holds_whole_is_taken(tmp_path: Path) -> None:
    whole = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()
    path = write(tmp_path / "model.gguf", **{**PLAIN, "tokenizer.huggingface.json": whole})
    assert read_text(GgufFile.open(path)).tokenizer_json == whole.encode()


def test_a_model_without_a_tokenizer_still_runs_on_ids(tmp_path: Path) -> None:
    assert (
        read_text(GgufFile.open(write(tmp_path / "model.gguf", "none", ["a"], [1]))).tokenizer_json
        is None
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "rwkv"}, "type 'rwkv'.*"),
        ({"model": "plamo2"}, "type 'plamo2'"),
        ({"tokens": ["a", "a", "b", "c", "d"]}, "5 tokens, 4 of them different"),
        ({"types": [1, 1]}, "with 2 types"),
        ({"merges": ["ab"]}, "not a pair"),
        ({"merges": [1, 2]}, "merges is not a list of str"),
        ({"model": "llama"}, "0 scores for 5 tokens"),
        ({"model": "llama", "scores": [1.0]}, "1 scores for 5 tokens"),
        (
            {
                "model": "t5",
                "scores": [0.0] * 5,
                "unknown_token_id": 5,
                "tokens": list("ab"),
                "types": [1, 1],
            },
            "scores",
        ),
        (
            {"model": "t5", "scores": [0.0] * 2, "tokens": list("ab"), "types": [1, 1]},
            "no unknown token",
        ),
        ({"tokenizer.chat_template": 3}, "not a string"),
    ],
)
def test_vocabularies_that_cannot_be(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", **{**PLAIN, **changes})
    with pytest.raises(CheckpointError, match=complaint) as caught:
        read_text(GgufFile.open(path))
    assert caught.value.remedy
