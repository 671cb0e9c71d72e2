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
from inferno.plan import HostExpertsUse, Machine, Options, resolve
from inferno.plan.adapter_use import AdapterRoom
from inferno.plan.backends import choose_capture
from inferno.plan.decided import Decided
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
) -> Decided[HostExpertsUse | None]:
    options = Options(experts_on_host=count)
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
        Decided(()), (), Device("cuda"), max_tokens=8, max_blocks=8, hosted=True
    )
    assert decided.value is None and "the host computes experts" in decided.notes[0]
    captured = choose_capture(Decided(()), (), Device("cuda"), max_tokens=8, max_blocks=8)
    assert captured.value is not None


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(OptionError, match="experts_on_host is -1"):
        Options(experts_on_host=-1)
