"""Loading is chosen where it is faster than computing, and large loads leave room for others."""

from __future__ import annotations

import pytest
from attrs import define, evolve, field

from inferno.builtin.lru import LRUPrefixCache
from inferno.contracts import Placed, StoreUsage
from inferno.core.kvcache import CacheGroups, FullGroup
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Step
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.stores.speeds import Speeds
from inferno.stores.storing import Storing
from inferno.testing import FakeRunner

BLOCK, SIZE, VOCAB = 4, 32, 50


@pytest.fixture
def usage() -> StoreUsage:
    return StoreUsage()


@pytest.fixture
def speeds(usage: StoreUsage) -> Speeds:
    return Speeds(usage)


def test_what_was_not_measured_pays(speeds: Speeds, usage: StoreUsage) -> None:
    assert speeds.to_compute(10) is speeds.to_move(10) is speeds.budget() is None
    assert speeds.pays(1, 1 << 40)
    speeds.computed(100, 1.0)
    assert speeds.pays(1, 1 << 40)
    usage.loaded_bytes, usage.copy_seconds = 100, 1.0
    assert not speeds.pays(1, 1 << 40) and speeds.pays(1, 1 << 40, far=1)


def test_moving_pays_if_it_takes_no_longer_than_computing(
    speeds: Speeds, usage: StoreUsage
) -> None:
    speeds.computed(100, 1.0)  # 0.01 s a token
    usage.saved_bytes, usage.copy_seconds = 1000, 1.0  # 0.001 s a byte
    usage.fetched_bytes, usage.fetch_seconds = 100, 1.0  # 0.01 s a byte
    assert speeds.to_compute(50) == pytest.approx(0.5)
    assert speeds.to_move(100) == pytest.approx(0.1)
    assert speeds.to_move(100, far=40) == pytest.approx(0.5)
    assert speeds.pays(51, 100, far=40) and not speeds.pays(49, 100, far=40)


def test_small_steps_do_not_tell_how_fast_prompts_are_computed(speeds: Speeds) -> None:
    speeds.computed(4, 1.0)
    assert speeds.to_compute(1) is None
    speeds.computed(128, 1.0)
    assert speeds.to_compute(128) == 1.0


def test_older_steps_count_less(speeds: Speeds) -> None:
    for _ in range(200):
        speeds.computed(1000, 10.0)
    for _ in range(400):
        speeds.computed(1000, 1.0)
    assert speeds.to_compute(1000) == pytest.approx(1.0, rel=0.2)


def test_a_steps_budget_is_half_a_common_step(speeds: Speeds, usage: StoreUsage) -> None:
    usage.loaded_bytes, usage.copy_seconds = 1000, 1.0
    for seconds in (0.1, 0.2, 9.0):
        speeds.computed(1, seconds)
    assert speeds.budget() == 100


# --- with a scheduler -----------------------------------------------------------------------------


@define
class Near:
    """A store whose blocks are all near."""

    keys: set[bytes] = field(factory=set)
    usage: StoreUsage = field(factory=StoreUsage)
    held: list[str] = field(factory=list)

    def groups_of(self, key: bytes) -> int:
        return int(key in self.keys)

    near = groups_of

    def note(self, placed: Placed) -> None:
        self.keys.add(placed.key)

    def drop(self, key: bytes) -> None:
        self.keys.discard(key)

    def touch(self, keys: object) -> None:
        return None

    def fetch(self, wanted: object, owner: str) -> None:
        self.held.append(owner)

    def pin(self, keys: object, owner: str, until: float) -> int:
        return 0

    def release(self, owner: str) -> None:
        self.held = [each for each in self.held if each != owner]

    def register(self, groups: object) -> None:
        return None

    def save(self, saves: object) -> None:
        return None

    load = save

    def poll(self) -> list[str]:
        return []

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        return None


class Fixed(Speeds):
    """A budget of two blocks a step."""

    def budget(self) -> int | None:
        return 2 * SIZE


