"""What the engine process does with messages, without a process."""

from __future__ import annotations

import os
from typing import Any, cast

from inferno.process import protocol
from inferno.process.worker import Worker
from inferno.request.requests import EngineOutput, EngineStats, FinishReason


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
        self.steps = 0

    def step(self) -> list[EngineOutput]:
        self.steps += 1
        assert self.steps < 100, "it waits for what has no end"
        mine = self.unfinished[0] == "mine" and self.steps < 5
        self.unfinished = [*(["mine"] if mine else []), f"link-{self.steps}"]
        return [] if mine else [EngineOutput("mine", 1, FinishReason.LENGTH)]

    def sleep(self, level: int) -> None:
        assert "mine" not in self.unfinished
        self.asleep = True

    def stats(self) -> EngineStats:
        return EngineStats()


class Heart:
    def moved(self) -> None:
        return None


def test_a_pause_does_not_wait_for_the_prompts_that_other_instances_go_on_asking_for() -> None:
    socket, engine = Socket(), Prefilling()
    worker = Worker(cast(Any, socket), os.getppid(), cast(Any, Heart()))
    worker._engine = cast(Any, engine)
    control = protocol.Control(action="sleep", mode="wait")
    assert worker._take(protocol.CONTROL, protocol.encode(control))
    assert engine.asleep and engine.steps == 5
    assert protocol.CONTROLLED in socket.sent
