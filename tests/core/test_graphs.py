"""CUDA graphs on a fake `torch.cuda`, in which a graph is a list of calls: what a capture asks
torch for and in which order, and that replays compute what the captured steps would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attrs import define, evolve, field
from torch import Tensor, nn

from inferno.contracts import Device, Uncaptured
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.device import GraphCapture
from inferno.errors import OutOfMemoryError
from inferno.nn import Attention
from inferno.nn.arena import Arena
from inferno.nn.batch import Batch
from inferno.nn.capture import _Notes, _Watch
from inferno.plan import CUDA_GRAPHS, CaptureUse, Plan, device_sizes, trial_plan
from inferno.testing import load_toy, ragged_prompts
from inferno.testing.tiny import Toy, generate, torch_only
from inferno.weights.measure import measure


@define(eq=False)
class FakeGraph:
    """`torch.cuda.CUDAGraph`: calls on fixed memory."""

    cuda: FakeCuda
    calls: list[Callable[[], object]] = field(factory=list)

    def pool(self) -> str:
        return "the pool"

    def replay(self) -> None:
        for call in self.calls:
            call()


@define(eq=False)
class FakeStream:
    cuda: FakeCuda

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.events.append(f"{self.cuda.name(self)} waits for {self.cuda.name(other)}")


@define(eq=False)
class FakeCuda:
    """The part of `torch.cuda` that captures use."""

    events: list[str] = field(factory=list)
    arena: Arena = field(factory=Arena)
    main: FakeStream = field(init=False)
    current: FakeStream = field(init=False)
    free: int = 1 << 30
    """Bytes that are free: each capture takes some."""

    def __attrs_post_init__(self) -> None:
        self.main = self.current = FakeStream(self)

    def name(self, stream: FakeStream) -> str:
        return "main" if stream is self.main else "side"

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: FakeGraph, pool: Any, stream: FakeStream) -> Iterator[None]:
        self.events.append(f"capture on {self.name(stream)} in {pool or 'a new pool'}")
        notes = _Notes(None)
        try:
            with notes, _Watch(self.arena, notes):
                yield
        except RuntimeError:  # as torch's does
            raise RuntimeError("CUDA error: a previous error") from None
        self.free -= 1000 if pool is None else 10
        graph.calls = list(notes.calls)
        self.arena.spoil()  # a capture computes nothing

    def install(self, patch: pytest.MonkeyPatch) -> None:
        given = {
            "Stream": lambda: FakeStream(self),
            "CUDAGraph": lambda: FakeGraph(self),
            "current_stream": lambda: self.current,
            "synchronize": lambda: self.events.append("synchronize"),
            "stream": self.stream,
            "graph": self.graph,
        }
        for name, value in given.items():
            patch.setattr(torch.cuda, name, value)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


@torch.inference_mode()
def test_a_capture_warms_up_beside_and_later_ones_share_its_pool(cuda: FakeCuda) -> None:
    capture, x_ND = GraphCapture(), torch.arange(12.0).view(4, 3)
    ran: list[str] = []

    def compute(count: int) -> Tensor:
        ran.append(cuda.name(cuda.current))
        return x_ND[:count] * 2 + 1

    large, small = capture(lambda: compute(4)), capture(lambda: compute(2))
    warm_up = ["side waits for main", "main waits for side", "synchronize"]
    assert cuda.events == [
        *warm_up,
        "capture on side in a new pool",
        *warm_up,
        "capture on side in the pool",
    ]
    assert ran == ["side", "side", "main"] * 2
    x_ND.copy_(torch.arange(12.0, 24.0).view(4, 3))
    small.replay()
    assert small.output.tolist() == (x_ND[:2] * 2 + 1).tolist()
    large.replay()
    assert large.output.tolist() == (x_ND * 2 + 1).tolist()
    assert small.output.data_ptr() == large.output.data_ptr(), "results share their memory"


class Reads(nn.Module):
    """A module that reads a value in Python, which a capture does not allow."""

    def forward(self, x_N: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile")


def test_a_step_that_cannot_be_captured_says_what_and_where(cuda: FakeCuda) -> None:
    capture, runs = GraphCapture(), iter([True, True, False])

    def compute() -> Tensor:
        x_N = torch.ones(2)
        return x_N if next(runs) else Reads()(x_N)

    reason = r"not permitted when stream is capturing, in Reads.forward \(test_graphs.py:\d+\)$"
    with pytest.raises(Uncaptured, match=reason):
        capture(compute)


def test_lack_of_memory_is_no_reason_to_go_on_without(cuda: FakeCuda) -> None:
    def compute() -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(torch.OutOfMemoryError):
        GraphCapture()(compute)


# --- a model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> Toy:
    toy = load_toy("demo", torch_only())
    blocks = -(-toy.plan.max_model_len // toy.plan.block_size)
    use = CaptureUse(name=CUDA_GRAPHS, sizes=device_sizes(8), blocks=(blocks,), ahead=True)
    return Toy(evolve(toy.plan, capture=use), toy.model)


def runner_of(engine: Engine) -> ModelRunner:
    assert isinstance(engine._runner, ModelRunner)
    return engine._runner


def test_graphs_captured_ahead_change_no_token(cuda: FakeCuda, toy: Toy) -> None:
    prompts = ragged_prompts(toy.plan.vocab_size)
    engine = toy.engine(GraphCapture())
    assert runner_of(engine).capture_ahead() == 0
    replays = runner_of(engine).replays
    assert replays is not None and [size for size, _ in replays.shapes] != []
    captures = len([event for event in cuda.events if event.startswith("capture")])
    for ours, theirs in zip(
        generate(toy, prompts, 20, engine=engine), generate(toy, prompts, 20), strict=True
    ):
        assert ours.token_ids == theirs.token_ids
        torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-4, atol=1e-4)
    assert captures == len(device_sizes(8)), "the largest first, then all others"
    assert captures == len([e for e in cuda.events if e.startswith("capture")]), "none later"


def attend(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, cache: Any, batch: Batch) -> Tensor:
    """Attention of prompts that can be captured: it reads no length but from tensors. Caches are
    (block, token, head, element)."""
    (T, H, C), K = q_THC.shape, k_TKC.shape[1]
    # Padding repeats what the first token stores.
    token_T = torch.where(batch.slots_T >= 0, torch.arange(T), 0)
    slots_T = batch.slots_T[token_T].clamp(min=0)
    for name, x_TKC in (("k", k_TKC), ("v", v_TKC)):
        cache[name].flatten(0, 1).index_copy_(0, slots_T, x_TKC[token_T])
    tokens_T = torch.arange(T, dtype=torch.int32)
    owner_T = torch.bucketize(tokens_T, batch.query_starts_S1, right=True) - 1
    context_T, stop_T = batch.context_lens_S[owner_T], batch.query_starts_S1[owner_T + 1]
    position_T = context_T - stop_T + tokens_T
    tables_TM = batch.blocks_SM[owner_T]
    keys_TNKC, values_TNKC = (cache[name][tables_TM].flatten(1, 2) for name in ("k", "v"))
    seen_TN = torch.arange(keys_TNKC.shape[1])[None] <= position_T[:, None]
    q_TKGC = q_THC.view(T, K, H // K, C)
    scores = torch.einsum("tkgc,tnkc->tkgn", q_TKGC, keys_TNKC) * C**-0.5
    scores = torch.where(seen_TN[:, None, None], scores, -1e30).softmax(-1)
    return torch.einsum("tkgn,tnkc->tkgc", scores, values_TNKC).reshape(T, H, C)


def test_steps_with_prompts_are_captured_and_change_no_token(
    cuda: FakeCuda, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole prompts, parts of them beside single tokens, and the rest of a prompt that is found in
    the cache: each step that fits is replayed, whatever was in its shape before."""
    for layer in toy.model.modules():
        if isinstance(layer, Attention):
            monkeypatch.setattr(layer, "attend", attend)
    usual = toy.plan.capture
    assert usual is not None
    use = evolve(usual, prompts=(16, 64), sequences=9)
    plan = evolve(toy.plan, capture=use, max_num_batched_tokens=40)
    engine = Toy(plan, toy.model).engine(GraphCapture(), lag=1)
    runner = runner_of(engine)
    runner.capture_ahead()
    computed: list[int] = []
    logits_of = ModelRunner.logits_of

    def noted(self: ModelRunner, hidden_SD: Tensor) -> Tensor:
        computed.append(len(hidden_SD))
        return logits_of(self, hidden_SD)

    monkeypatch.setattr(ModelRunner, "logits_of", noted)
    prompts = ragged_prompts(plan.vocab_size)
    expected = generate(Toy(evolve(plan, capture=None), toy.model), prompts, 8)
    assert computed, "steps without a capture"
    for some in (prompts, prompts[::-1], prompts[-1:]):
        computed.clear()
        outcomes = generate(Toy(plan, toy.model), some, 8, engine=engine)
        assert not computed, "every step that samples is replayed"
        for ours, prompt in zip(outcomes, some, strict=True):
            theirs = expected[prompts.index(prompt)]
            assert ours.token_ids == theirs.token_ids
            torch.testing.assert_close(ours.logits_NV, theirs.logits_NV, rtol=1e-4, atol=1e-4)