@pytest.fixture
def storing() -> Storing:
    groups = CacheGroups(64, BLOCK, LRUPrefixCache(64), [FullGroup()])
    near = Near()
    storing = Storing(groups, near, near, (SIZE,))
    storing.speeds = Fixed(near.usage)
    return storing


@pytest.fixture
def scheduler(storing: Storing) -> Scheduler:
    return Scheduler(storing.groups, max_model_len=100, max_num_seqs=4, store=storing)


def request(id: str, prompt: list[int], max_tokens: int = 4) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Request(id=id, token_ids=tuple(prompt), params=params)


LONG = list(range(33))


def known(scheduler: Scheduler, storing: Storing) -> FakeRunner:
    """Let the store have a long prompt, and memory nothing."""
    runner = FakeRunner(BLOCK, VOCAB)
    scheduler.add(request("before", LONG, 1))
    while scheduler.busy:
        step = scheduler.plan()
        scheduler.commit(step, runner.run(step))
    storing.groups.reset()
    return runner


def computed(scheduler: Scheduler, runner: FakeRunner) -> Step:
    """Compute a step, with what it loads copied from where it was computed before."""
    step = scheduler.plan()
    for placed in step.loads:
        [place] = placed.places
        assert place is not None
        index = scheduler._by_id["late"].keys.index(placed.key)
        for i in range(BLOCK):
            position = index * BLOCK + i
            runner._contents[0][place * BLOCK + i] = tuple(LONG[: position + 1])
    scheduler.commit(step, runner.run(step))
    return step


def test_a_sequence_that_runs_alone_loads_at_once(scheduler: Scheduler, storing: Storing) -> None:
    runner = known(scheduler, storing)
    scheduler.add(request("late", LONG))
    step = computed(scheduler, runner)
    assert len(step.loads) == 8 and len(step.slices) == 1


def test_a_large_load_takes_many_steps_while_others_run(
    scheduler: Scheduler, storing: Storing
) -> None:
    runner = known(scheduler, storing)
    scheduler.add(request("running", [49, 48], 20))
    computed(scheduler, runner)
    scheduler.add(request("late", LONG))
    steps = [computed(scheduler, runner) for _ in range(6)]
    assert [len(step.loads) for step in steps] == [2, 2, 2, 2, 0, 0]
    assert [len(step.slices) for step in steps] == [1, 1, 1, 1, 2, 2]
    assert storing.index.held == [], "its parts are held after they were loaded"  # type: ignore[attr-defined]


def test_an_aborted_load_ends(scheduler: Scheduler, storing: Storing) -> None:
    runner = known(scheduler, storing)
    scheduler.add(request("running", [49, 48], 20))
    computed(scheduler, runner)
    scheduler.add(request("late", LONG))
    computed(scheduler, runner)
    assert bool(storing.has_news)
    scheduler.abort("late")
    assert not bool(storing.has_news)
    scheduler.check()
    assert not computed(scheduler, runner).loads


def test_blocks_that_a_load_waits_for_are_not_dropped(
    scheduler: Scheduler, storing: Storing
) -> None:
    runner = known(scheduler, storing)
    scheduler.add(request("running", [49, 48], 20))
    computed(scheduler, runner)
    scheduler.add(request("late", LONG))
    steps = [computed(scheduler, runner)]
    keys = list(scheduler._by_id["late"].keys)
    storing.drop(keys)
    assert [storing.index.near(key) for key in keys] == [0, 0, 1, 1, 1, 1, 1, 1]
    steps += [computed(scheduler, runner) for _ in range(5)]
    assert sum(len(step.loads) for step in steps) == 8
    storing.drop(keys)
    assert not any(storing.index.near(key) for key in keys)


