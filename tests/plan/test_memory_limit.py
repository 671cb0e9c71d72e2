"""How much memory an engine may use."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.contracts import Device
from inferno.errors import OptionError, OutOfMemoryError
from inferno.plan import Options
from inferno.plan.memory import memory_limit

GIB = 1 << 30
CPU = Device("cpu", total=8 * GIB, free=2 * GIB)
GPU = Device("cuda", total=8 * GIB, free=4 * GIB)


@pytest.mark.parametrize(
    ("device", "options", "limit"),
    [
        (CPU, {"memory": "25%"}, 2 * GIB),
        (CPU, {"memory": "6GiB"}, 6 * GIB),
        (GPU, {"memory": "25%"}, 2 * GIB),
        (GPU, {"gpu_memory_utilization": 0.5}, 4 * GIB),
    ],
)
def test_a_share_is_of_all_memory_and_a_size_is_itself(
    device: Device, options: dict[str, Any], limit: int
) -> None:
    for elsewhere in (False, True):
        decided = memory_limit(Options(**options), device, elsewhere=elsewhere)
        assert (decided.value, decided.notes) == (limit, ())


def test_only_a_plan_for_another_machine_may_have_more_than_there_is() -> None:
    options = Options(memory="16GiB")
    with pytest.raises(OutOfMemoryError, match="exceeds"):
        memory_limit(options, CPU)
    decided = memory_limit(options, CPU, elsewhere=True)
    assert decided.value == 16 * GIB and "another machine" in decided.notes[0]


def test_a_gpu_has_what_is_free_and_a_cpu_what_can_be_freed() -> None:
    with pytest.raises(OutOfMemoryError, match="are free"):
        memory_limit(Options(memory="6GiB"), GPU)
    assert memory_limit(Options(memory="6GiB"), GPU, elsewhere=True).value == 6 * GIB


def test_a_gpus_share_is_no_cpus() -> None:
    with pytest.raises(OptionError, match="does not apply"):
        memory_limit(Options(gpu_memory_utilization=0.5), CPU)
    with pytest.raises(OptionError, match="at most 1"):
        memory_limit(Options(gpu_memory_utilization=1.5), GPU)
