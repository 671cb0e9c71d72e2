"""Engine processes that are launched before their plan, and callers without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from inferno.errors import EngineDeadError, GrammarError, RequestError
from inferno.llm import LLM
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, Plan, open_model, resolve
from inferno.process import launch
from inferno.process.blocking import BlockingClient
from inferno.process.client import EngineClient
from inferno.request.requests import FinishReason, Request
from inferno.request.sampling_params import SamplingParams

pytest.importorskip("inferno_demo")

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
SECONDS = 60
"""For what takes milliseconds on a quiet machine."""


def run(code: str) -> str:
    """Run code in a fresh process, which has not imported torch. Returns its last line."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def gone(process: launch.EngineProcess | int) -> bool:
    """Wait until it has ended."""
    if isinstance(process, launch.EngineProcess):
        return process._child.wait(SECONDS) is not None
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_a_command_runs_the_process_that_was_launched_first_and_imports_no_torch() -> None:
    line = run("""
        import subprocess, sys
        from inferno.__main__ import main
        from inferno.process import launch

        pids, real = [], subprocess.Popen
        class Counted(real):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                pids.append((self.pid, "inferno.cli" in sys.modules))
        subprocess.Popen = Counted
        launch.usable_cores = lambda: 2
        sys.argv = ["inferno", "generate", "demo", "-p", "import", "--max-tokens", "2"]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        print(len(pids), pids[0][1], "torch" in sys.modules)
    """)
    assert line == "1 False False"


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "--help"],
        ["chat", "--url=http://127.0.0.1:1"],
        ["serve", "--print-config"],
        ["explain", "demo"],
        [],
    ],
)
def test_a_command_without_an_engine_launches_none(words: list[str]) -> None:
    line = run(f"""
        import inferno.cli, sys
        from inferno.__main__ import main
        from inferno.process import launch
        launch.usable_cores = lambda: 2
        inferno.cli.main = lambda early: print(early)
        sys.argv = ["inferno", *{words}]
        main()
    """)
    assert line == "None"


def test_a_server_of_several_models_keeps_no_process_for_the_first(tmp_path: Path) -> None:
    line = run(f"""
        import sys
        from inferno.__main__ import main
        from inferno.process import launch
        launched, real = [], launch.EngineProcess
        launch.EngineProcess = lambda *args: launched.append(real(*args)) or launched[-1]
        launch.usable_cores = lambda: 2
        sys.argv = ["inferno", "serve", "{tmp_path}/one", "{tmp_path}/two", "--locked"]
        try:
            main()
        except SystemExit as end:
            assert end.code, "--locked is for one model"
        print(len(launched), launched[0]._child.wait({SECONDS}))
    """)
    assert line == "1 -9"


def test_on_one_core_the_engine_runs_in_the_same_process() -> None:
    line = run("""
        from inferno.process import launch
        launch.usable_cores = lambda: 1
        print(launch.launch_early())
    """)
    assert line == "None"


def test_a_process_without_a_plan_ends_with_its_parent() -> None:
    pid = run("""
        from inferno.process import launch
        launch.usable_cores = lambda: 2
        print(launch.launch_early().pid)
    """)
    assert gone(int(pid))


def test_the_end_of_a_process_is_seen_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    process = launch.EngineProcess()
    monkeypatch.setattr(threading.Thread, "start", refuse)

    async def ended() -> list[int]:
        waiters = [asyncio.ensure_future(process.wait()) for _ in range(2)]
        await asyncio.sleep(0.2)
        process.kill()
        return [*await asyncio.wait_for(asyncio.gather(*waiters), SECONDS), await process.wait()]

    assert asyncio.run(ended()) == [-signal.SIGKILL] * 3
    os.close(process.beats)


def test_a_client_that_is_closed_before_its_start_ends_the_process_it_was_given() -> None:
    early = launch.EngineProcess()
    client = EngineClient(resolve("demo", Options(memory="2GiB")), early=early)
    asyncio.run(client.close())
    assert gone(early)


def test_an_engine_gets_an_early_process_if_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_COMMAND", ("sh", "-c", "exec cat >/dev/null"))
    plan = resolve("demo", Options(memory="2GiB"))
    early = launch.EngineProcess(beat=3)
    first, second = launch.launch(plan, 3, early), launch.launch(plan, 3)
    assert first is early and second is not early
    begun = launch.EngineProcess(beat=3)
    begun.begin(plan)
    assert launch.launch(plan, 3, begun) is begun
    others = []
    for other, beat in ((plan, 5), (attrs.evolve(plan, model_id="b"), 3)):
        unfit = launch.EngineProcess(beat=3)
        unfit.begin(plan)
        others.append(launch.launch(other, beat, unfit))
        assert others[-1] is not unfit and gone(unfit)
    for process in (first, second, begun, *others):
        process.discard()
        assert gone(process)


