"""Ranks in threads of this process, which exchange tensors in its memory: what they run is what
processes run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import torch
from attrs import define, evolve, field, frozen
from torch import Tensor, nn

from inferno.catalog import Catalog
from inferno.contracts import Communicator, RankPlace, RankStart
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.images import seeing
from inferno.images.seeing import read_pixels
from inferno.ops.collectives import Operators
from inferno.plan import Plan, open_model
from inferno.plan.cache_groups import with_num_blocks
from inferno.process.ranks.following import Follower, run
from inferno.process.ranks.group import Group
from inferno.process.ranks.leading import LeadingHome
from inferno.process.ranks.passing import Pipelined
from inferno.request.requests import AdapterRef, EngineOutput, ImagePart, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.adapters import MOST, MemoryAdapter, serving, stored_matrices
from inferno.testing.tiny import assert_close, small_options

RANKS = 2
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=24, ignore_eos=True)
SCORED = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=1)


@define(eq=False)
class ThreadRanks:
    """Ranks in threads (`contracts.Executor.start`), which exchange tensors in memory."""

    ranks: int
    catalog: Catalog
    stages: int = 1
    failures: list[BaseException] = field(factory=list)
    """What threads ended with."""
    left: threading.Event = field(factory=threading.Event)
    """Whether a rank has left."""
    sent: dict[tuple[int, int], SimpleQueue[Tensor]] = field(init=False)
    """What is on its way, from a rank to another."""
    _slots: list[Tensor] = field(init=False)
    _barriers: list[threading.Barrier] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = [torch.empty(0)] * self.ranks
        each = self.ranks // self.stages
        self._barriers = [threading.Barrier(each, timeout=60) for _ in range(self.stages)]
        ranks = range(self.ranks)
        self.sent = {(one, other): SimpleQueue() for one in ranks for other in ranks}

    def communicator(self, place: RankPlace) -> Communicator:
        """Build a rank's communicator."""
        inner = ThreadCommunicator(self, place.rank)
        return Pipelined(ThreadLink(self, place.rank), place, inner) if place.stages > 1 else inner

    def exchange(self, rank: int, x: Tensor) -> Sequence[Tensor]:
        """Give the others of a stage a tensor, and return those of all
        (`ops.collectives.Exchange`)."""
        self._slots[rank] = x.clone()
        each = self.ranks // self.stages
        stage = rank // each
        try:
            self._barriers[stage].wait()
            parts = self._slots[stage * each : (stage + 1) * each]
            self._barriers[stage].wait()
        except threading.BrokenBarrierError as error:
            raise ConnectionError("another rank has left") from error
        assert {part.shape for part in parts} == {x.shape}, "ranks are in different layers"
        return parts

    def start(self, what: RankStart) -> ThreadRank:
        return ThreadRank(self, what)

    def abort(self) -> None:
        """Let every rank that waits for another one fail."""
        self.left.set()
        for barrier in self._barriers:
            barrier.abort()

    def run(self, what: RankStart, alive: Callable[[], bool]) -> None:
        try:
            run(Path(what.folder), what.rank, self.catalog, self.communicator, alive)
        except BaseException as error:
            self.failures.append(error)
            self.abort()


class ThreadCommunicator:
    """A rank's collectives (`contracts.Communicator`)."""

    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        operators = Operators.of(partial(ranks.exchange, rank))
        self.all_reduce, self.all_gather = operators.all_reduce, operators.all_gather
        self.close = ranks.abort

    def connect(self) -> None: ...


@frozen(eq=False)
class ThreadLink:
    """A rank's connections to all others (`process.ranks.passing.Link`)."""

    ranks: ThreadRanks
    rank: int

    def connect(self) -> None: ...

    def send(self, x: Tensor, to: int) -> None:
        self.ranks.sent[self.rank, to].put(x.clone())

    def receive(self, x: Tensor, source: int) -> None:
        while not self.ranks.left.is_set():
            with suppress(Empty):
                given = self.ranks.sent[source, self.rank].get(timeout=0.05)
                assert (given.shape, given.dtype) == (x.shape, x.dtype), "of another step"
                x.copy_(given)
                return
        raise ConnectionError("another rank has left")

    def flush(self) -> None: ...

    def close(self) -> None:
        self.ranks.abort()


