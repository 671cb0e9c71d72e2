"""Turns that come back are tokenized as they were generated."""

from __future__ import annotations

import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake_engine import TOKENIZER, byte_backend
from tokenizers import AddedToken, decoders, models, normalizers

from inferno.server.chat.turns import Turns
from inferno.text import Tokenizer

END = "<|im_end|>"
HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def merging_backend() -> tokenizers.Tokenizer:
    """Bytes, and a few longer tokens which the tokenizer prefers, and a model need not."""
    backend = byte_backend()
    pairs = [("a", "b"), ("ab", "c"), ("Ċ", "Ċ"), ("Ġ", "a"), ("Ã", "©")]
    vocabulary = backend.get_vocab(with_added_tokens=False)
    for i, (left, right) in enumerate(pairs):
        vocabulary[left + right] = 300 + i
    merged = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    merged.pre_tokenizer, merged.decoder = backend.pre_tokenizer, backend.decoder
    merged.add_special_tokens(["<|im_start|>", END])
    return merged


def merging() -> Tokenizer:
    backend = merging_backend()
    end = backend.token_to_id(END)
    assert end is not None
    return Tokenizer(backend, eos_token_ids=[end])


MERGING = merging()
END_ID = MERGING.eos_token_ids[0]


def spell(text: str) -> list[int]:
    """Tokens of single bytes: not those of the tokenizer."""
    return TOKENIZER.encode(text)


def generated(turns: Turns, prompt: str, answer: str, salt: str = "") -> list[int]:
    prompt_ids = turns.encode(MERGING, prompt, salt)
    turns.note(MERGING, prompt, prompt_ids, [*spell(answer), END_ID], salt)
    return [*prompt_ids, *spell(answer), END_ID]


def test_a_turn_that_comes_back_keeps_its_tokens() -> None:
    turns = Turns()
    before = generated(turns, HEAD, "abc é")
    assert MERGING.encode(HEAD + "abc é" + END) != before, "the tokenizer splits it otherwise"
    again = HEAD + "abc é" + END + "\n<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"
    ids = turns.encode(MERGING, again)
    assert ids[: len(before)] == before
    assert ids[len(before) :] == MERGING.encode(again)[-len(ids) + len(before) :]
    assert MERGING.decode(ids, skip_special_tokens=False) == again


def test_a_conversation_keeps_the_tokens_of_all_its_turns() -> None:
    turns, text, ids = Turns(), HEAD, list[int]()
    for answer in ("abc", "\n\nabc", "ab", "é abc "):
        ids = generated(turns, text, answer)
        assert turns.encode(MERGING, text + answer + END) == ids
        text += answer + END + "\n<|im_start|>user\nabc" + END + "\n<|im_start|>assistant\n"
    assert turns.encode(MERGING, text)[: len(ids)] == ids


def test_other_text_or_another_salt_is_not_replayed() -> None:
    turns = Turns()
    generated(turns, HEAD, "abc")
    for text in (HEAD.replace("hi", "ho") + "abc" + END, HEAD + "ab"):
        assert turns.encode(MERGING, text) == MERGING.encode(text)
    text = HEAD + "abc" + END
    assert turns.encode(MERGING, text, "salt") == MERGING.encode(text)
    assert turns.encode(MERGING, text) != MERGING.encode(text)


def test_where_the_tokenizer_does_not_split_nothing_is_replayed() -> None:
    """The client continues the answer in the middle of a token."""
    turns = Turns()
    generated(turns, HEAD, "ab")
    text = HEAD + "abc" + END
    assert turns.encode(MERGING, text) == MERGING.encode(text)


def test_half_a_character_is_not_remembered() -> None:
    turns = Turns()
    turns.note(MERGING, HEAD, MERGING.encode(HEAD), spell("é")[:1])
    turns.note(MERGING, HEAD, MERGING.encode(HEAD), [END_ID])
    assert not len(turns)


def test_a_header_that_merges_with_the_answer() -> None:
    """Alone, the header's line break is a token; before another one it would not be."""
    turns = Turns()
    before = generated(turns, HEAD, "\nabc")
    assert turns.encode(MERGING, HEAD + "\nabc" + END) == before


def test_added_tokens_that_strip_are_left_alone() -> None:
    backend = merging_backend()
    backend.add_special_tokens([AddedToken("<|x|>", rstrip=True, special=True)])
    tokenizer = Tokenizer(backend)
    turns, prompt = Turns(), "<|x|>"
    turns.note(tokenizer, prompt, tokenizer.encode(prompt), spell(" abc"))
    text = "<|x|> abc<|x|>"
    assert turns.encode(tokenizer, text) == tokenizer.encode(text)


def test_pieces_with_a_marker_for_spaces() -> None:
    pieces = ["<unk>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab", "[", "]"]
    scores = [0.0, 0.0, -5.0, -4.0, -4.0, -3.0, -2.0, -1.0, -4.0, -4.0]
    backend = tokenizers.Tokenizer(
        models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=0, byte_fallback=False)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    tokenizer = Tokenizer(backend, eos_token_ids=[1])
    ids = {piece: i for i, piece in enumerate(pieces)}
    turns, prompt = Turns(), "[ab]"
    output = [ids["▁"], ids["a"], ids["b"], ids["</s>"]]
    turns.note(tokenizer, prompt, tokenizer.encode(prompt), output)
    text = "[ab] ab</s>[ab]"
    tokens = turns.encode(tokenizer, text)
    assert tokenizer.decode(tokens, False) == tokenizer.decode(tokenizer.encode(text), False)
    assert tokens[: len(tokenizer.encode(prompt)) + 4] == [*tokenizer.encode(prompt), *output]


def test_memory_is_bounded() -> None:
    turns = Turns(max_bytes=20_000)
    for i in range(200):
        generated(turns, HEAD, f"abc {i} " * 20)
    assert 0 < len(turns) < 60
    assert turns._nbytes <= 20_000
    text = HEAD + "abc 199 " * 20 + END
    assert turns.encode(MERGING, text) != MERGING.encode(text), "the last ones are kept"


def test_the_same_turn_twice_takes_its_memory_once() -> None:
    turns = Turns()
    for _ in range(3):
        generated(turns, HEAD, "abc")
    assert len(turns) == 1
    turns._drop(next(iter(turns._turns)))
    assert (turns._nbytes, turns._ends) == (0, {})


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.text(alphabet="abc\n é😀", max_size=12), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_replay_never_changes_the_text(answers: list[str], choose: random.Random) -> None:
    """Whatever was generated in whatever tokens, the prompt decodes to what was rendered."""
    turns, text = Turns(), HEAD
    for answer in answers:
        prompt_ids = turns.encode(MERGING, text)
        output = MERGING.encode(answer) if choose.random() < 0.3 else spell(answer)
        end = [END_ID] if choose.random() < 0.8 else []
        turns.note(MERGING, text, prompt_ids, [*output, *end])
        if choose.random() < 0.2:
            answer = answer[:-1]
        text += answer + END + "\n<|im_start|>assistant\n"
        ids = turns.encode(MERGING, text)
        assert MERGING.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["", HEAD])
def test_without_turns_it_is_the_tokenizer(text: str) -> None:
    assert Turns().encode(MERGING, text) == MERGING.encode(text)
