"""What the engine process does with messages, without a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferno.plan import Options, plan_to_json, resolve
from inferno.process import protocol
from inferno.process.worker import Worker
from inferno.request.requests import EngineOutput, EngineStats, FinishReason
from inferno.testing.tiny import run_python


class Socket:
    """A client that sends nothing."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def poll(self, timeout: int) -> int:
        return 0

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append(frames[0])


class Prefilling:
    """An engine with one request of its own, whose other end asks for the next prompt as soon as
    one is computed."""

    asleep, weight_version, waits_for, listens, busy = False, "0", None, None, True

    def __init__(self) -> None:
        self.unfinished = ["mine", "link-0"]
        self.steps = self.rests = 0
        self.asked = list[float | None]()
        self.ask: Callable[[], float | None] = lambda: None

    def expected(self) -> float | None:
        return 0.0

    def step(self, *, naps: bool) -> list[EngineOutput]:
        assert not naps, "an engine process waits for stores and others at once"
        self.steps += 1
        assert self.steps < 100, "it waits for what has no end"
        mine = self.unfinished[0] == "mine" and self.steps < 5
        self.unfinished = [*(["mine"] if mine else []), f"link-{self.steps}"]
        return [] if mine else [EngineOutput("mine", 1, FinishReason.LENGTH)]

    def sleep(self, level: int) -> None:
        assert "mine" not in self.unfinished
        self.asleep = True

    def update_weights(self, path: Path, version: str | None, *, temporary: bool) -> None:
        self.weight_version = str(version)
        self.asked.append(self.ask())

    def rest(self) -> None:
        self.rests += 1

    def abort(self, request_id: str) -> None:
        self.unfinished = [each for each in self.unfinished if each != request_id]

    def stats(self) -> EngineStats:
        return EngineStats()


class Heart:
    def moved(self) -> None:
        return None


def worker_of(socket: Socket, engine: Prefilling) -> Worker:
    worker = Worker(cast(Any, socket), os.getppid(), cast(Any, Heart()))
    worker._engine = cast(Any, engine)
    return worker


def told(worker: Worker, **control: Any) -> None:
    assert worker._take(protocol.CONTROL, protocol.encode(protocol.Control(**control)))


def test_nothing_is_computed_in_a_pause_in_which_weights_may_be_updated() -> None:
    socket, engine = Socket(), Prefilling()
    worker = worker_of(socket, engine)
    told(worker, action="pause", mode="keep")
    assert worker._serve() and worker._serve()
    assert engine.steps == 0 and engine.rests == 2
    told(worker, action="update_weights", mode="wait", version="new")  # nobody can end
    assert engine.steps == 0 and engine.weight_version == "new"
    told(worker, action="resume")
    assert worker._serve() and engine.steps == 1


def test_a_pause_may_end_requests_or_wait_for_their_ends() -> None:
    engine = Prefilling()
    told(worker_of(Socket(), engine), action="pause", mode="abort")
    assert engine.unfinished == [] and engine.steps == 0
    engine = Prefilling()
    told(worker_of(Socket(), engine), action="pause", mode="wait")
    assert engine.steps == 5 and "mine" not in engine.unfinished


def test_a_pause_does_not_wait_for_the_prompts_that_other_instances_go_on_asking_for() -> None:
    socket, engine = Socket(), Prefilling()
    told(worker_of(socket, engine), action="sleep", mode="wait")
    assert engine.asleep and engine.steps == 5
    assert protocol.CONTROLLED in socket.sent


def test_weights_may_take_long_to_load_and_nothing_else_between_steps() -> None:
    engine = Prefilling()
    worker = worker_of(Socket(), engine)
    assert worker._expected() is None, "it loads its model"
    worker._may_take_long, engine.ask = False, worker._expected
    told(worker, number=1, action="update_weights", path="/weights", version="2")
    assert engine.asked == [None]
    assert worker._expected() == 0


def test_an_engine_that_computes_with_others_is_late_when_all_should_be_done() -> None:
    worker = worker_of(Socket(), Prefilling())
    worker._may_take_long = False
    for expected in (30.0, None):
        worker._together = cast(Any, SimpleNamespace(expected=expected))
        assert worker._expected() == expected


def test_an_engine_whose_step_fails_leaves_the_others_before_it_ends() -> None:
    engine, left = Prefilling(), list[str]()
    worker = worker_of(Socket(), engine)
    engine.steps = 100
    others = SimpleNamespace(
        descriptor=None, owes=False, rounds=0, leave=lambda: left.append("now")
    )
    worker._together = cast(Any, others)
    with pytest.raises(AssertionError, match="no end"):
        worker._serve_all()
    assert left == ["now"]


