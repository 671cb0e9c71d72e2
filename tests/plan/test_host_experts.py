"""Which experts stay in the host's memory, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from inferno.catalog import load_catalog
from inferno.cli.shares import host_rows
from inferno.contracts import Device, HeldMatrix
from inferno.errors import InfernoError, OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan import (
    HostExpertsUse,
    Machine,
    Options,
    plan_from_json,
    plan_to_json,
    resolve,
)
from inferno.plan.adapter_use import AdapterRoom
from inferno.plan.backends import choose_capture
from inferno.plan.decided import Decided
from inferno.plan.fetch_use import FetchUse, Timed, fetch_from
from inferno.plan.host_experts import choose_host_experts
from inferno.plan.pipeline import Shared
from inferno.plan.schemes import Matrices

GPU = Device("cuda", name="a GPU", total=8 << 30, free=8 << 30)
CPU = Device("cpu", name="a CPU", total=8 << 30, free=8 << 30)
MODEL: Any = type("Model", (), {"hidden_size": 64, "num_experts_per_tok": 2})()
NAMES = "gate_proj", "up_proj", "down_proj"


class Host(Machine):
    """A machine with a CPU of that memory."""

    def cpu(self) -> Device:
        return CPU


def matrices(experts: Sequence[int], layers: int = 2, nbytes: int = 1000) -> dict[str, HeldMatrix]:
    by_path = {"lm_head": HeldMatrix(shape=(100, 64), nbytes=nbytes)}
    for layer in range(layers):
        path = f"model.layers.{layer}.mlp"
        by_path[f"{path}.shared_experts.up_proj"] = HeldMatrix(shape=(24, 64), nbytes=nbytes)
        for name, expert in [(name, expert) for name in NAMES for expert in experts]:
            shape = (64, 24) if name == "down_proj" else (24, 64)
            by_path[f"{path}.experts.{expert}.{name}"] = HeldMatrix(shape=shape, nbytes=nbytes)
    return by_path


def chosen(
    count: int,
    held: dict[str, HeldMatrix],
    device: Device = GPU,
    adapters: AdapterRoom | None = None,
    **more: Any,
) -> Decided[HostExpertsUse | None]:
    options = Options(experts_on_host=count, **more)
    given = load_catalog(), options, device, Host(), held, MODEL
    alone = Shared(Matrices((), {}, {}, {}, (), 0))
    return choose_host_experts(*given, "bfloat16", adapters, alone.largest)


def test_the_first_experts_of_each_layer_that_a_process_has_are_kept() -> None:
    use = chosen(2, matrices([4, 5, 6, 7])).value
    assert use is not None
    assert (use.count, use.of, use.layers) == (2, 4, 2)
    assert use.modules == ("model.layers.*.mlp.experts",)
    assert use.nbytes == 2 * 2 * 3 * 1000, "not the shared ones"
    assert use.moved_bytes == 2 * (2 * 64 * 2 + 2 * 12), "hidden states, numbers and weights"
    assert {*use.products} == {f"model.layers.*.mlp.experts.*.{name}" for name in NAMES}
    rows = [text for _, text, _ in host_rows(evolve(resolve("demo"), host_experts=use))]
    assert rows[0].startswith("model.layers.*.mlp.experts: 2 of 4 in each of 2 layers, 11.7 KiB")
    assert rows[1].startswith("560 B to the host and back for each token")


def test_on_a_cpu_nothing_moves_and_the_plan_says_that_nothing_is_saved() -> None:
    decided = chosen(1, matrices([0, 1]), CPU)
    assert decided.value is not None and decided.value.moved_bytes == 0
    assert any("saves no memory" in note for note in decided.notes)
    assert chosen(0, matrices([0, 1])).value is None


def test_an_expert_is_the_hosts_by_its_number() -> None:
    use = chosen(2, matrices([0, 1, 2])).value
    assert use is not None
    assert use.holds("model.layers.7.mlp.experts.1.up_proj")
    assert not use.holds("model.layers.7.mlp.experts.2.up_proj")
    assert not use.holds("model.layers.7.mlp.shared_experts.up_proj")


@pytest.mark.parametrize(
    ("count", "held", "device", "kind", "says"),
    [
        (1, {"lm_head": HeldMatrix(shape=(9, 9), nbytes=1)}, GPU, UnsupportedError, "no routed"),
        (5, matrices([0, 1, 2, 3]), GPU, OptionError, "at most 4"),
        (1, matrices([0, 1]), Device("mps"), UnsupportedError, "saves none"),
        (4, matrices([0, 1, 2, 3], nbytes=1 << 28), GPU, OutOfMemoryError, "at most 3"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(
    count: int, held: dict[str, HeldMatrix], device: Device, kind: type[InfernoError], says: str
) -> None:
    with pytest.raises(kind) as refused:
        chosen(count, held, device)
    assert says in str(refused.value)


def test_adapters_of_experts_need_them_on_the_device() -> None:
    room = AdapterRoom(slots=1, rank=8, beside=("experts",))
    with pytest.raises(UnsupportedError, match="adapters that change routed experts"):
        chosen(1, matrices([0, 1]), GPU, room)
    assert chosen(1, matrices([0, 1]), GPU, evolve(room, beside=())).value is not None
    assert chosen(1, matrices([0, 1]), CPU, room).value is not None


def test_steps_between_which_the_host_computes_are_not_captured() -> None:
    decided = choose_capture(
        Decided(()),
        (),
        Device("cuda"),
        max_tokens=8,
        max_blocks=8,
        stops="the host computes experts",
    )
    assert decided.value is None and "the host computes experts" in decided.notes[0]
    captured = choose_capture(Decided(()), (), Device("cuda"), max_tokens=8, max_blocks=8)
    assert captured.value is not None


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(OptionError, match="experts_on_host is -1"):
        Options(experts_on_host=-1)


# --- fetched experts ------------------------------------------------------------------------------


def test_a_device_fetches_in_steps_of_as_many_tokens_as_is_measured_or_said() -> None:
    held = matrices([0, 1, 2])
    auto, said, always = (
        chosen(2, held, fetch_experts_from=each).value for each in ("auto", 48, 1)
    )
    for use, tokens, copies in ((auto, None, 2), (said, 48, 2), (always, 1, 1)):
        assert use is not None and use.fetch is not None
        assert (use.fetch.from_tokens, use.host_bytes) == (tokens, copies * use.nbytes)
        assert use.fetch.buffer_bytes == 2 * 3 * 1000, "two experts of one form"
    assert always is not None and always.moved_bytes == 0 and not always.computes
    never = chosen(2, held, fetch_experts_from="never").value
    assert never is not None and never.fetch is None and never.host_bytes == never.nbytes


def test_experts_of_other_sizes_have_other_buffers() -> None:
    held = matrices([0, 1])
    held |= {
        path: evolve(matrix, nbytes=3000)
        for path, matrix in held.items()
        if ".1.mlp" in path and path.endswith("down_proj")
    }
    use = chosen(1, held).value
    assert use is not None and use.fetch is not None
    assert use.fetch.buffer_bytes == 2 * (3 * 1000) + 2 * (2 * 1000 + 3000)


def test_two_copies_need_the_hosts_memory() -> None:
    held = matrices([0, 1, 2, 3], nbytes=1 << 28)  # 3 GiB of 5.6 GiB
    decided = chosen(2, held)
    assert decided.value is not None and decided.value.fetch is None
    assert any("each need a copy, 6.0 GiB" in note for note in decided.notes)
    assert chosen(2, held, fetch_experts_from=1).value is not None
    with pytest.raises(OutOfMemoryError, match="(?s)--fetch-experts-from 9.*never, or 1"):
        chosen(2, held, fetch_experts_from=9)
    with pytest.raises(OutOfMemoryError, match="these experts take 6.0 GiB"):
        chosen(2, held, tp=2)


def test_one_way_for_all_steps_where_results_may_not_depend_on_the_batch() -> None:
    held = matrices([0, 1])
    decided = chosen(1, held, batch_invariant=True)
    assert decided.value is not None and decided.value.fetch is None
    assert any("--batch-invariant needs one way" in note for note in decided.notes)
    with pytest.raises(OptionError, match="may depend on how many tokens"):
        chosen(1, held, batch_invariant=True, fetch_experts_from=5)
    always = chosen(1, held, batch_invariant=True, fetch_experts_from=1).value
    assert always is not None and always.fetch is not None


def test_what_cannot_be_fetched_is_said() -> None:
    decided = chosen(1, matrices([0, 1]), CPU, fetch_experts_from=5)
    assert decided.value is not None and decided.value.fetch is None
    assert any("changes nothing here" in note for note in decided.notes)
    with pytest.raises(OptionError, match="no experts are on the host"):
        chosen(0, matrices([0, 1]), fetch_experts_from="never")
    for wrong in ("0", "-1", "sometimes"):
        with pytest.raises(OptionError, match="Say how many tokens"):
            Options(fetch_experts_from=wrong)


@pytest.mark.parametrize(
    ("times", "tokens"),
    [
        ([], None),
        ([(1, 1, 9), (4, 4, 9)], None),
        ([(1, 9, 3), (4, 9, 3)], 1),
        ([(1, 1, 9), (4, 4, 9), (16, 16, 10)], 10),  # of 12 tokens between, 5 / 11 are slower
        ([(1, 9, 1), (4, 4, 9), (16, 16, 4)], 8),  # the first time was disturbed
        ([(1, 1, 9), (4, 9, 9)], 4),
    ],
)
def test_the_fewest_tokens_are_those_where_fetching_takes_no_longer(
    times: list[tuple[int, float, float]], tokens: int | None
) -> None:
    assert fetch_from(tuple(Timed(*each) for each in times)) == tokens


def test_the_plan_says_what_is_fetched_and_what_was_measured() -> None:
    use = chosen(2, matrices([0, 1, 2])).value
    assert use is not None and use.fetch is not None
    plan = resolve("demo")

    def row(fetch: FetchUse) -> str:
        shown = evolve(plan, host_experts=evolve(use, fetch=fetch))
        assert plan_from_json(plan_to_json(shown)) == shown
        return next(text for name, text, _ in host_rows(shown) if name == "fetched")

    assert "of many tokens" in row(use.fetch) and "measured at the start" in row(use.fetch)
    assert "in all steps" in row(evolve(use.fetch, from_tokens=1))
    assert "of 48 tokens and more" in row(evolve(use.fetch, from_tokens=48))
    slow, fast = Timed(1, 1.0, 9.0), Timed(5, 5.0, 5.0)
    never = evolve(use.fetch, measured=(slow,), copy_rate=2.0**30)
    assert row(never) == "in no steps: the host is faster, as measured, with 1.0 GiB/s"
    found = row(evolve(never, measured=(slow, fast)))
    assert "in steps of 5 tokens and more" in found and "1.0 GiB/s" in found