class ThreadRank:
    """A rank in a thread (`contracts.RankProcess`)."""

    def __init__(self, ranks: ThreadRanks, what: RankStart) -> None:
        self._ranks, self._killed = ranks, threading.Event()
        alive = lambda: not self._killed.is_set()  # noqa: E731
        self._thread = threading.Thread(target=ranks.run, args=(what, alive), daemon=True)
        self._thread.start()

    def wait(self) -> str:
        self._thread.join()
        return "ended"

    def is_stopped(self) -> bool:
        return False

    def kill(self) -> None:
        if self._thread.is_alive():
            self._killed.set()
            self._ranks.abort()


def load_shared(
    path: str | Path,
    catalog: Catalog,
    ranks: int = RANKS,
    plan: Callable[[Plan], Plan] = lambda plan: plan,
    kind: type[ThreadRanks] = ThreadRanks,
    **options: Any,
) -> Engine:
    """Load a model that is shared by ranks in threads, as many for each pipeline stage (`pp`), or
    with one rank in this one alone. Its limits are those of `load_toy`. `plan` changes its plan.
    `kind` starts and connects the ranks."""
    settings = small_options({"device": "cpu", **options, "tp": ranks})
    with open_model(str(path), settings, catalog) as opened:
        opened = evolve(opened, plan=plan(opened.plan))
        if (shared := opened.plan.ranks) is None:
            return Engine.load(opened)
        threads = kind(shared.count, catalog, shared.stages)
        home = LeadingHome.starting(threads.start, threads.communicator)
        return Engine.load(opened, home_of=home)


def as_other_machines(patched: pytest.MonkeyPatch) -> None:
    """Let all ranks but the first one be taken for those of other machines: they are sent the
    pixels of images, whose files they do not read."""
    accept, load = Group._accept, Follower.load
    engine = threading.current_thread()

    def accepted(group: Group) -> bool:
        said = accept(group)
        group._far.update(group._wires)
        return said

    def read(image: ImagePart, patches: int) -> Tensor | None:
        assert threading.current_thread() is engine, "another machine reads a file of this one"
        return read_pixels(image, patches)

    patched.setattr(Group, "_accept", accepted)
    patched.setattr(Follower, "load", lambda opened, far: load(opened, far=True))
    patched.setattr(seeing, "read_pixels", read)


def answers(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    adapters: Sequence[AdapterRef | None] = (),
) -> list[list[EngineOutput]]:
    """Return the outputs for each prompt, all at once. Checks the scheduler after every step."""
    for i, prompt in enumerate(prompts):
        adapter = adapters[i] if adapters else None
        engine.submit(Request(id=str(i), token_ids=tuple(prompt), params=params, adapter=adapter))
    outputs: list[list[EngineOutput]] = [[] for _ in prompts]
    while engine.busy:
        for output in engine.step():
            assert not output.error, output.error
            outputs[int(output.request_id)].append(output)
        engine.check()
    return outputs


def tokens_of(outputs: Sequence[Sequence[EngineOutput]]) -> list[list[int | None]]:
    return [[output.token_id for output in each] for each in outputs]


def logprobs_of(outputs: Sequence[EngineOutput]) -> Tensor:
    """The log-probabilities of the tokens of a prompt and its output."""
    prompt = [each.logprob for each in outputs[0].prompt_logprobs or () if each is not None]
    drawn = [each.logprobs.logprob for each in outputs if each.logprobs is not None]
    assert drawn, "they were asked for"
    return torch.tensor([*prompt, *drawn])


@define(eq=False)
class Alone:
    """The reference: an engine in one process. What several tests ask it is computed once."""

    engine: Engine
    _kept: dict[str, list[list[list[EngineOutput]]]] = field(factory=dict)

    def answers(
        self, prompts: Sequence[Sequence[int]], *turns: SamplingParams
    ) -> list[list[list[EngineOutput]]]:
        """Return the outputs for each prompt, for each of these in turn."""
        key = repr((prompts, turns))
        if key not in self._kept:
            self._kept[key] = [answers(self.engine, prompts, params) for params in turns]
        return self._kept[key]


