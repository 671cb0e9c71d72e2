"""Grammars are checked in a process of their own: a hostile one is refused in time, and disturbs
nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inferno import AsyncLLM, SamplingParams
from inferno.contracts import GrammarSpec
from inferno.errors import CheckerBusyError, GrammarError, RequestError
from inferno.plan import Options, resolve
from inferno.process.grammar_check import GrammarChecker

SLOW = GrammarSpec(
    kind="lark", text="start: T\nT: /(.*a.{30})/ & /(.*b.{29})/ & /(.*c.{28})/ & ~/.*d.{27}/"
)
GOOD = GrammarSpec(kind="regex", text="[0-9]{3}")


def checking(
    body: Callable[[GrammarChecker], Awaitable[None]], seconds: float = 1.0, patience: int = 100
) -> None:
    """Run with a checker that a busy machine may starve for a while, unless that is the test."""

    async def run() -> None:
        checker = GrammarChecker(resolve("demo", Options(device="cpu")), seconds=seconds)
        try:
            await body(checker)
        finally:
            await checker.close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("inferno.process.bounded.PATIENCE", patience)
        asyncio.run(run())


def refused(value: object) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(value))


@pytest.mark.slow
def test_a_grammar_that_does_not_end_is_stopped_and_others_go_on() -> None:
    async def body(checker: GrammarChecker) -> None:
        await checker.check(GOOD)
        before = checker._process
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with pytest.raises(GrammarError, match="takes more than 1 s"):
            await checker.check(SLOW)
        ticker.cancel()
        assert ticks > 20, "the event loop went on"
        assert before is not None and before.returncode is not None, "the process is killed"
        await checker.check(GOOD)

    checking(body)


def test_a_process_that_has_ended_is_waited_for_and_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`kill` may reap it before asyncio does: the limit that ended it would not be known."""
    killed: list[int] = []

    async def body(checker: GrammarChecker) -> None:
        monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda p: killed.append(p.pid))
        try:
            with pytest.raises(GrammarError, match="takes more than 0.2 s"):
                await checker.check(SLOW)
        finally:
            monkeypatch.undo()
        assert not killed
        assert checker.kills == 1

    checking(body, seconds=0.2)