def test_a_plan_is_opened_without_what_another_thread_imports_meanwhile(
    tmp_path: Path,
) -> None:
    """Two threads that import one package from different ends are a deadlock, which Python ends
    with an error in one of them."""
    pytest.importorskip("inferno_demo")
    plan = resolve("demo", Options(device="cpu", memory="2GiB"))
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    code = (
        "import sys; from pathlib import Path; from inferno.process.worker import Worker\n"
        "def imported():\n"
        "    print({'torch', 'inferno.nn', 'inferno.core'} & {*sys.modules})\n"
        "    sys.exit(3)\n"
        "Worker(None, 0, None).run(Path(sys.argv[1]), None, imported)\n"
    )
    done = run_python(code, str(tmp_path / "plan.json"))
    assert (done.returncode, done.stdout) == (3, "set()\n"), done.stderr


class Heard(Socket):
    """A client that keeps the tokens of each message, and may have sent something."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = list[list[int | None]]()
        self.pending = list[list[bytes]]()

    def poll(self, timeout: int) -> int:
        return len(self.pending)

    def recv_multipart(self) -> list[bytes]:
        return self.pending.pop(0)

    def send_multipart(self, frames: list[bytes]) -> None:
        super().send_multipart(frames)
        if frames[0] == protocol.TOKENS:
            tokens = protocol.decode_tokens(frames[1])
            self.tokens.append([token.token_id for token in tokens])


class Quick(Prefilling):
    """An engine whose steps take half a millisecond, or `slow` ones longer."""

    def __init__(self, clock: SimpleNamespace, slow: int = 0, ends: int = 0) -> None:
        super().__init__()
        self.clock, self.slow, self.ends = clock, slow, ends
        self.unfinished = ["mine"]

    def step(self, *, naps: bool) -> list[EngineOutput]:
        self.steps += 1
        self.clock.now += 0.1 if self.steps == self.slow else 0.0005
        finish = FinishReason.LENGTH if self.steps == self.ends else None
        return [EngineOutput("mine", self.steps, finish)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("inferno.process.worker.monotonic", lambda: clock.now)
    return clock


def served(clock: SimpleNamespace, steps: int, **engine: int) -> list[list[int | None]]:
    worker = worker_of(socket := Heard(), Quick(clock, **engine))
    for _ in range(steps):
        assert worker._serve()
    return socket.tokens


def test_tokens_of_quick_steps_are_sent_together_soon(clock: SimpleNamespace) -> None:
    assert served(clock, 9) == [[1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_tokens_of_slow_steps_are_sent_at_once(clock: SimpleNamespace) -> None:
    assert served(clock, 4, slow=3) == [[1], [2, 3]], "what came before it, with it"
    assert served(clock, 2, slow=2) == [[1], [2]]


def test_a_requests_end_is_told_at_once(clock: SimpleNamespace) -> None:
    assert served(clock, 3, ends=3) == [[1], [2, 3]]


def test_tokens_go_before_what_a_message_asks_for(clock: SimpleNamespace) -> None:
    """The client takes no token of a request whose abort was confirmed."""
    worker = worker_of(socket := Heard(), Quick(clock))
    worker._serve()
    worker._serve()
    assert socket.tokens == [[1]]
    socket.pending.append([protocol.ABORT, protocol.encode("other")])
    worker._serve()
    assert socket.tokens == [[1], [2]]
    assert socket.sent.index(protocol.ABORTED) > len(socket.sent) - 1 - socket.sent[::-1].index(
        protocol.TOKENS
    )


def test_tokens_before_a_step_that_fails_are_sent(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(socket := Heard(), engine := Quick(clock))
    worker._serve()
    worker._serve()

    def fails(*, naps: bool) -> list[EngineOutput]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "step", fails)
    with pytest.raises(RuntimeError):
        worker._serve_all()
    assert socket.tokens == [[1], [2]]


def test_what_others_ask_for_in_a_pause_waits_without_a_word() -> None:
    readable, writing = os.pipe()
    os.write(writing, b"asked")
    try:
        worker = worker_of(socket := Socket(), engine := Prefilling())
        engine.listens = readable  # type: ignore[assignment]  # it has none elsewhere
        told(worker, action="pause", mode="keep")
        sent = len(socket.sent)
        for _ in range(5):
            assert worker._serve()
        assert socket.sent[sent:] == [protocol.STATS] and engine.rests == 5
    finally:
        os.close(readable)
        os.close(writing)