def assert_same_tokens(
    ours: Engine, theirs: Alone, prompts: Sequence[Sequence[int]], *turns: SamplingParams
) -> tuple[list[list[EngineOutput]], list[list[EngineOutput]]]:
    """Compare two engines' tokens. Returns their outputs of the last turn."""
    for params, others in zip(turns, theirs.answers(prompts, *turns), strict=True):
        mine = answers(ours, prompts, params)
        assert tokens_of(mine) == tokens_of(others)
    return mine, others


def assert_same_with_prefix_hits(
    ours: Engine, theirs: Alone, prompts: Sequence[Sequence[int]]
) -> None:
    """Greedy and seeded, and again with prompts that are found in the prefix cache."""
    mine, others = assert_same_tokens(ours, theirs, prompts, GREEDY, SEEDED, GREEDY)
    assert mine[-1][0].num_cached == others[-1][0].num_cached > 0


def assert_same_logprobs(ours: Engine, theirs: Alone, prompts: Sequence[Sequence[int]]) -> None:
    for mine, other in zip(*assert_same_tokens(ours, theirs, prompts, SCORED), strict=True):
        assert_close(logprobs_of(mine), logprobs_of(other), 1e-3)


def assert_preemption_changes_nothing(
    squeezed: Callable[[Callable[[Plan], Plan]], Engine],
    theirs: Alone,
    prompts: Sequence[Sequence[int]],
) -> None:
    """`squeezed` loads an engine with a changed plan: that of a cache too small for all prompts."""
    repeated, params = [[*p, *p[:8]] for p in prompts], evolve(GREEDY, max_tokens=40)
    needed = -(-(len(repeated[-1]) + 40) // theirs.engine.plan.block_size)

    def tight(plan: Plan) -> Plan:
        groups = with_num_blocks(plan.groups, needed + 1)
        return evolve(plan, groups=groups, cache_policy="none")

    ours = squeezed(tight)
    assert_same_tokens(ours, theirs, repeated, params)
    stats = ours.stats()
    ours.close()
    assert stats.preemptions > 0


def assert_same_with_adapters(
    checkpoint: Path, catalog: Catalog, prompt: Sequence[int], **shared: int
) -> None:
    """Two adapters and none in one batch, beside every matrix; more of them than slots. `shared`
    says among how many ranks; the other engine has one process."""
    if not (checkpoint / "model.safetensors").is_file():
        pytest.skip("the checkpoint has several files")
    matrices = stored_matrices(checkpoint, catalog, 16)
    if not matrices:
        pytest.skip("no linear layer is stored by itself")
    given = [MemoryAdapter.random(i, matrices, rank) for i, rank in enumerate((4, 7, 2), 1)]
    served = serving(catalog, given)
    options: dict[str, Any] = {"max_loras": 2, "max_lora_rank": MOST, "lora_targets": "all"}
    runs, params = list[list[list[int | None]]](), evolve(GREEDY, logprobs=1)
    for ranks, stages in ((1, 1), (shared.get("tp", 1), shared.get("pp", 1))):
        engine = load_shared(checkpoint, served, ranks, pp=stages, **options)
        tokens = list[list[int | None]]()
        for _ in range(2):
            refs = [None, *(each.ref for each in given)]
            outputs = answers(engine, [prompt] * 4, params, refs)
            tokens += tokens_of(outputs)
        engine.close()
        runs.append(tokens)
    assert runs[0] == runs[1]
    first = {f"{float(logprobs_of(each)[0]):.3f}" for each in outputs}
    assert len(first) > 2, "adapters change what is drawn from"


def assert_captures_change_nothing(
    ours: Engine, theirs: Alone, prompts: Sequence[Sequence[int]]
) -> None:
    """With the native kernels, if a provider of them captures steps. Closes the engine."""
    runner = ours._runner
    assert isinstance(runner, ModelRunner)
    if runner.replays is None:
        ours.close()
        pytest.skip("no installed kernel provider captures steps")
    for some in (prompts, prompts, *[prompts[-1:]] * 2):
        assert_same_logprobs(ours, theirs, some)
    assert runner.replays.refusal is None and len(runner.replays.shapes) > 1
    ours.close()


def held_bytes(model: nn.Module) -> int:
    """Bytes of weights, without the rotary tables that a model computes."""
    from inferno.nn import Rope

    tables = {id(b) for m in model.modules() if isinstance(m, Rope) for b in m.buffers()}
    tensors = [t for t in (*model.parameters(), *model.buffers()) if id(t) not in tables]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())