@pytest.fixture(scope="module")
def engine() -> Iterator[BlockingClient]:
    engine = BlockingClient(resolve("demo", Options(memory="2GiB")))
    engine.wait_until_ready()
    yield engine
    engine.close()
    engine.close()  # does nothing


@pytest.fixture
def llm(engine: BlockingClient) -> LLM:
    with open_model("demo", Options(memory="2GiB")) as opened:
        return LLM.of(engine, Preprocessor.open(opened, None))


def test_it_gives_the_tokens_of_an_engine_in_this_process(llm: LLM) -> None:
    prompts = ["import math", "def f(x):", "class A"]
    with LLM("demo", memory="2GiB") as here:
        wanted = here.generate(prompts, GREEDY)
    given = llm.generate(prompts, GREEDY)
    assert [o.outputs[0].token_ids for o in given] == [o.outputs[0].token_ids for o in wanted]


def test_an_abandoned_stream_leaves_nothing(llm: LLM, engine: BlockingClient) -> None:
    long = attrs.evolve(GREEDY, max_tokens=1000)
    for _ in llm.stream("import", long):
        break
    assert not engine.busy
    assert len(llm.generate("import", GREEDY)[0].outputs[0].token_ids) == 8


def test_a_grammar_that_does_not_compile_is_refused(engine: BlockingClient) -> None:
    wrong = attrs.evolve(GREEDY, structured_outputs={"regex": "("})
    with pytest.raises(GrammarError):
        engine.submit(Request(id="a", token_ids=(5, 6), params=wrong))
    assert not engine.busy


def test_an_interrupted_wait_loses_no_tokens(
    engine: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while waiting, of another request than the one that is taken next."""
    from concurrent.futures import Future

    real: Any = Future.result

    def interrupted(future: Any, timeout: float | None = None) -> Any:
        monkeypatch.setattr(Future, "result", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()  # waits for nothing yet
    engine.submit(Request(id="b", token_ids=(5, 6), params=GREEDY))
    tokens = []
    while engine.busy:
        tokens += engine.step()
    assert [t.request_id for t in tokens] == ["b"] * len(tokens)
    assert tokens[-1].finish is FinishReason.LENGTH


def test_the_error_of_a_start_is_raised() -> None:
    plan: Plan = resolve("demo", Options(memory="2GiB"))
    wrong = attrs.evolve(plan, path="/nowhere")
    engine = BlockingClient(wrong)
    with pytest.raises(Exception, match="nowhere"):
        engine.wait_until_ready()
    engine.close()
    engine.abort("a")
    for call in (
        lambda: engine.submit(Request(id="a", token_ids=(5,), params=GREEDY)),
        engine.step,
    ):
        with pytest.raises(RequestError, match="the engine is closed"):
            call()


@pytest.mark.slow
def test_an_engine_that_fails_after_its_parent_has_ended_ends_at_once(tmp_path: Path) -> None:
    beats, pipe = os.pipe()
    command = [sys.executable, "-m", "inferno.process", "1", str(pipe), "1.0"]
    there = os.fsencode(tmp_path) + b"\n"  # a folder without a plan
    try:
        ended = subprocess.run(command, input=there, pass_fds=(pipe,), timeout=25)
    finally:
        os.close(beats)
        os.close(pipe)
    assert ended.returncode == 0


@pytest.mark.slow
def test_an_engine_that_ends_fails_the_wait() -> None:
    engine = BlockingClient(resolve("demo", Options(memory="2GiB")))
    engine.wait_until_ready()
    engine.submit(Request(id="a", token_ids=(5, 6), params=attrs.evolve(GREEDY, max_tokens=1500)))
    assert isinstance(engine._client, EngineClient)
    pid = engine._client.pid
    assert pid is not None
    os.kill(pid, 9)
    with pytest.raises(EngineDeadError):
        while True:
            engine.step()
    engine.close()


@pytest.mark.slow
def test_what_is_imported_beside_torchs_library_needs_neither_torch_nor_numpy() -> None:
    line = run("""
        import sys
        from inferno.process.__main__ import import_python

        import_python()
        print({"torch", "numpy"} & set(sys.modules))
    """)
    assert line == "set()"
