"""A second queue of copies on a fake `torch.cuda`, and page-locked memory to copy from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from attrs import define, field
from torch import Tensor

from inferno.device import side_queue
from inferno.device.side_queue import HostCopies, NoQueue, StreamQueue
from inferno.device.staging import host_buffer


@define(eq=False)
class FakeEvent:
    cuda: FakeCuda
    number: int = 0

    def record(self, stream: FakeStream) -> None:
        self.number = next(self.cuda.numbers)
        self.cuda.events.append(f"{stream.name} sets {self.number}")


@define(eq=False)
class FakeStream:
    cuda: FakeCuda
    name: str = "side"

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.events.append(f"{self.name} waits for {event.number}")


@define(eq=False)
class FakeCuda:
    """The part of `torch.cuda` that the queue uses."""

    events: list[str] = field(factory=list)
    numbers: Iterator[int] = field(factory=lambda: iter(range(1, 100)))
    current: FakeStream = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.current = FakeStream(self, "main")

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def install(self, patch: pytest.MonkeyPatch) -> None:
        given = {
            "Stream": lambda: FakeStream(self),
            "Event": lambda: FakeEvent(self),
            "current_stream": lambda: self.current,
            "stream": self.stream,
        }
        for name, value in given.items():
            patch.setattr(torch.cuda, name, value)


class Target:
    """A tensor of the device, which notes what is copied to it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def copy_(self, source: str, *, non_blocking: bool) -> None:
        assert non_blocking, "the host does not wait"
        self.cuda.events.append(f"{self.cuda.current.name} copies {source}")


def test_copies_are_beside_the_main_stream_and_wait_for_what_reads_their_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    queue = side_queue.side_queue("cuda:0")
    assert isinstance(queue, StreamQueue)
    free = queue.mark()
    target = Target(cuda)
    arrived = queue.copy([(target, "one"), (target, "other")], free)  # type: ignore[list-item]
    queue.wait(arrived)
    assert cuda.events == [
        "main sets 1",
        "side waits for 1",
        "side copies one",
        "side copies other",
        "side sets 2",
        "main waits for 2",
    ]


def test_on_a_cpu_copies_are_done_at_once() -> None:
    queue, target = side_queue.side_queue("cpu"), torch.zeros(3)
    assert isinstance(queue, NoQueue)
    queue.wait(queue.copy([(target, torch.ones(3))], queue.mark()))
    assert target.tolist() == [1, 1, 1]


def test_tensors_are_copied_behind_each_other_into_few_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, allocate = list[int](), host_buffer

    def counted(nbytes: int, device: str) -> Tensor:
        made.append(nbytes)
        return allocate(nbytes, device)

    monkeypatch.setattr(side_queue, "host_buffer", counted)
    copies = HostCopies("cpu", chunk=1024)
    given = [
        torch.arange(60).view(6, 10).T,  # 480 bytes
        torch.arange(100, dtype=torch.uint8),
        torch.tensor(7.5, dtype=torch.bfloat16),
        torch.randn(500),
        torch.arange(-9, 9).float().to(torch.float8_e4m3fn),
    ]
    kept = [copies.of(tensor) for tensor in given]
    assert made == [1024, 2048, 1024], "three in the first, a large one alone"
    for ours, theirs in zip(kept, given, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.is_contiguous()
        assert torch.equal(ours.float(), theirs.float())
        theirs.zero_()
    assert kept[0].any() and kept[3].any(), "in memory of their own"
