"""Adapters beside the demo model: through the engine, and as `LLM` serves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from tests.peft_adapters import matrices, pairs, write_merged, write_peft

from inferno import LLM, SamplingParams
from inferno.builtin.lru import LRUPrefixCache
from inferno.contracts import Capture
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import ModelRunner
from inferno.core.schedule.admission import MOST_OVERTAKING
from inferno.core.schedule.scheduler import Scheduler
from inferno.core.types import Sampled
from inferno.errors import CheckpointError, InfernoError, OptionError, RequestError
from inferno.nn.capture import CallCapture
from inferno.nn.lora import Adapted
from inferno.plan import AdapterRoom, CaptureUse, Options, resolve
from inferno.request.requests import AdapterRef, Request
from inferno.testing import Toy, load_toy
from inferno.testing.adapters import MemoryAdapter, with_adapters
from inferno.testing.tiny import torch_only
from inferno.weights.adapter_slots import AdapterSlots

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [5 + 7 * i % 90 for i in range(40)]
DEMO: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve("demo").path)


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters: of ranks 4 and 8, and of rank 2 for attention alone."""
    root = tmp_path_factory.mktemp("adapters")
    few = ("q_proj", "v_proj")
    given = [(matrices(model), 4), (matrices(model), 8), (matrices(model, few), 2)]
    return [
        write_peft(root / str(i), pairs(weights, i, rank))
        for i, (weights, rank) in enumerate(given)
    ]


