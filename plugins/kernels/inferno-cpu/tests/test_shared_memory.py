"""Collectives of ranks that share memory."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inferno.contracts import COLLECTIVES, Communicator, Device, KernelNeed
from inferno.nn.capture import CallCapture
from inferno.testing import CommunicatorTests
from inferno_cpu import _native, inferno_kernels
from inferno_cpu.dtypes import DTYPES
from inferno_cpu.ranks import SLOT

[PROVIDER] = inferno_kernels()
REFUSED = PROVIDER.refuses(KernelNeed(op=COLLECTIVES, dtype="float32", device=Device("cpu")))
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))


class TestSharedMemory(CommunicatorTests):
    communicator = "inferno_cpu.ranks:SharedMemory"

    def test_recorded_collectives_are_replayed_without_python(self) -> None:
        """Between other ops of the recording, as one call."""

        def compute(peer: Communicator, rank: int) -> list[tuple[int, Tensor]]:
            x = torch.ones(2, 33)
            capture = CallCapture(_native.Recording)
            step = capture(lambda: peer.all_gather(peer.all_reduce(x), (33, 33)))
            outputs = []
            for value in (3, 7):
                x.fill_(value + rank)
                step.replay()
                outputs.append((len(step.calls), step.output.clone()))
            return outputs

        with self.meeting(2) as run:
            for replays in run(compute):
                for (calls, whole), value in zip(replays, (7.0, 15.0), strict=True):
                    assert calls == 1 and torch.equal(whole, torch.full((2, 66), value))

    def test_ranks_in_different_layers_are_noticed(self) -> None:
        def compute(peer: Communicator, rank: int) -> None:
            with pytest.raises(RuntimeError, match=f"rank {1 - rank} is in another layer"):
                peer.all_reduce(torch.ones(10 + rank))

        with self.meeting(2) as run:
            run(compute)

    def test_more_ranks_than_cores_wait_without_using_them(self) -> None:
        """A rank that waits sleeps: most of a second passes in a hundredth of its time."""
        used = list[float]()

        def compute(peer: Communicator, rank: int) -> None:
            if rank == 0:
                time.sleep(0.5)
            begun = time.thread_time()
            peer.all_reduce(torch.ones(10))
            used.append(time.thread_time() - begun)

        with self.meeting(4) as run:
            run(compute)
        assert max(used) < 0.1

    def test_the_memory_has_no_name(self, tmp_path: Path) -> None:
        shared = Path("/dev/shm")
        before = {*shared.iterdir()} if shared.is_dir() else set()
        with self.meeting(2) as run:
            run(lambda peer, _: peer.all_reduce(torch.ones(10)))
            maps = Path("/proc/self/maps").read_text().splitlines()
            names = [line.split(maxsplit=5)[5] for line in maps if "inferno_ranks" in line]
            assert names and all("(deleted)" in name for name in names)
            assert not shared.is_dir() or {*shared.iterdir()} <= before

    def test_other_threads_of_python_run_while_a_rank_waits(self) -> None:
        ticks = list[float]()

        def compute(peer: Communicator, rank: int) -> None:
            if rank == 0:
                while len(ticks) < 20:
                    time.sleep(0.001)
                    ticks.append(time.monotonic())
            peer.all_reduce(torch.ones(10))

        with self.meeting(2) as run:
            run(compute)
        assert len(ticks) == 20


# --- for the ThreadSanitizer (variants.py), which sees that ranks in threads take turns -----------


def views_of(ranks: int, slot: int = SLOT) -> tuple[Tensor, list[_native.Ranks]]:
    """The view of each rank, and the memory that they share."""
    memory = torch.zeros(_native.Ranks.bytes(ranks, slot) + 64, dtype=torch.uint8)
    address = -(-memory.data_ptr() // 64) * 64
    return memory, [_native.Ranks(address, rank, ranks, slot, 60.0) for rank in range(ranks)]


def test_ranks_in_threads_share_one_view_of_the_memory() -> None:
    _memory, views = views_of(3)
    barrier = threading.Barrier(3)

    def compute(rank: int) -> list[float]:
        barrier.wait()
        x, values = torch.empty(SLOT // 4 + 7), []
        for i in range(100):
            x.fill_(float(i + rank))
            views[rank].sum(DTYPES[x.dtype], x.data_ptr(), x.numel())
            assert bool((x == x[0]).all())
            values.append(float(x[0]))
        return values

    with ThreadPoolExecutor(3) as threads:
        for sums in threads.map(compute, range(3)):
            assert sums == [3.0 * i + 3 for i in range(100)]


@pytest.mark.parametrize("late", [None, 0, 2])
def test_sums_and_rows_of_ranks_in_threads_share_slots_in_turn(late: int | None) -> None:
    """Exchanges of one piece and of several, one right after the other, with shares of unlike
    widths and one that is empty. A `late` rank lets the others sleep."""
    slot, widths, rows = 4096, (24, 0, 520), 9
    _memory, views = views_of(3, slot)
    wanted = torch.cat([torch.full((rows, width), rank) for rank, width in enumerate(widths)], 1)

    def compute(rank: int) -> None:
        part = torch.full((rows, widths[rank]), rank, dtype=torch.uint8)
        for i in range(40):
            if rank == late and i % 8 == 0:
                time.sleep(0.01)
            for count in (1, 33, slot // 2 + i):
                x = torch.full((count,), float(i + rank), dtype=torch.bfloat16)
                views[rank].sum(DTYPES[x.dtype], x.data_ptr(), count)
                assert bool((x == 3.0 * i + 3).all())
            whole = torch.zeros(rows, sum(widths), dtype=torch.uint8)
            views[rank].gather(part.data_ptr(), whole.data_ptr(), rows, [*widths])
            assert torch.equal(whole, wanted)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(compute, range(3))) == [None] * 3


def test_ranks_in_threads_share_the_news_that_one_has_left() -> None:
    """While they wait for it, and from a thread that exchanges nothing."""
    _memory, views = views_of(3)

    def compute(rank: int) -> str:
        if rank == 0:
            time.sleep(0.05)
            views[0].close()
            return "left"
        with pytest.raises(ConnectionError, match="another rank has left"):
            views[rank].sum(DTYPES[torch.float32], torch.ones(7).data_ptr(), 7)
        return "told"

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(compute, range(3))) == ["left", "told", "told"]


@pytest.mark.parametrize("given", [(0, 0), (2, 2), (-1, 2), (0, 65)])
def test_views_of_no_rank_are_refused(given: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no such rank"):
        _native.Ranks(0, *given, SLOT, 1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_every_level_are_those_of_torch(isa: str, dtype: torch.dtype) -> None:
    memory = torch.zeros(_native.Ranks.bytes(2, SLOT) + 64, dtype=torch.uint8)
    address = -(-memory.data_ptr() // 64) * 64
    views = [_native.Ranks(address, rank, 2, SLOT, 60.0) for rank in range(2)]
    for count in (1, 15, 16, 4099):
        parts = [torch.randn(count).to(dtype) for _ in range(2)]
        wanted = (parts[0].float() + parts[1].float()).to(dtype)
        with ThreadPoolExecutor(2) as threads:
            running = [
                threads.submit(views[rank].sum, DTYPES[dtype], parts[rank].data_ptr(), count)
                for rank in range(2)
            ]
            for each in running:
                each.result(60)
        assert all(torch.equal(part, wanted) for part in parts)
