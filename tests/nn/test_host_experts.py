"""Experts that the host computes beside a device.

Suffixes: T tokens, D hidden, K experts of a token.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferno.device import staging
from inferno.nn import Dense, Experts, Finalize
from inferno.nn.moe import MOST_CAPTURED
from inferno.plan.backends import MAX_CAPTURED

HIDDEN, INNER, EXPERTS = 32, 24, 5


def mixture(on_host: int) -> Experts:
    """With the same weights for any number on the host."""
    torch.manual_seed(0)
    experts = Experts(EXPERTS, HIDDEN, INNER, bias=True)
    moved = experts.keep_on_host(on_host)
    for path, linear in experts.named_modules():
        if path.count(".") == 1:
            assert (linear in moved) == (int(path.partition(".")[0]) < on_host)
            made: Any = linear
            made.weight = Dense(torch.randn(made.weight.shape) / 5)
            made.bias = nn.Parameter(torch.randn(made.weight.shape[0]))
    experts.requires_grad_(False).finalize(Finalize())
    return experts


def given(num_tokens: int, among: range = range(EXPERTS)) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    picked = [torch.tensor(among)[torch.randperm(len(among))[:2]] for _ in range(num_tokens)]
    experts_TK = torch.stack(picked) if picked else torch.empty(0, 2, dtype=torch.int64)
    return torch.randn(num_tokens, HIDDEN), experts_TK, torch.rand(num_tokens, 2)


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 80])
@pytest.mark.parametrize("on_host", [1, 4, EXPERTS])
def test_both_groups_add_up_to_all_experts(on_host: int, num_tokens: int, copied: bool) -> None:
    whole, parts = mixture(0), mixture(on_host)
    assert whole.host is None and parts.host is not None
    assert (parts.near is None) == (on_host == EXPERTS)
    parts.host.copied = copied
    step = given(num_tokens)
    torch.testing.assert_close(parts(*step), whole(*step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("among", [range(2), range(2, EXPERTS)])
@pytest.mark.parametrize("copied", [False, True])
def test_tokens_whose_experts_are_all_of_one_group(among: range, copied: bool) -> None:
    whole, parts, step = mixture(0), mixture(2), given(3, among)
    assert parts.host is not None
    parts.host.copied = copied
    torch.testing.assert_close(parts(*step), whole(*step), rtol=1e-4, atol=1e-5)


def test_steps_that_are_captured_have_the_same_rows_whatever_the_values_are() -> None:
    assert MOST_CAPTURED == MAX_CAPTURED
    parts, rows = mixture(2), list[int]()
    assert parts.near is not None
    parts.near.down.register_forward_hook(lambda module, given, y_ND: rows.append(len(y_ND)))
    for num_tokens in (MOST_CAPTURED, MOST_CAPTURED + 1):
        for among in (range(2, EXPERTS), range(1, 3)):
            parts(*given(num_tokens, among))
    assert rows[0] == rows[1] == 2 * MOST_CAPTURED + 1
    assert rows[2] == 2 * (MOST_CAPTURED + 1) + 1 > rows[3]


def test_a_host_without_pairs_sends_nothing_back() -> None:
    parts = mixture(2)
    assert parts.host is not None
    parts.host.copied = True
    assert parts.host.start(*given(3, range(2, EXPERTS)))() is None
    assert parts.host.start(*given(3, range(2)))() is not None


def test_the_device_is_at_work_before_the_host_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it sends is copied behind what it was given before."""
    parts, events = mixture(2), list[str]()
    assert parts.host is not None and parts.near is not None
    parts.host.copied = True

    class Fence:
        def record(self) -> None:
            events.append("sent")

        def synchronize(self) -> None:
            events.append("waited for")

    monkeypatch.setattr(staging, "fence", lambda device: Fence())
    parts.near.register_forward_hook(lambda *given: events.append("device computed"))
    assert parts.host.group is not None
    parts.host.group.register_forward_hook(lambda *given: events.append("host computed"))
    parts(*given(3))
    assert events == ["sent", "device computed", "waited for", "host computed"]
