"""Tensors give their memory back, and have it again with their values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from inferno.device.offload import Offloaded, empty_caches
from inferno.ops.reference import TORCH
from inferno.weights.resident import Loaded, Resident


class Model(nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(30, 20))
        self.register_buffer("table", torch.arange(12))
        self.view = self.weight.detach()[5:, ::2]
        self.inner = nn.Linear(4, 4)
        self.tied: torch.Tensor = self.inner.weight


def test_tensors_views_and_attributes_come_back() -> None:
    model = Model()
    before = [tensor.clone() for tensor in (model.weight, model.table, model.view, model.tied)]
    total = sum(t.untyped_storage().nbytes() for t in (model.weight, model.table, model.tied))
    away = Offloaded.of([model, model.inner], "cpu")
    assert model.weight.untyped_storage().nbytes() == model.view.untyped_storage().nbytes() == 0
    assert away.nbytes == total + model.inner.bias.numel() * 4
    away.restore()
    for tensor, expected in zip(
        (model.weight, model.table, model.view, model.tied), before, strict=True
    ):
        assert torch.equal(tensor, expected)
    assert model.tied is model.inner.weight
    model.weight.data[5, 0] = 7
    assert model.view[0, 0] == 7, "it is still a view"


def test_weights_that_are_dropped_leave_no_memory_to_allocators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the device, and page-locked: experts that are fetched are most of a host's memory."""
    emptied = list[str]()
    device = SimpleNamespace(empty_cache=lambda: emptied.append("device"))
    monkeypatch.setattr(torch, "get_device_module", lambda kind: device)
    host = SimpleNamespace(empty_host_cache=lambda: emptied.append("host"))
    monkeypatch.setattr(torch, "accelerator", host)
    empty_caches("cpu")
    assert not emptied
    opened: Any = SimpleNamespace(plan=SimpleNamespace(device=SimpleNamespace(kind="cuda")))
    resident = Resident(opened, Loaded(nn.Linear(2, 2), TORCH, None, None))
    resident.release(2)
    assert emptied == ["device", "host"] and resident.loaded is None
