"""The plan of each of several processes: all are the same but for their devices and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs

from inferno.contracts import Device
from inferno.plan.pipeline import plan_of_stage
from inferno.plan.plan import Plan

T = TypeVar("T")


def device_numbers(devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the numbers of several processes' devices; none if they compute on the CPU."""
    return () if devices[0].kind == "cpu" else tuple(device.index for device in devices)


def plan_of_rank(plan: Plan, rank: int) -> Plan:
    """Return the plan of a rank by itself: with what the layers of its stage keep
    (`plan_of_stage`), on its device."""
    assert plan.ranks is not None, "a plan with ranks"
    own, number = plan_of_stage(plan, plan.ranks.stage_of(rank)), plan.ranks.device_of(rank)
    return own if number is None else for_device(own, number)


def for_device(value: T, number: int) -> T:
    """Return a plan, or a part of it, for the device of another number. What is for the host stays
    there."""
    changed: Any = value
    if isinstance(value, Device):
        changed = value if value.kind == "cpu" else attrs.evolve(value, index=number)
    elif attrs.has(type(changed)):
        fields = [each for each in attrs.fields(type(changed)) if each.init]
        own = {each.alias: for_device(getattr(value, each.name), number) for each in fields}
        changed = attrs.evolve(changed, **own)
    elif isinstance(value, tuple):
        changed = tuple(for_device(each, number) for each in value)
    elif isinstance(value, Mapping):
        changed = {key: for_device(each, number) for key, each in value.items()}
    result: T = changed
    return result
