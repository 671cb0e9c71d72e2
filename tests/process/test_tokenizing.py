"""Tokenizers that may hang are used in another process, with limits."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from inferno.errors import CheckpointError, RequestError, TokenizerBusyError
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model
from inferno.process.tokenizing import OutsideTokenizer
from inferno.server.hosting.served_model import in_time
from inferno.text import Tokenizer

pytest.importorskip("inferno_demo")
MODEL = Path(str(files("inferno_demo"))) / "model"
SLOW = "(a|a)*$"
"""Needs twice the time for each letter more, and the library gives up after seconds."""
DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
"""Cohere's: reads a number to its end from each third of its digits."""
TEXT = ("a" * 19 + "! ") * 200


def split_by(pattern: str) -> dict[str, Any]:
    kind = {"type": "Split", "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": {**kind, "pattern": {"Regex": pattern}}}


def checkpoint(folder: Path, **values: Any) -> Path:
    shutil.copytree(MODEL, folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def opened(folder: Path) -> Tokenizer:
    with open_model(str(folder), Options(device="cpu", memory="1GiB")) as model:
        tokenizer = Preprocessor.open(model).tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return opened(checkpoint(tmp_path_factory.mktemp("slow") / "model", **split_by(SLOW)))


@pytest.fixture(scope="module")
def usual() -> Tokenizer:
    return opened(MODEL)


def test_usual_tokenizers_are_used_in_this_process(usual: Tokenizer) -> None:
    assert not usual.waits and usual.inside is usual


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{N}{1,3}",
        " {2,}",
        r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+| ?[^(\s)]+[\r\n]*|\s+(?!\S)",
    ],
)
def test_the_expressions_of_usual_tokenizers_are_not_suspect(pattern: str) -> None:
    document = json.loads((MODEL / "tokenizer.json").read_text()) | split_by(pattern)
    assert not Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(document))).is_suspect


@pytest.mark.parametrize(
    "values",
    [
        split_by("(a+)+$"),
        split_by("((aa)+)+$"),
        split_by(r"(a)\1"),
        split_by("(?:a{1,1000}){2,}"),
        split_by(r"\s+$"),
        split_by(DIGITS),
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 2000}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Whitespace"}, split_by("(a*)*b")["pre_tokenizer"]],
            }
        },
    ],
)
def test_what_may_take_far_longer_than_its_text_is_suspect(values: dict[str, Any]) -> None:
    document = json.loads((MODEL / "tokenizer.json").read_text()) | values
    assert Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(document))).is_suspect


def test_a_text_that_takes_too_long_ends_in_a_sentence(slow: Tokenizer) -> None:
    assert slow.waits
    began = time.monotonic()
    with pytest.raises(RequestError, match="the model's tokenizer takes more than") as caught:
        slow.encode(TEXT)
    assert time.monotonic() - began < 30 and caught.value.code == "tokenizer_failed"
    assert slow.encode("b b") == slow.inside.encode("b b"), "another process encodes the next"


@pytest.mark.slow
def test_a_number_of_many_digits_ends_in_a_sentence(tmp_path: Path) -> None:
    tokenizer = opened(checkpoint(tmp_path / "digits", **split_by(DIGITS)))
    assert tokenizer.encode("1234 and 5") == tokenizer.inside.encode("1234 and 5")
    began = time.monotonic()
    with pytest.raises(RequestError, match="the model's tokenizer takes more than"):
        tokenizer.encode("1" * 100_000)  # two minutes
    assert time.monotonic() - began < 30


def test_what_the_library_gives_up_is_an_error_of_the_request(slow: Tokenizer) -> None:
    with pytest.raises(RequestError, match="fails on this text"):
        slow.inside.encode("a" * 40 + "!")


def test_texts_are_encoded_as_in_this_process(slow: Tokenizer) -> None:
    for text in ("", "Hello, world!", "\u00e9\u4e16 \U0001f600" * 4000):
        assert slow.encode(text) == slow.inside.encode(text)
        assert slow.encode(text, False) == slow.inside.encode(text, False)
        assert slow.encode_spans(text[:50]) == slow.inside.encode_spans(text[:50])
    assert slow.encode_pair("x", "y z") == slow.inside.encode_pair("x", "y z")
    with pytest.raises(RequestError, match="valid Unicode"):
        slow.encode("\ud800")


def test_the_event_loop_goes_on_meanwhile(slow: Tokenizer) -> None:
    async def run() -> float:
        longest, last, task = 0.0, time.monotonic(), None
        task = asyncio.create_task(in_time(lambda: slow.encode(TEXT), len(TEXT), slow))
        while not task.done():
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert isinstance(task.exception(), RequestError)
        return longest

    slow.encode("it runs")
    assert asyncio.run(run()) < 1.0, "in this process it would be 5 s"


@pytest.mark.slow
def test_a_process_that_stands_still_is_replaced(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", **split_by(SLOW))
    with open_model(str(folder), Options(device="cpu", memory="1GiB")) as model:
        inside = Tokenizer.from_assets(model.text(), model.plan.config)
        assert inside is not None
        tokenizer = OutsideTokenizer(inside, model.plan)
    assert tokenizer.encode("b") == inside.encode("b")
    process = tokenizer._child._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TokenizerBusyError):
        tokenizer.encode("b")
    assert tokenizer.encode("b") == inside.encode("b")


def test_threads_take_turns(slow: Tokenizer) -> None:
    tokens = dict[int, list[int]]()

    def encode(i: int) -> None:
        tokens[i] = slow.encode(f"text {i}")

    threads = [threading.Thread(target=encode, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokens == {i: slow.inside.encode(f"text {i}") for i in range(8)}


def test_a_decoder_that_may_hang_is_refused(tmp_path: Path) -> None:
    step = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    with pytest.raises(CheckpointError, match="decoder"):
        opened(checkpoint(tmp_path / "model", decoder=step))