def test_nothing_is_forked_from_a_sequence_whose_blocks_are_not_loaded(
    scheduler: Scheduler, storing: Storing
) -> None:
    runner = known(scheduler, storing)
    prompt = LONG[:10][::-1]
    scheduler.add(request("again", prompt, 30))
    scheduler.add(request("running", [49, 48], 60))
    for _ in range(20):
        computed(scheduler, runner)
    again = scheduler._by_id["again"]
    keys = list(again.keys)
    scheduler._preemption.preempt(again)
    cached = storing.groups.prefix
    assert cached is not None
    storing.groups.drop(cached.match(keys)[2:])
    # Its third block, which has the end of its prompt, is loaded after those of another.
    scheduler.add(evolve(request("first", LONG), priority=-1))
    step = scheduler.plan()
    scheduler.commit(step, runner.run(step))
    assert len(step.loads) == 2
    scheduler.add(request("same", prompt, 2))
    step = scheduler.plan()
    assert again.arriving is not None and not step.moves


def test_what_is_computed_faster_is_not_loaded(scheduler: Scheduler, storing: Storing) -> None:
    runner = known(scheduler, storing)
    storing.speeds = Speeds(StoreUsage(loaded_bytes=1, copy_seconds=1.0))
    storing.speeds.computed(1000, 0.001)
    scheduler.add(request("late", LONG))
    step = computed(scheduler, runner)
    assert not step.loads and step.num_tokens == len(LONG)
    assert scheduler.stats.store_skipped_tokens == 32


# --- preemption -----------------------------------------------------------------------------------

CHEAP = StoreUsage(saved_bytes=1, copy_seconds=1e-9)
DEAR = StoreUsage(saved_bytes=1, copy_seconds=1.0)


def preempted(
    scheduler: Scheduler, storing: Storing, usage: StoreUsage
) -> tuple[FakeRunner, set[bytes]]:
    """Preempt a sequence that computes its prompt. Returns what the store had of it before, and
    lets it have what is left, or not."""
    runner = FakeRunner(BLOCK, VOCAB)
    storing.speeds = Speeds(usage)
    scheduler.add(request("late", LONG))
    step = scheduler.plan()
    scheduler.commit(step, runner.run(step))
    storing.speeds.computed(1000, 1.0)  # a millisecond a token
    before = set(index_of(storing).keys)
    scheduler._preemption.preempt(scheduler._by_id["late"])
    scheduler.check()
    return runner, before


def index_of(storing: Storing) -> Near:
    assert isinstance(storing.index, Near)
    return storing.index


def test_a_preempted_sequence_is_saved_if_that_is_faster_than_computing_it(
    scheduler: Scheduler, storing: Storing
) -> None:
    _, before = preempted(scheduler, storing, CHEAP)
    assert len(index_of(storing).keys) == 8 > len(before)


def test_a_preempted_sequence_that_is_computed_faster_is_saved_at_its_end(
    scheduler: Scheduler, storing: Storing
) -> None:
    runner, before = preempted(scheduler, storing, DEAR)
    assert index_of(storing).keys == before, "saving it takes longer than computing it"
    while scheduler.busy:
        step = scheduler.plan()
        scheduler.commit(step, runner.run(step))
    assert len(index_of(storing).keys) >= 8
    assert scheduler.stats.preemptions == 1


def test_a_preempted_sequence_is_saved_while_nothing_was_measured(
    scheduler: Scheduler, storing: Storing
) -> None:
    preempted(scheduler, storing, StoreUsage())
    assert len(index_of(storing).keys) == 8


def test_saving_costs_two_copies_and_the_reading_that_loads_needed(
    speeds: Speeds, usage: StoreUsage
) -> None:
    speeds.computed(100, 1.0)  # 0.01 s a token
    usage.saved_bytes, usage.copy_seconds = 1000, 1.0  # 0.001 s a byte
    assert speeds.pays_to_save(20, 100) and not speeds.pays_to_save(19, 100)
    usage.saved_bytes, usage.loaded_bytes = 500, 500
    usage.fetched_bytes, usage.fetch_seconds = 250, 2.5  # half of what is loaded, 0.01 s a byte
    assert speeds.pays_to_save(70, 100) and not speeds.pays_to_save(69, 100)
    usage.fetched_bytes = 2000  # much was read that was not loaded
    usage.fetch_seconds = 20.0
    assert speeds.pays_to_save(120, 100) and not speeds.pays_to_save(119, 100)
