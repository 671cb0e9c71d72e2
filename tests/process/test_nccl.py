"""Ranks on GPUs exchange tensors through NCCL: what it moves and who adds it up, with gloo in place
of it, which moves the same parts between tensors of the CPU; and NCCL itself where there are
GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from attrs import evolve
from torch import Tensor

from inferno.catalog import load_catalog
from inferno.contracts import Communicator, RankPlace
from inferno.core.runner import ModelRunner
from inferno.device import GraphCapture
from inferno.errors import DeviceError, EngineDeadError
from inferno.ops.collectives import Operators
from inferno.plan import Gpu, Machine, Options, open_model, plan_of_rank
from inferno.process.ranks import nccl
from inferno.process.ranks.joining import Joining, _own
from inferno.process.ranks.nccl import Nccl
from inferno.process.ranks.passing import pipelined
from inferno.process.ranks.running import FollowingRunner
from inferno.request.requests import Request
from inferno.testing import ragged_prompts
from inferno.testing.communicators import DTYPES, SIZES, CommunicatorTests, Run, summed
from inferno.testing.thread_ranks import (
    GREEDY,
    ThreadCommunicator,
    ThreadRanks,
    answers,
    load_shared,
    tokens_of,
)

pytest.importorskip("inferno_demo")

TORCH_ONLY: dict[str, Any] = {"disable": ("inferno-cpu",)}


class Moves:
    """Connections of torch's. Those of gloo fail where NCCL would wait on the device."""

    def __init__(self, group: Any, *, waits: bool) -> None:
        self.group, self.waits, self.abort = group, waits, group.abort

    def _allgather_base(self, *given: Any) -> Any:
        return self._done(self.group._allgather_base, given)

    def alltoall_base(self, *given: Any) -> Any:
        return self._done(self.group.alltoall_base, given)

    def _done(self, begin: Callable[..., Any], given: Any) -> Any:
        """Return the work, or nothing once it has waited, as NCCL does on the step's stream."""
        try:
            work = begin(*given)
            work.wait()
        except RuntimeError as error:
            raise ConnectionError("another rank has left") from error
        return None if self.waits else work


class OverGloo(Nccl):
    """The same over gloo."""

    waits = False

    def _made(self, store: Any) -> Any:
        gloo: Any = torch.distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=self._place.seconds)
        group = gloo(store, self._place.rank, self._place.ranks, options)
        return Moves(group, waits=self.waits)


class WaitedOverGloo(OverGloo):
    waits = True


class TestOverGloo(CommunicatorTests):
    communicator = "tests.process.test_nccl:OverGloo"


class TestSliced(CommunicatorTests):
    """Every sum in parts."""

    communicator = "tests.process.test_nccl:WaitedOverGloo"

    @pytest.fixture(autouse=True)
    def sliced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nccl, "SLICED_FROM", 0)


class ConnectedRanks(ThreadRanks):
    """Ranks in threads, which are connected as processes are."""

    def communicator(self, place: RankPlace) -> Communicator:
        return pipelined(OverGloo, place) if place.stages > 1 else OverGloo(place)


@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (3, 1), (2, 2)], ids=str)
def test_ranks_give_the_tokens_of_one_process(ranks: int, stages: int) -> None:
    catalog = load_catalog()
    alone = load_shared("demo", catalog, 1, dtype="float32", **TORCH_ONLY)
    shared = load_shared(
        "demo", catalog, ranks, pp=stages, kind=ConnectedRanks, dtype="float32", **TORCH_ONLY
    )
    prompts = ragged_prompts(500)
    assert tokens_of(answers(shared, prompts, GREEDY)) == tokens_of(answers(alone, prompts, GREEDY))
    shared.close()


