"""Weights reach a device in pieces, through two buffers that are never overwritten too early."""

from __future__ import annotations

import pytest
import torch
from tests.device.late_copies import LateCopies
from torch import Tensor

from inferno.device import WeightStream, staging

CHUNK = 96
"""Bytes of a buffer."""

STORED = {
    "a matrix": torch.arange(7 * 30).view(7, 30).to(torch.int16),
    "a vector of bfloat16": torch.arange(1000).to(torch.bfloat16),
    "rows as columns": torch.arange(20 * 6).view(6, 20).float().T,
    "every other row": torch.arange(40 * 3).view(40, 3)[::2],
    "rows longer than a buffer": torch.arange(3 * 100).view(100, 3).double().T,
    "one number": torch.tensor(7.5),
    "nothing": torch.empty(0, 4),
    "float8": torch.arange(-100, 100).float().to(torch.float8_e4m3fn).view(20, 10),
}


@pytest.mark.parametrize("late", [False, True])
def test_what_arrives_is_what_was_stored(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = LateCopies(monkeypatch) if late else None
    stream = WeightStream("cpu", CHUNK, copied=True)
    made = {name: stream(stored) for name, stored in STORED.items()}
    if device is not None:
        assert 0 < len(device.queue) <= 2, "the other buffer's copy may still run, none before it"
        device.run(device.sent)
    for name, stored in STORED.items():
        assert made[name].dtype == stored.dtype and made[name].is_contiguous()
        assert torch.equal(made[name].float(), stored.float()), name
        assert made[name].data_ptr() != stored.data_ptr() or not stored.nbytes


def test_no_more_than_two_buffers_are_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    allocate = staging.host_buffer

    def counted(nbytes: int, device: str) -> Tensor:
        made.append(nbytes)
        return allocate(nbytes, device)

    monkeypatch.setattr(staging, "host_buffer", counted)
    stream = WeightStream("cpu", CHUNK, copied=True)
    for stored in STORED.values():
        stream(stored)
    assert made == [CHUNK, CHUNK]


def test_on_the_cpu_nothing_is_copied() -> None:
    stored = torch.arange(4)
    assert WeightStream("cpu")(stored) is stored