HOSTILE = {
    "repeats": GrammarSpec(kind="regex", text="(((a{1,1000}b){1,1000}c){1,1000}d){1,1000}"),
    "alternatives": GrammarSpec(kind="regex", text="|".join(f"w{i}" for i in range(20_000))),
    "states": GrammarSpec(kind="regex", text="(a|b)*a(a|b){2000}"),
    "unicode": GrammarSpec(kind="regex", text=r"(\p{L}{1,5000}\d{1,5000}){1,1000}"),
    "recursion": refused(
        {
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
            "$ref": "#/$defs/a",
        }
    ),
    "itself": refused({"$ref": "#"}),
    "items": refused({"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
    "length": refused({"type": "string", "minLength": 10**9}),
    "multiples": refused(
        {"type": "integer", "allOf": [{"multipleOf": 10007}, {"multipleOf": 10009}]}
    ),
    "products": refused(
        {"allOf": [{"oneOf": [{"pattern": f"a{i}{j}.*"} for j in range(10)]} for i in range(9)]}
    ),
    "rules": GrammarSpec(
        kind="lark",
        text="start: A0\n"
        + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(60))
        + '\nA60: "x"',
    ),
    "ambiguity": GrammarSpec(kind="lark", text='start: s\ns: s s s | s s | "a" | '),
    "gbnf": GrammarSpec(kind="gbnf", text="root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
}


def test_no_hostile_grammar_hangs() -> None:
    """Each is refused, or compiles within the deadline."""

    async def body(checker: GrammarChecker) -> None:
        for name, spec in HOSTILE.items():
            start = time.monotonic()
            try:
                await checker.check(spec)
            except GrammarError as error:
                assert error.cause, name
            assert time.monotonic() - start < 20, name
        await checker.check(GOOD)

    checking(body)


@pytest.mark.slow
def test_a_cancelled_check_does_not_answer_the_next_one() -> None:
    async def body(checker: GrammarChecker) -> None:
        await checker.check(GOOD)
        task = asyncio.create_task(checker.check(SLOW))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(GrammarError, match="unclosed"):
            await checker.check(GrammarSpec(kind="regex", text="(("))

    checking(body)


@pytest.mark.slow
def test_a_checker_that_gets_no_time_says_nothing_of_the_grammar() -> None:
    async def body(checker: GrammarChecker) -> None:
        (await checker._started()).send_signal(signal.SIGSTOP)
        with pytest.raises(CheckerBusyError, match="gets no time") as caught:
            await checker.check(GOOD)
        assert caught.value.status == 503 and caught.value.headers["Retry-After"]
        await checker.check(GOOD)

    checking(body, seconds=0.2, patience=5)


def test_a_check_that_waits_too_long_for_its_turn_is_not_made() -> None:
    async def body(checker: GrammarChecker) -> None:
        async with checker._lock:
            with pytest.raises(CheckerBusyError, match="too many grammars"):
                await checker.check(GOOD)

    checking(body, seconds=0.02, patience=5)


@pytest.mark.slow
def test_a_grammar_is_asked_of_another_process_once_its_first_is_killed() -> None:
    async def body(checker: GrammarChecker) -> None:
        (await checker._started()).send_signal(signal.SIGKILL)
        await checker.check(GOOD)

    checking(body)


@pytest.mark.slow
def test_a_grammar_that_ends_every_process_takes_too_much_memory() -> None:
    async def body(checker: GrammarChecker) -> None:
        started = checker._started

        async def dying() -> asyncio.subprocess.Process:
            process = await started()
            process.send_signal(signal.SIGKILL)
            return process

        checker._started = dying  # type: ignore[method-assign]
        with pytest.raises(GrammarError, match="too much memory"):
            await checker.check(GOOD)

    checking(body)


FAILS_WHEN_FOLLOWED = {
    "counted": GrammarSpec(kind="regex", text=r"(\p{L}{1,60}[^\W\d]{3,40}){1,200}"),
    "patterns": refused(
        {"type": "string", "allOf": [{"pattern": f"({c}|.)*x{{{n}}}"} for n, c in enumerate("abc")]}
    ),
}


@pytest.mark.parametrize("name", ["counted", pytest.param("patterns", marks=pytest.mark.slow)])
def test_a_grammar_that_compiles_and_cannot_be_followed_is_refused(name: str) -> None:
    async def body(checker: GrammarChecker) -> None:
        with pytest.raises(GrammarError, match="cannot be followed|Unable to determine"):
            await checker.check(FAILS_WHEN_FOLLOWED[name])

    checking(body)


def test_a_signal_to_the_process_group_leaves_the_checker_running() -> None:
    async def body(checker: GrammarChecker) -> None:
        await checker.check(GOOD)
        process = checker._process
        assert process is not None
        for sent in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(sent)
        await checker.check(refused({"type": "integer"}))
        assert checker._process is process and process.returncode is None

    checking(body)


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What an engine in a process of its own makes of constrained requests, before and after it was
    killed."""
    results: dict[str, Any] = {}
    params = SamplingParams(
        structured_outputs={"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 4}},
        temperature=2.0,
        seed=7,
        max_tokens=60,
    )

    async def body() -> None:
        async with AsyncLLM("demo", device="cpu", max_num_seqs=4) as llm:
            first = await asyncio.gather(*(llm.generate("x", params) for _ in range(6)))
            results["first"] = [output.outputs[0].text for output in first]
            try:
                await llm.generate("x", SamplingParams(structured_outputs={"regex": "(("}))
            except RequestError as error:
                results["error"] = error
            client: Any = llm._client
            client._engine._process.kill()
            for alive in (False, True):
                while llm.alive is not alive:
                    await asyncio.sleep(0.02)
            results["again"] = (await llm.generate("x", params)).outputs[0].text

    asyncio.run(body())
    return results


@pytest.mark.slow
def test_an_engine_process_compiles_the_grammars_of_its_requests(answers: dict[str, Any]) -> None:
    assert len(set(answers["first"])) == 1, "a seed decides, whatever else runs"
    value = json.loads(answers["first"][0])
    assert isinstance(value, list) and set(value) <= {1, 2}


@pytest.mark.slow
def test_a_bad_grammar_does_not_reach_the_engine(answers: dict[str, Any]) -> None:
    assert answers["error"].param == "structured_outputs.regex"


@pytest.mark.slow
def test_a_restarted_engine_compiles_them_again(answers: dict[str, Any]) -> None:
    assert answers["again"] == answers["first"][0]


def test_a_checker_whose_server_has_ended_ends_without_a_word() -> None:
    code = "from inferno.process.bounded import serve; serve(bytes, b'ready', 1.0, 1 << 34)"
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert ended.returncode == 0 and not ended.stderr