class Going(ThreadCommunicator):
    """Collectives of a device, which are computed later: nothing waits for other ranks in them, and
    when the device is let go, it has values that mean nothing."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        super().__init__(ranks, rank)
        exchange = partial(ranks.exchange, rank)
        self.is_late, self.let_go = False, threading.Event()

        def later(x: Tensor) -> Sequence[Tensor]:
            return [x] * ranks.ranks if self.is_late else exchange(x)

        operators = Operators.of(later)
        self.all_reduce, self.all_gather = operators.all_reduce, operators.all_gather
        self.close = self.let_go.set


class RanksOfDevices(ThreadRanks):
    def communicator(self, place: RankPlace) -> Communicator:
        return Going(self, place.rank)


def test_nothing_is_drawn_from_what_a_device_computed_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = load_shared("demo", load_catalog(), kind=RanksOfDevices, **TORCH_ONLY)
    engine.submit(Request(id="a", token_ids=(1, 2, 3), params=GREEDY))
    assert [output.error for output in engine.step()] == [""]
    group: Any = engine._runner._group  # type: ignore[attr-defined]
    draw, waits = ModelRunner.draw, threading.Event()

    def drawn(*given: Any) -> Any:
        waits.set()
        assert group.communicator.let_go.wait(30), "the group lets the device go"
        return draw(*given)

    def fails(runner: FollowingRunner, *given: Any) -> None:
        assert waits.wait(30), "the first rank waits for its device"
        raise RuntimeError("an illegal memory access")

    group.communicator.is_late = True
    monkeypatch.setattr(ModelRunner, "draw", drawn)
    monkeypatch.setattr(FollowingRunner, "launch", fails)
    with pytest.raises(EngineDeadError, match="rank 1: .*an illegal memory access"):
        engine.step()
    engine.close()


def test_another_machine_takes_its_first_gpus(tmp_path: Path) -> None:
    """Whatever their numbers are on the first machine, of which processes may join too."""
    gpus = [
        Gpu(
            uuid=f"GPU-{i}",
            name="A GPU",
            capability=(9, 0),
            total=1 << 36,
            free=1 << 36,
            bus=f"{i}",
        )
        for i in range(4)
    ]
    here = Machine(gpus=lambda: gpus, environ={}, root=tmp_path)
    options = Options(device="cuda:2", tp=4, nodes=2, max_model_len=256)
    with open_model("demo", options, machine=here) as opened:
        plan = opened.plan
    asked, catalog = Joining(host="a", port=1, token=b"t" * 16), load_catalog()
    far = _own(asked, plan, [2, 3], catalog)
    assert [plan_of_rank(far, rank).device.index for rank in (2, 3)] == [0, 1]
    assert far.device.index == 0
    near = _own(asked, plan, [1], catalog)
    assert plan_of_rank(near, 1).device.index == 3
    options = evolve(options, device="cuda:3,cuda:3")
    with open_model("demo", options, machine=here) as opened:
        shared = _own(asked, opened.plan, [2, 3], catalog)
    assert [plan_of_rank(shared, rank).device.index for rank in (2, 3)] == [0, 0], "its first GPU"


class Unmade(Nccl):
    """NCCL refuses."""

    def _made(self, store: Any) -> Any:
        raise RuntimeError("Duplicate GPU detected\n")


def test_an_error_of_its_own_is_not_taken_for_anothers(tmp_path: Path) -> None:
    rank = Nccl(RankPlace(rank=0, ranks=1, folder=str(tmp_path)))

    def fails(*given: Any) -> None:
        raise RuntimeError("an illegal memory access")

    rank._group = SimpleNamespace(_allgather_base=fails, abort=lambda: None)
    with pytest.raises(RuntimeError, match="illegal"):
        rank.all_reduce(torch.ones(3))
    rank.close()


def test_a_rank_does_not_wait_for_nccl_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "_LEAVING_SECONDS", 0.05)
    left = threading.Event()
    rank = Nccl(RankPlace(rank=0, ranks=1, folder=str(tmp_path)))
    rank._group = SimpleNamespace(abort=left.wait)
    rank.close()
    with pytest.raises(ConnectionError, match="this rank has left"):
        rank.all_reduce(torch.ones(3))
    left.set()


def test_what_nccl_refuses_is_said(tmp_path: Path) -> None:
    rank = Unmade(RankPlace(rank=1, ranks=2, folder=str(tmp_path), device="cuda:1"))
    with pytest.raises(DeviceError, match="rank 1 on cuda:1 to the others: Duplicate GPU detected"):
        rank.connect()


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so(tmp_path: Path) -> None:
    rank = Nccl(RankPlace(rank=0, ranks=1, folder=str(tmp_path), device="cuda:0"))
    with pytest.raises(DeviceError, match=r"torch .* is built without NCCL"):
        rank.connect()


def needs_gpus(count: int) -> Any:
    missing = torch.cuda.device_count() < count
    return pytest.param(count, marks=pytest.mark.skipif(missing, reason=f"needs {count} GPUs"))


class OnGpus(CommunicatorTests):
    """What connects ranks in threads, each with a GPU."""

    communicator = "inferno.process.ranks.nccl:Nccl"

    def build(self, place: RankPlace) -> Communicator:
        return super().build(evolve(place, device=f"cuda:{place.rank}"))


@contextmanager
def gpus(ranks: int) -> Iterator[Run]:
    """Connect ranks. Gives what calls a function with each of them, on its GPU."""

    def on_device(compute: Callable[[Communicator, int], Any], peer: Communicator, i: int) -> Any:
        with torch.cuda.device(i):
            return compute(peer, i)

    with OnGpus().meeting(ranks) as run:
        yield lambda compute: run(partial(on_device, compute))


def summed_by(parts: Sequence[Tensor], peer: Communicator, rank: int) -> Tensor:
    return peer.all_reduce(parts[rank].cuda()).cpu()


@pytest.mark.parametrize("ranks", [needs_gpus(1), needs_gpus(2), needs_gpus(3)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gpus_have_the_bits_of_rank_order(ranks: int, dtype: torch.dtype) -> None:
    with gpus(ranks) as run:
        for size in SIZES:
            parts = [torch.randn(size).to(dtype) for _ in range(ranks)]
            wanted = summed(parts)
            for total in run(partial(summed_by, parts)):
                assert torch.equal(total, wanted), size


@pytest.mark.parametrize("ranks", [needs_gpus(1), needs_gpus(2)])
def test_cuda_graphs_exchange_again(ranks: int) -> None:
    def compute(peer: Communicator, rank: int) -> list[Tensor]:
        x = torch.ones(2, 5, device="cuda")
        step = GraphCapture()(lambda: peer.all_gather(peer.all_reduce(x * 2) + 1, [5] * ranks))
        outputs = []
        for value in (3, 7):
            x.fill_(value + rank)
            step.replay()
            outputs.append(step.output.cpu())
        return outputs

    with gpus(ranks) as run:
        for outputs in run(compute):
            for value, output in zip((3, 7), outputs, strict=True):
                total = sum(2.0 * (value + rank) for rank in range(ranks)) + 1
                assert torch.equal(output, torch.full((2, 5 * ranks), total))


@pytest.mark.parametrize("ranks", [needs_gpus(2)])
def test_a_gpu_that_waits_for_a_rank_goes_on_when_it_leaves(ranks: int) -> None:
    def compute(peer: Communicator, rank: int) -> None:
        if rank == 0:
            peer.all_reduce(torch.ones(10, device="cuda"))
            threading.Timer(0.5, peer.close).start()
            torch.cuda.synchronize()
            with pytest.raises(ConnectionError):
                peer.all_reduce(torch.ones(10, device="cuda"))

    with gpus(ranks) as run:
        run(compute)