def tokens(llm: LLM, lora: str | None = None, prompt: Sequence[int] = PROMPT) -> list[int]:
    [output] = llm.generate([list(prompt)], GREEDY, lora=lora)
    return list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The answers of the model, and of those that the adapters are merged into."""
    root = tmp_path_factory.mktemp("merged")
    few = ("q_proj", "v_proj")
    given = [(matrices(model), 4), (matrices(model), 8), (matrices(model, few), 2)]
    merged = [
        write_merged(model, root / str(i), pairs(weights, i, rank))
        for i, (weights, rank) in enumerate(given)
    ]
    answers = []
    for path in (model, *merged):
        with LLM(str(path), **DEMO) as llm:
            answers.append(tokens(llm))
    assert len({tuple(each) for each in answers}) == 4
    return answers


# --- as LLM serves them ---------------------------------------------------------------------------


def test_requests_name_adapters_and_answers_are_those_of_merged_models(
    folders: list[Path], expected: list[list[int]]
) -> None:
    loras = {name: str(folder) for name, folder in zip("abc", folders, strict=True)}
    with LLM("demo", loras=loras, **DEMO) as llm:
        names = [None, *"abc"]
        assert [tokens(llm, name) for name in names] == expected
        assert [tokens(llm, name) for name in names] == expected, "from the prefix cache"
        streamed = [i for delta in llm.stream(PROMPT, GREEDY, lora="b") for i in delta.token_ids]
        assert streamed == expected[2]


def test_prompts_have_the_log_probabilities_of_merged_models(
    model: Path, folders: list[Path], tmp_path: Path
) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    merged = write_merged(model, tmp_path / "merged", pairs(matrices(model), 1, 8))
    runs = []
    for ref, lora in ((str(merged), None), ("demo", "b"), ("demo", None)):
        loras = {"b": str(folders[1])} if lora else {}
        with LLM(ref, loras=loras, **DEMO) as llm:
            [output] = llm.generate([PROMPT], params, lora=lora)
            assert output.prompt_logprobs is not None
            scored = zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
            runs.append([each[token].logprob for token, each in scored if each is not None])
            assert len(runs[-1]) == len(PROMPT) - 1
    gaps = [max(abs(a - b) for a, b in zip(runs[0], each, strict=True)) for each in runs[1:]]
    assert gaps[0] < 0.2 and gaps[1] > 2, "merged weights are rounded to bfloat16"


def test_another_adapter_under_the_same_name_changes_answers_at_once(
    folders: list[Path], expected: list[list[int]]
) -> None:
    with LLM("demo", max_loras=1, **DEMO) as llm:
        for number in (0, 2, 1, 0):
            llm.load_lora("same", str(folders[number]))
            assert tokens(llm, "same") == expected[1 + number]
        llm.unload_lora("same")
        with pytest.raises(RequestError, match="no adapter 'same'"):
            tokens(llm, "same")
        assert tokens(llm) == expected[0]


def test_without_room_adapters_are_refused(folders: list[Path]) -> None:
    with LLM("demo", **DEMO) as llm:
        with pytest.raises(OptionError, match="no room for adapters") as caught:
            llm.load_lora("a", str(folders[0]))
        assert "--max-loras" in caught.value.remedy
        ref = AdapterRef("a", "0" * 32, str(folders[0]), "peft")
        request = Request(id="1", token_ids=(1, 2), adapter=ref)
        with pytest.raises(RequestError, match="no room"):
            llm._engine.submit(request)


def test_hostile_adapters_are_refused_by_name(model: Path, tmp_path: Path) -> None:
    weights = matrices(model)
    path = next(iter(weights))
    good = pairs(weights, 1, 4)
    (a, b), inputs = good[path], weights[path].shape[1]
    nan, much = b.clone(), b.clone()
    nan[3, 1], much[0, 0] = float("nan"), 1e30
    cases = {
        "wrong shape": ({path: (torch.ones(4, inputs + 1), b)}, r"has \(\d+, \d+\) for"),
        "unknown module": ({"model.layers.99.self_attn.q_proj": (a, b)}, "layers.99"),
        "head": ({"lm_head": (a, torch.ones(128, 4))}, "lm_head"),
        "no room": ({"model.embed_tokens": (a, torch.ones(4096, 4))}, "no room"),
        "nan": ({path: (a, nan)}, "not finite"),
        "infinite once scaled": ({path: (a, much * 1e9)}, "not finite"),
        "rank": ({path: (torch.ones(64, inputs), torch.ones(len(b), 64))}, "rank 64"),
    }
    with LLM("demo", max_loras=1, max_lora_rank=8, **DEMO) as llm:
        before = tokens(llm)
        for name, (given, reason) in cases.items():
            folder = write_peft(tmp_path / name.replace(" ", "-"), given)
            with pytest.raises(CheckpointError, match=reason) as caught:
                llm.load_lora(name, str(folder))
            assert caught.value.remedy and len(str(caught.value)) < 600
        with pytest.raises(InfernoError, match="no adapter in a format"):
            llm.load_lora("model", str(model))
        llm.load_lora("good", str(write_peft(tmp_path / "good", good)))
        assert tokens(llm) == before != tokens(llm, "good")
    with pytest.raises(CheckpointError, match="not finite"):
        LLM("demo", loras={"nan": str(tmp_path / "nan")}, **DEMO)


def test_the_plan_says_how_much_room_adapters_take(folders: list[Path]) -> None:
    plan = resolve("demo")
    assert plan.adapters is None and "adapters" not in [item.name for item in plan.memory]
    loras = {"a": str(folders[0]), "b": str(folders[1])}
    plan = resolve("demo", Options(loras=loras, dtype="float32"))
    assert plan.adapters is not None
    assert (plan.adapters.slots, plan.adapters.rank) == (2, 8)
    [planned] = [item.nbytes for item in plan.memory if item.name == "adapters"]
    toy = with_adapters(load_toy("demo", torch_only()), [], ())
    assert toy.adapters is not None
    sizes = {
        id(place.pairs): sum(buffer.nbytes for buffer in place.pairs.buffers())
        for place in toy.adapters.places.values()
    }
    room = toy.plan.adapters
    assert room is not None
    slots = plan.adapters.slots * plan.adapters.rank / (room.slots * room.rank)
    assert planned == pytest.approx(sum(sizes.values()) * slots)
    with pytest.raises(OptionError, match="--max-lora-rank 8"):
        resolve("demo", Options(loras={"b": str(folders[1])}, max_lora_rank=4))
    with pytest.raises(OptionError, match="NAME=REF"):
        resolve("demo", Options(loras=("nothing",)))


# --- through the engine ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given(model: Path) -> list[MemoryAdapter]:
    weights = matrices(model)
    return [MemoryAdapter.random(i, weights, 2 + i) for i in range(1, 6)]


@pytest.fixture(scope="module")
def toy(given: list[MemoryAdapter]) -> Toy:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128}
    return with_adapters(load_toy("demo", torch_only(), **options), given)


def engine_of(
    toy: Toy,
    *,
    slots: int = 3,
    lag: int = 0,
    capture: Capture | None = None,
    num_blocks: int | None = None,
) -> Engine:
    blocks = -(-toy.plan.max_model_len // toy.plan.block_size)
    use = CaptureUse(name="torch", sizes=(1, 4), blocks=(blocks,), ahead=True)
    plan = evolve(toy.plan, capture=use, adapters=AdapterRoom(slots=slots, rank=8))
    count = num_blocks or plan.num_blocks
    groups = CacheGroups(count, plan.block_size, LRUPrefixCache(count))
    runner = ModelRunner(toy.model, plan, capture=capture, overlaps=lag > 0, adapters=toy.adapters)
    runner.capture_ahead()
    return Engine(plan, scheduler_of(plan, groups), runner, lag=lag)


def requests(given: list[MemoryAdapter]) -> Iterator[Request]:
    """More than run at once, of equal prompts and of others, with every adapter and with none."""
    refs = [None, *(each.ref for each in given)]
    for i in range(18):
        prompt = tuple(5 + (3 * j + i // 6) % 90 for j in range(30 + 9 * (i % 3)))
        params = SamplingParams(temperature=0, max_tokens=10 + i, ignore_eos=True)
        yield Request(id=str(i), token_ids=prompt, params=params, adapter=refs[i % 6])


def answers(engine: Engine, requests: Sequence[Request]) -> dict[str, list[int | None]]:
    for request in requests:
        engine.submit(request)
    ids: dict[str, list[int | None]] = {request.id: [] for request in requests}
    while engine.busy:
        for output in engine.step():
            assert not output.error
            ids[output.request_id].append(output.token_id)
        engine.check()
    return ids


@pytest.fixture(scope="module")
def alone(toy: Toy, given: list[MemoryAdapter]) -> dict[str, list[int | None]]:
    results: dict[str, list[int | None]] = {}
    for request in requests(given):
        results |= answers(engine_of(toy), [request])
    assert len({tuple(ids[:8]) for ids in results.values()}) > 8, "adapters change the answers"
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("captured", "slots", "lag"), [(False, 1, 0), (False, 3, 1), (True, 3, 0), (True, 1, 1)]
)
def test_each_answer_is_that_of_the_request_alone(
    toy: Toy,
    given: list[MemoryAdapter],
    alone: dict[str, list[int | None]],
    captured: bool,
    slots: int,
    lag: int,
) -> None:
    capture = CallCapture() if captured else None
    engine = engine_of(toy, slots=slots, lag=lag, capture=capture)
    assert answers(engine, list(requests(given))) == alone
    assert answers(engine, list(requests(given))) == alone, "from the cache"
    if captured:
        runner = engine._runner
        assert isinstance(runner, ModelRunner)
        assert runner.replays is not None and runner.replays.refusal is None
        assert runner.adapting is not None and runner.adapting.own_replays is not None
        assert runner.adapting.own_replays.refusal is None
        assert runner.adapting.own_replays.shapes == runner.replays.shapes != set()


@pytest.mark.slow
def test_preempted_requests_get_their_adapters_back(
    toy: Toy, given: list[MemoryAdapter], alone: dict[str, list[int | None]]
) -> None:
    engine = engine_of(toy, num_blocks=11)
    assert answers(engine, list(requests(given))) == alone
    assert engine.stats().preemptions > 0


def test_a_step_without_adapters_computes_none(
    toy: Toy, given: list[MemoryAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(toy)
    assert toy.adapters is not None
    pairs = next(iter(toy.adapters.places.values())).pairs
    monkeypatch.setattr(pairs, "ops", None)  # a product of adapters would fail
    plain = [request for request in requests(given) if request.adapter is None]
    assert len(answers(engine, plain)) == len(plain)
    with pytest.raises(AttributeError):
        answers(engine, [each for each in requests(given) if each.adapter is not None][:1])


def test_a_request_without_a_slot_does_not_hold_up_others(
    toy: Toy, given: list[MemoryAdapter]
) -> None:
    engine = engine_of(toy, slots=1)
    refs = [given[0].ref, given[1].ref, None, given[0].ref]
    lengths = [40, 5, 5, 5]
    for i, (ref, length) in enumerate(zip(refs, lengths, strict=True)):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.submit(Request(id=str(i), token_ids=(i, 7, 8), params=params, adapter=ref))
    ended = []
    while engine.busy:
        ended += [o.request_id for o in engine.step() if o.finish is not None]
        engine.check()
    assert ended == ["2", "3", "0", "1"]


def test_a_request_with_an_adapter_and_no_tokens_ends_once_it_is_read(
    toy: Toy, given: list[MemoryAdapter]
) -> None:
    engine = engine_of(toy)
    engine.submit(Request(id="read", token_ids=(), adapter=given[0].ref), wait=False)
    [output] = [output for _ in range(3) for output in engine.step()]
    assert output.request_id == "read" and output.finish == "stop" and output.token_id is None
    assert not engine.busy


@pytest.mark.parametrize(
    "options", [{"isq": "q8_0"}, {"isq": "q4_0"}, {"dtype": "bfloat16"}], ids=str
)
def test_beside_a_packed_matrix_the_products_of_adapters_are_added(
    given: list[MemoryAdapter], options: dict[str, Any]
) -> None:
    """By the installed kernels, whatever the layout: the base has its own error, and no other."""
    toy = with_adapters(load_toy("demo", **options), given[:2], ())
    adapters = toy.adapters
    assert adapters is not None
    for slot, each in enumerate(given[:2]):
        adapters.write(slot, each.ref.digest)
    slots, draw = [-1, 0, 1, -1, 1], torch.Generator().manual_seed(3)
    adapters.step.slots_T[:5] = torch.tensor(slots)
    weights = {id(each.pairs): each for each in toy.model.modules() if isinstance(each, Adapted)}
    for path, place in adapters.places.items():
        weight = weights[id(place.pairs)]
        first = sum(place.pairs.sizes[: place.part])
        x_TI = torch.randn(5, weight.shape[1], generator=draw).to(adapters.dtype)
        with torch.inference_mode():
            plain_TO = weight.matmul(x_TI)[:, first : first + place.shape[0]]
            adapters.step.active, adapters.step.count = True, 5
            y_TO = weight.matmul(x_TI)[:, first : first + place.shape[0]]
            adapters.step.active = False
        for row, slot in enumerate(slots):
            if slot < 0:
                assert torch.equal(y_TO[row], plain_TO[row])
                continue
            a_RI, b_OR = given[slot].pairs[path]
            delta_O = 0.5 * b_OR @ (a_RI @ x_TI[row].float())
            error = float((y_TO[row].float() - plain_TO[row].float() - delta_O).norm())
            limit = 1e-5 if adapters.dtype == torch.float32 else 0.03
            assert error < limit * float((plain_TO[row].float() + delta_O).norm() + delta_O.norm())


# --- slots ----------------------------------------------------------------------------------------


def ref(name: str) -> AdapterRef:
    return AdapterRef(name, name, "", "memory")


def scheduler(slots: int) -> Scheduler:
    groups = CacheGroups(256, 16, LRUPrefixCache(256))
    return Scheduler(groups, max_model_len=64, max_num_seqs=4, adapter_slots=slots)


def test_requests_overtake_one_without_a_slot_for_only_so_long() -> None:
    """As long as some request has the adapter in the only slot, another adapter cannot be in it."""
    under_test, arrived = scheduler(1), 0

    def add(name: str) -> str:
        nonlocal arrived
        arrived += 1
        params = SamplingParams(max_tokens=3)
        request = Request(id=f"{name}{arrived}", token_ids=(1,), params=params, adapter=ref(name))
        under_test.add(request)
        return request.id

    add("first")
    blocked, ended = "", list[str]()
    for _ in range(3 * MOST_OVERTAKING):
        add("first")
        blocked = blocked or add("second")
        step = under_test.plan()
        drawn = Sampled([3 for s in step.slices if s.samples])
        ended += [o.request_id for o in under_test.commit(step, drawn) if o.finish is not None]
        under_test.check()
        if blocked in ended:
            break
    assert blocked in ended and len(ended) > MOST_OVERTAKING // 2


def test_a_slot_keeps_its_adapter_until_another_needs_it() -> None:
    slots = AdapterSlots(2)

    a, b = slots.take("a"), slots.take("b")
    assert {a, b} == {0, 1} and slots.take("") == -1
    assert slots.has_room("a") and not slots.has_room("c") and slots.has_room("")
    slots.release(a)
    assert slots.take("a") == a
    slots.release(a)
    assert slots.take("c") == a and not slots.has_room("a")


@pytest.mark.slow
def test_processes_that_share_a_model_share_its_adapters(
    folders: list[Path], expected: list[list[int]]
) -> None:
    """One that is loaded at the start, and one that is not."""
    with LLM("demo", tp=2, loras=(f"a={folders[0]}",), max_loras=1, max_lora_rank=8, **DEMO) as llm:
        llm.load_lora("b", str(folders[1]))
        assert [tokens(llm), tokens(llm, "a"), tokens(llm, "b")] == expected[:3]