def test_the_largest_is_captured_first_and_what_fails_is_computed(
    cuda: FakeCuda, toy: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []
    graphs = GraphCapture()

    def capture(compute: Callable[[], Tensor]) -> Any:
        tried.append(len(compute()))
        if tried[-1] > 2:
            raise Uncaptured("too large for this test")
        return graphs(compute)

    prompts = ragged_prompts(toy.plan.vocab_size)
    engine = toy.engine(capture)
    runner_of(engine).capture_ahead()
    assert tried == [8, 4, 2, 1]
    assert len([r for r in caplog.records if "too large for this test" in r.message]) == 1
    replays = runner_of(engine).replays
    assert replays is not None and {size for size, _ in replays.shapes} == {2, 1}
    for some in (prompts, prompts[:1]):
        outcomes, expected = generate(toy, some, 9, engine=engine), generate(toy, some, 9)
        assert [o.token_ids for o in outcomes] == [o.token_ids for o in expected]


def test_the_memory_of_graphs_is_measured_and_left_free(cuda: FakeCuda, toy: Toy) -> None:
    started: list[ModelRunner] = []

    def start(plan: Plan) -> tuple[Engine, ModelRunner]:
        engine = Toy(plan, toy.model).engine(GraphCapture())
        started.append(runner_of(engine))
        return engine, started[-1]

    plan = evolve(toy.plan, memory_limit=1 << 30)
    before = cuda.free
    cuda.free -= trial_plan(plan).kv_bytes + 5000
    measured = measure(plan, [toy.model], start, lambda: cuda.free, before)
    assert measured.measured is not None
    assert (measured.measured.used, measured.measured.captured) == (5000, 1000 + 10 * 3)
    assert started[0].replays is None, "the trial's graphs are gone"


def test_lack_of_memory_for_graphs_is_an_error_with_a_remedy(toy: Toy) -> None:
    def capture(compute: Callable[[], Tensor]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0")

    runner = runner_of(toy.engine(capture))
    runner._plan_device = Device("cuda", name="NVIDIA H200")
    with pytest.raises(OutOfMemoryError, match="memory to capture its decode steps") as caught:
        runner.capture_ahead()
    assert "--max-num-seqs" in caught.value.remedy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@torch.inference_mode()
def test_a_graph_of_a_real_device_runs_again_on_other_values() -> None:
    x_ND = torch.randn(64, 32, device="cuda")
    w_DD = torch.randn(32, 32, device="cuda")
    capture = GraphCapture()
    sizes = (64, 8, 1)
    captured = [capture(lambda n=n: (x_ND[:n] @ w_DD).relu()) for n in sizes]  # type: ignore[misc]
    for _ in range(2):
        x_ND.normal_()
        for n, each in zip(sizes, captured, strict=True):
            each.replay()
            torch.testing.assert_close(each.output, (x_ND[:n] @ w_DD).relu())
