from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from inferno.errors import RequestError
from inferno.request.sampling_params import SamplingParams
from inferno.text import TextStream, Tokenizer
from inferno.text.stops import StopStrings

ids = st.lists(st.integers(0, 275), max_size=30)
text = st.text(st.characters(codec="utf-8"), max_size=30)
stops = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def fed(stream: TextStream, token_ids: list[int], size: int) -> list[str]:
    parts = [stream.feed(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
    return [*parts, stream.finish()]


@given(ids, st.integers(1, 9))
def test_any_chunking_of_any_bytes_gives_the_decoded_text(
    bytes_tokenizer: Tokenizer, token_ids: list[int], size: int
) -> None:
    parts = fed(TextStream(bytes_tokenizer), token_ids, size)
    assert "".join(parts) == bytes_tokenizer.decode(token_ids)


@given(ids, st.integers(1, 9), st.booleans())
def test_many_tokens_at_once_give_the_text_of_one_by_one(
    bytes_tokenizer: Tokenizer, token_ids: list[int], size: int, skipped: bool
) -> None:
    """Unknown ids and special tokens included. A stop string that never comes has them one by
    one."""
    asked: dict[str, Any] = {"continues": True, "skip_special_tokens": skipped}
    watched = TextStream(bytes_tokenizer, stop=["\0never\0"], **asked)
    wanted = "".join(fed(watched, token_ids, 1))
    assert "".join(fed(TextStream(bytes_tokenizer, **asked), token_ids, size)) == wanted


@given(ids)
def test_special_tokens_are_text_when_asked_for(
    bytes_tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    parts = fed(TextStream(bytes_tokenizer, skip_special_tokens=False), token_ids, 1)
    assert "".join(parts) == bytes_tokenizer.decode(token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["fallback_tokenizer", "metaspace_tokenizer"])
@given(data=st.data())
def test_sentencepiece_text_equals_the_decoded_text(
    kind: str, request: pytest.FixtureRequest, data: st.DataObject
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    start = data.draw(
        st.lists(st.sampled_from([257, 258, 261, 262, 264, 265, 266, 999]), max_size=4)
    )
    token_ids = start + tokenizer.encode(data.draw(text), add_special_tokens=False)
    parts = fed(TextStream(tokenizer), token_ids, data.draw(st.integers(1, 9)))
    assert "".join(parts) == tokenizer.decode(token_ids)


@given(text)
def test_no_piece_of_a_stream_has_half_a_character(bytes_tokenizer: Tokenizer, whole: str) -> None:
    stream = TextStream(bytes_tokenizer)
    pieces = [stream.feed((i,)) for i in bytes_tokenizer.encode(whole)]
    assert "".join(pieces) == whole
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in whole


def test_an_unfinished_character_is_one_replacement_at_the_end(bytes_tokenizer: Tokenizer) -> None:
    stream = TextStream(bytes_tokenizer)
    assert stream.feed(bytes_tokenizer.encode("a😀")[:-1]) == "a"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_text_that_continues_a_prompt_keeps_its_first_space(fallback_tokenizer: Tokenizer) -> None:
    token_ids = fallback_tokenizer.encode("ab", add_special_tokens=False)
    assert "".join(fed(TextStream(fallback_tokenizer), token_ids, 1)) == "ab"
    assert "".join(fed(TextStream(fallback_tokenizer, continues=True), token_ids, 1)) == " ab"


def naive(whole: str, wanted: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the first end at which a stop string ends, the longest of those."""
    for end in range(1, len(whole) + 1):
        matches = [s for s in wanted if whole[:end].endswith(s)]
        if matches:
            stop = max(matches, key=len)
            return whole[: end if include else end - len(stop)], stop
    return whole, None


@given(st.text("abc😀", max_size=30), stops, st.booleans(), st.integers(1, 9))
def test_stop_strings_end_the_text_whatever_the_chunks(
    bytes_tokenizer: Tokenizer, whole: str, wanted: list[str], include: bool, size: int
) -> None:
    stream = TextStream(bytes_tokenizer, stop=wanted, include_stop=include)
    parts = fed(stream, bytes_tokenizer.encode(whole), size)
    assert ("".join(parts), stream.stopped) == naive(whole, wanted, include)


@given(st.text("abc", max_size=30), stops)
def test_only_a_possible_start_of_a_stop_string_is_held_back(
    bytes_tokenizer: Tokenizer, whole: str, wanted: list[str]
) -> None:
    stream, sent, seen = TextStream(bytes_tokenizer, stop=wanted), "", ""
    for char in whole:
        seen += char
        sent += stream.feed(bytes_tokenizer.encode(char))
        if stream.stopped is not None:
            break
        rest = seen[len(sent) :]
        longest = max(
            (n for s in wanted for n in range(len(s)) if seen.endswith(s[:n])),
            default=0,
        )
        assert seen == sent + rest
        assert len(rest) == longest


def test_stop_strings_are_not_looked_for_before_min_tokens(bytes_tokenizer: Tokenizer) -> None:
    stream = TextStream(bytes_tokenizer, stop=["a"], min_tokens=3)
    assert "".join(fed(stream, bytes_tokenizer.encode("aaabca"), 6)) == "aaabc"
    assert stream.stopped == "a"


def test_nothing_comes_after_a_stop_string(bytes_tokenizer: Tokenizer) -> None:
    stream = TextStream(bytes_tokenizer, stop=["b"])
    assert stream.feed(bytes_tokenizer.encode("abc")) == "a"
    assert stream.feed(bytes_tokenizer.encode("def")) == ""
    assert stream.finish() == ""


def test_a_stop_string_across_characters_of_several_tokens_is_found(
    bytes_tokenizer: Tokenizer,
) -> None:
    stream = TextStream(bytes_tokenizer, stop=["😀!"])
    assert "".join(fed(stream, bytes_tokenizer.encode("hi 😀! there"), 1)) == "hi "
    assert stream.stopped == "😀!"


class Counting(tuple[int, ...]):
    """A tuple that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def test_the_search_takes_as_long_for_many_stop_strings_as_for_one() -> None:
    """However many strings there are, a search goes back to shorter prefixes at most as often as
    it went on to longer ones."""
    strings = tuple(f"{'ab' * (i % 20)}{i}" for i in range(256))
    assert StopStrings.of(strings) is StopStrings.of(strings), "a request's outputs share it"
    shorter = Counting(StopStrings.of(strings).shorter)
    stops, state, text = evolve(StopStrings.of(strings), shorter=shorter), 0, "ab" * 10 + "b"
    for char in text * 50:
        state = stops.follow(state, char)
    assert 0 < shorter.reads <= len(text * 50)


@pytest.mark.parametrize(
    "stop", [["x"] * 257, ["x" * 10_001], ["x" * 100] * 101], ids=["many", "long", "both"]
)
def test_too_many_stop_strings_are_refused(stop: list[str]) -> None:
    with pytest.raises(RequestError, match="stop has"):
        SamplingParams(stop=stop)
