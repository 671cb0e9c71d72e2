"""Tests of how ranks exchange tensors: the sums of rank order, in every rank, or an error.

The ranks are threads of the test's process, or processes where one is killed or stopped.

Suffixes: R ranks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from inferno.contracts import Communicator, RankPlace, lazy
from inferno.nn.capture import CallCapture

Run = Callable[[Callable[[Communicator, int], Any]], list[Any]]
"""Calls a function with each rank's communicator and its number, and returns their results."""
SIZES = [(1,), (3,), (2, 5, 33), (1, 4096), (16, 4096), (65_537,), (7, 300_001)]
"""Of tensors that are summed: odd, and larger than what is exchanged at once."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PEER = """
import sys
import torch
from inferno.contracts import RankPlace, lazy
build, folder, ranks, rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
peer = lazy.resolved(lazy.function(build))(RankPlace(rank=rank, ranks=ranks, folder=folder))
print("ready", flush=True)
peer.connect()
x = torch.ones(100)
while True:
    peer.all_reduce(x.fill_(1))
"""
"""A rank that sums until it ends. It says when it is ready to meet the others."""


def sums(run: Run, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return each rank's sum of the ranks' parts."""
    return run(lambda peer, rank: peer.all_reduce(parts[rank].clone()))


def summed(parts: Sequence[Tensor]) -> Tensor:
    """The reference: in the order of the ranks, in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


class CommunicatorTests:
    """Set `communicator` to the path of what builds a `contracts.Communicator`:
    "package.module:name"."""

    communicator: ClassVar[str]

    def build(self, place: RankPlace) -> Communicator:
        built: Communicator = lazy.resolved(lazy.function(self.communicator))(place)
        return built

    @contextmanager
    def meeting(self, ranks: int, seconds: float = 60.0) -> Iterator[Run]:
        """Connect ranks in threads. Gives what calls a function with each of them, and returns the
        results."""
        with TemporaryDirectory(prefix="ranks") as folder, ThreadPoolExecutor(ranks) as threads:
            peers = [
                self.build(RankPlace(rank=rank, ranks=ranks, folder=folder, seconds=seconds))
                for rank in range(ranks)
            ]

            def run(compute: Callable[[Communicator, int], Any]) -> list[Any]:
                running = [threads.submit(compute, peer, i) for i, peer in enumerate(peers)]
                return [each.result(120) for each in running]

            try:
                run(lambda peer, _: peer.connect())
                yield run
            finally:
                for peer in peers:
                    peer.close()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), 4])
    def test_every_rank_has_the_bits_of_rank_order(self, ranks: int, dtype: torch.dtype) -> None:
        with self.meeting(ranks) as run:
            for size in SIZES:
                parts = [torch.randn(size).to(dtype) for _ in range(ranks)]
                wanted = summed(parts)
                for total in sums(run, parts):
                    assert torch.equal(total, wanted), size

    def test_an_elements_sum_does_not_depend_on_the_others(self) -> None:
        """Whatever part of a tensor, aligned or not: the bits are those of the whole."""
        parts = [torch.randn(9, 1001).bfloat16() for _ in range(3)]
        wanted = summed(parts)
        with self.meeting(3) as run:
            for rows, columns in ((slice(2, 3), slice(None)), (slice(None), slice(3, 700))):
                pieces = [part[rows, columns] for part in parts]
                for total in sums(run, pieces):
                    assert torch.equal(total, wanted[rows, columns])

    @pytest.mark.parametrize("widths", [(4, 5, 1), (1, 1, 1), (70_001, 70_000, 69_999)], ids=str)
    def test_parts_of_unequal_widths_stand_side_by_side(self, widths: tuple[int, ...]) -> None:
        parts = [torch.randn(3, width) for width in widths]
        with self.meeting(3) as run:
            for _ in range(2):
                for whole in run(lambda peer, i: peer.all_gather(parts[i], widths)):
                    assert torch.equal(whole, torch.cat(parts, -1))

    def test_parts_that_are_views_stand_side_by_side(self) -> None:
        parts = [torch.randn(2, 3, 10).bfloat16()[..., 1 : 1 + width] for width in (4, 7)]
        with self.meeting(2) as run:
            for whole in run(lambda peer, i: peer.all_gather(parts[i], (4, 7))):
                assert torch.equal(whole, torch.cat(parts, -1))

    def test_nan_and_infinity_reach_all_ranks(self) -> None:
        parts = [torch.zeros(40), torch.zeros(40)]
        parts[0][3], parts[1][20] = float("nan"), float("inf")
        with self.meeting(2) as run:
            for total in sums(run, parts):
                assert total.isnan().nonzero().tolist() == [[3]]
                assert total.isinf().nonzero().tolist() == [[20]]

    @pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
    def test_random_rounds_of_all_sizes(self, ranks: int) -> None:
        """Ranks that run ahead of each other never read a part of another round."""
        rounds = 600 if ranks == 2 else 6000

        def compute(peer: Communicator, rank: int) -> list[float]:
            chosen, pauses, totals = random.Random(1), random.Random(rank), []
            for i in range(rounds):
                count = chosen.choice([1, 5, 64, 1000, 5000, 40_000 if i % 50 == 0 else 300])
                if chosen.random() < 0.2:
                    widths = [chosen.randrange(1, 40) for _ in range(ranks)]
                    whole = peer.all_gather(torch.full((2, widths[rank]), i + rank / 8), widths)
                    totals.append(float(whole.sum()))
                else:
                    total = peer.all_reduce(torch.full((count,), float(i + rank)))
                    assert bool((total == total[0]).all()), "parts of several rounds"
                    totals.append(float(total[-1]))
                if pauses.random() < 0.01:
                    time.sleep(pauses.random() / 500)
            return totals

        with self.meeting(ranks) as run:
            first, *others = run(compute)
        assert all(other == first for other in others) and len(set(first)) > rounds / 2

    def test_captured_collectives_run_again_on_other_values(self) -> None:
        """As torch operators, whatever records the others."""

        def compute(peer: Communicator, rank: int) -> list[Tensor]:
            x = torch.ones(2, 5)
            capture = CallCapture()
            step = capture(lambda: peer.all_gather(peer.all_reduce(x * 2) + 1, (5, 5)))
            outputs = []
            for value in (3, 7):
                x.fill_(value + rank)
                step.replay()
                outputs.append(step.output.clone())
            return outputs

        with self.meeting(2) as run:
            for three, seven in run(compute):
                assert torch.equal(three, torch.full((2, 10), 2 * (3 + 4) + 1.0))
                assert torch.equal(seven, torch.full((2, 10), 2 * (7 + 8) + 1.0))

    def test_a_rank_that_leaves_ends_the_others_at_once(self) -> None:
        begun = time.monotonic()

        def compute(peer: Communicator, rank: int) -> None:
            if rank == 0:
                with pytest.raises(ConnectionError):
                    peer.all_reduce(torch.ones(10))
            else:
                time.sleep(0.3)
                peer.close()

        with self.meeting(2) as run:
            run(compute)
        assert time.monotonic() - begun < 20

    @contextmanager
    def process(self, folder: str, rank: int, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
        """Start a rank that sums."""
        arguments = self.communicator, folder, str(ranks), str(rank)
        command = [sys.executable, "-c", PEER, *arguments]
        peer = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert peer.stdout is not None and peer.stdout.readline() == b"ready\n"
            yield peer
        finally:
            peer.kill()
            peer.communicate()

    def until_it_fails(self, ours: Communicator, sent: list[float]) -> float:
        """Sum until that fails. Returns the seconds since a signal was sent."""
        with pytest.raises(OSError):  # ConnectionError or TimeoutError
            while True:
                ours.all_reduce(torch.ones(100))
        return time.monotonic() - sent[0]

    @pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signals")
    def test_a_killed_rank_is_noticed(self, tmp_path: Path) -> None:
        """At once, as whoever started it says so by `close`."""
        ours = self.build(RankPlace(rank=0, ranks=2, folder=str(tmp_path)))
        with self.process(str(tmp_path), 1, 2) as peer:
            sent = list[float]()

            def watch() -> None:
                peer.wait()
                ours.close()

            threading.Thread(target=watch, daemon=True).start()
            ours.connect()

            def kill() -> None:
                sent.append(time.monotonic())
                peer.kill()

            threading.Timer(0.3, kill).start()
            assert self.until_it_fails(ours, sent) < 1
        with pytest.raises(ConnectionError):
            ours.all_reduce(torch.ones(100))

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the system has no such signals")
    def test_a_stopped_rank_is_not_waited_for_longer_than_is_asked(self, tmp_path: Path) -> None:
        ours = self.build(RankPlace(rank=0, ranks=2, folder=str(tmp_path), seconds=1.5))
        with self.process(str(tmp_path), 1, 2) as peer:
            sent = list[float]()
            ours.connect()

            def stop() -> None:
                sent.append(time.monotonic())
                os.kill(peer.pid, signal.SIGSTOP)

            threading.Timer(0.3, stop).start()
            assert 1 < self.until_it_fails(ours, sent) < 10
            ours.close()
