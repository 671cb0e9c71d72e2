import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, RequestError
from inferno.text import Tokenizer, eos_token_ids


def with_bos() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(
        models.WordLevel({"<s>": 0, "a": 1, "b": 2, "</s>": 3, "<eot>": 4}, unk_token="a")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>", "</s>", "<eot>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    backend.enable_truncation(3)
    backend.enable_padding(length=3)
    return backend


def opened(**files: Any) -> Tokenizer:
    tokenizer = Tokenizer.from_assets(
        TextAssets(tokenizer_json=with_bos().to_str().encode(), **files)
    )
    assert tokenizer is not None
    return tokenizer


@given(st.text(st.characters(codec="utf-8")))
def test_encoded_text_decodes_to_itself(bytes_tokenizer: Tokenizer, text: str) -> None:
    assert bytes_tokenizer.decode(bytes_tokenizer.encode(text), skip_special_tokens=False) == text


@given(st.text(st.characters(codec="utf-8")))
def test_token_bytes_join_to_the_text(bytes_tokenizer: Tokenizer, text: str) -> None:
    ids = bytes_tokenizer.encode(text)
    assert b"".join(map(bytes_tokenizer.token_bytes, ids)) == text.encode()


def test_a_file_s_truncation_and_padding_do_not_touch_prompts() -> None:
    assert opened().encode("a b a b a b") == [0, 1, 2, 1, 2, 1, 2]
    assert opened().encode("a") == [0, 1]


def test_bos_is_added_by_the_file_s_own_rule_and_only_when_wanted() -> None:
    assert opened().encode("a b", add_special_tokens=False) == [1, 2]


def test_text_that_begins_with_bos_gets_no_second() -> None:
    assert opened().encode("<s> a") == [0, 1]
    assert opened().encode("<s> <s> a", add_special_tokens=False) == [0, 0, 1]


def test_spaces_that_a_tokenizer_adds_are_no_bos(fallback_tokenizer: Tokenizer) -> None:
    for text in ("", " a", "  a", "a"):
        ids = fallback_tokenizer.encode(text)
        assert ids == fallback_tokenizer.encode(text, add_special_tokens=False)
        assert fallback_tokenizer.decode(ids) == text


def test_end_tokens_are_the_union_of_all_files_in_order() -> None:
    assets = TextAssets(
        tokenizer_json=with_bos().to_str().encode(),
        generation_config={"eos_token_id": [4, 3]},
        tokenizer_config={"eos_token": {"content": "<s>"}},
    )
    tokenizer = Tokenizer.from_assets(assets, {"eos_token_id": 3})
    assert tokenizer is not None
    assert tokenizer.eos_token_ids == (4, 3, 0)


def test_end_tokens_of_a_checkpoint_without_a_tokenizer_come_from_its_configs() -> None:
    assert eos_token_ids(
        TextAssets(generation_config={"eos_token_id": None}), {"eos_token_id": [7]}
    ) == (7,)


def test_a_checkpoint_without_a_tokenizer_has_none() -> None:
    assert Tokenizer.from_assets(TextAssets()) is None


@pytest.mark.parametrize("document", [b"", b"{}", b'{"model": {"type": "BPE"}', b"[]", b"\xff"])
def test_a_malformed_tokenizer_is_a_checkpoint_error(document: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_assets(TextAssets(tokenizer_json=document))


def test_a_directory_that_transformers_can_read_has_a_tokenizer(tmp_path: Path) -> None:
    with_bos().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    tokenizer = Tokenizer.from_assets(
        TextAssets(tokenizer_dir=str(tmp_path), tokenizer_config={"eos_token": "</s>"})
    )
    assert tokenizer is not None
    assert tokenizer.encode("a b") == [0, 1, 2]
    assert tokenizer.eos_token_ids == (3,)


def test_a_directory_without_a_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_assets(TextAssets(tokenizer_dir=str(tmp_path)))


@pytest.mark.parametrize("token_id", [-1, 270, 2**31, 2**40])
def test_ids_that_no_token_has_are_no_text(bytes_tokenizer: Tokenizer, token_id: int) -> None:
    assert bytes_tokenizer.token_bytes(token_id) == b""
    assert bytes_tokenizer.decode([token_id]) == ""


def test_text_with_lone_surrogates_is_a_request_error(bytes_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        bytes_tokenizer.encode("a\ud800")


def test_a_space_in_the_middle_of_a_text_belongs_to_its_token(
    fallback_tokenizer: Tokenizer,
) -> None:
    token_id = fallback_tokenizer.token_id("▁ab")
    assert token_id is not None
    assert fallback_tokenizer.token_text(token_id) == " ab"
    assert fallback_tokenizer.first_bytes(token_id) == b"ab"


def test_text_rooms_import_no_torch() -> None:
    code = (
        "import sys; from inferno.text import ChatTemplate;"
        "assert 'transformers' not in sys.modules;"
        "ChatTemplate({'default': 'hi'}).render([{'role': 'user'}]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
