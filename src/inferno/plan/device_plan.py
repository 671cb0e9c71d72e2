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
    numbers, own = plan.ranks.devices, plan_of_stage(plan, plan.ranks.stage_of(rank))
    return on_device(own, numbers[rank % len(numbers)]) if numbers else own


def on_device(value: T, number: int) -> T:
    """Return a plan, or a part of it, for the device with this number. What is for the CPU stays
    there."""
    changed: Any = value
    if isinstance(value, Device):
        changed = value if value.kind == "cpu" else attrs.evolve(value, index=number)
    elif attrs.has(type(changed)):
        fields = [each for each in attrs.fields(type(changed)) if each.init]
        own = {each.name: getattr(value, each.name) for each in fields}
        new = {name: on_device(each, number) for name, each in own.items()}
        if any(new[name] is not own[name] for name in own):
            changed = attrs.evolve(changed, **new)
    elif isinstance(value, tuple):
        each_changed = tuple(on_device(each, number) for each in value)
        if any(one is not other for one, other in zip(value, each_changed, strict=True)):
            changed = each_changed
    elif isinstance(value, Mapping):
        items = {key: on_device(each, number) for key, each in value.items()}
        if any(items[key] is not value[key] for key in items):
            changed = items
    result: T = changed
    return result
