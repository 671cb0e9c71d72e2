"""Experts that a device fetches from the host's memory.

Suffixes: T tokens, D hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferno.device.offload import Offloaded
from inferno.device.side_queue import NoQueue
from inferno.errors import UnsupportedError
from inferno.nn import Dense, Experts, Finalize, IntGroups, Weight
from inferno.nn import fetching as module_of_kinds
from inferno.nn.fetched_experts import FetchedExperts
from inferno.nn.fetching import BUFFERS, MOST_KINDS, Buffer, Fetching

HIDDEN, INNER, EXPERTS = 32, 24, 5
Product = Callable[[Tensor, Tensor], Tensor]


def dense(rows: int, columns: int) -> Weight:
    return Dense(torch.randn(rows, columns) / 5)


def in_groups(rows: int, columns: int) -> Weight:
    """Integers of 8 bits in groups of 8 columns, with zero points."""
    grid = rows, columns // 8
    scales_OG, zeros_OG = torch.rand(grid) / 300, torch.full(grid, 128.0)
    data_OB = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    return IntGroups(data_OB, scales_OG.half(), zeros_OG.half(), 8, torch.float32)


def mixture(
    on_host: int,
    to: Finalize | None = None,
    matrix: Callable[[int, int], Weight] = dense,
    weighs_inputs: bool = False,
) -> Experts:
    """With the same weights for any number on the host."""
    torch.manual_seed(0)
    experts = Experts(EXPERTS, HIDDEN, INNER, bias=True, weighs_inputs=weighs_inputs)
    experts.keep_on_host(on_host)
    for path, linear in experts.named_modules():
        if path.count(".") == 1:
            made: Any = linear
            made.weight = matrix(*made.weight.shape)
            made.bias = nn.Parameter(torch.randn(made.weight.shape[0]))
    experts.requires_grad_(False).finalize(to or Finalize())
    return experts


def given(num_tokens: int, among: range = range(EXPERTS)) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    picked = [torch.tensor(among)[torch.randperm(len(among))[:2]] for _ in range(num_tokens)]
    return torch.randn(num_tokens, HIDDEN), torch.stack(picked), torch.rand(num_tokens, 2)


def fetched_of(experts: Experts) -> FetchedExperts:
    assert experts.host is not None and experts.host.fetched is not None
    return experts.host.fetched


@pytest.mark.parametrize("matrix", [dense, in_groups])
@pytest.mark.parametrize("weighs_inputs", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 3, 80])
@pytest.mark.parametrize("on_host", [1, 4, EXPERTS])
def test_fetched_experts_compute_what_all_on_the_device_do(
    on_host: int, num_tokens: int, weighs_inputs: bool, matrix: Callable[[int, int], Weight]
) -> None:
    to = Finalize(fetching=Fetching("cpu"), fetch_from=1)
    whole = mixture(0, matrix=matrix, weighs_inputs=weighs_inputs)
    parts = mixture(on_host, to, matrix, weighs_inputs)
    assert parts.host is not None and parts.host.group is None
    for num in (num_tokens, 2):  # the second step finds another one's experts in the buffers
        step = given(num)
        torch.testing.assert_close(parts(*step), whole(*step), rtol=1e-4, atol=1e-5)


def test_steps_of_many_tokens_are_fetched_and_others_are_computed_on_the_host() -> None:
    to = Finalize(fetching=Fetching("cpu"), fetch_from=3)
    whole, parts = mixture(0), mixture(2, to)
    assert parts.host is not None
    parts.host.copied = True
    fetched = fetched_of(parts)
    for num_tokens, copies in ((2, 0), (3, 2), (1, 2), (4, 4)):
        step = given(num_tokens, range(2))
        torch.testing.assert_close(parts(*step), whole(*step), rtol=1e-4, atol=1e-5)
        assert fetched.fetched == copies


def test_only_experts_that_a_token_picks_are_copied() -> None:
    to = Finalize(fetching=Fetching("cpu"), fetch_from=1)
    whole, parts = mixture(0), mixture(4, to)
    for among, copies in ((range(1, 3), 2), (range(3, 5), 1)):
        before = fetched_of(parts).fetched
        step = given(5, among)
        torch.testing.assert_close(parts(*step), whole(*step), rtol=1e-4, atol=1e-5)
        assert fetched_of(parts).fetched - before == copies
    assert parts.host is not None
    parts = mixture(2, to)
    assert parts.host is not None
    assert parts.host.start(*given(3, range(2, EXPERTS)))() is None, "no token has any"


def test_layers_share_two_buffers_and_the_checkpoint_is_not_written_to() -> None:
    fetching = Fetching("cpu")
    to = Finalize(fetching=fetching, fetch_from=1)
    layers = [mixture(on_host, to) for on_host in (1, EXPERTS, 3)]
    one = sum(tensor.nbytes for tensor in fetched_of(layers[0]).each[0].tensors)
    assert fetching.nbytes == BUFFERS * one
    step, whole = given(9), mixture(0)
    for layer in layers * 2:
        torch.testing.assert_close(layer(*step), whole(*step), rtol=1e-4, atol=1e-5)


def test_experts_of_other_forms_have_other_buffers() -> None:
    fetching = Fetching("cpu")
    to = Finalize(fetching=fetching, fetch_from=1)
    for matrix in (dense, in_groups, dense):
        layer, whole = mixture(3, to, matrix), mixture(0, matrix=matrix)
        torch.testing.assert_close(layer(*given(9)), whole(*given(9)), rtol=1e-4, atol=1e-5)
    turns = itertools.count()

    def mixed(rows: int, columns: int) -> Weight:
        return (dense, in_groups)[next(turns) // 3 % 2](rows, columns)

    layer, turns = mixture(EXPERTS, to, mixed), itertools.count()
    whole = mixture(0, matrix=mixed)
    torch.testing.assert_close(layer(*given(9)), whole(*given(9)), rtol=1e-4, atol=1e-5)


def test_a_model_that_sleeps_gives_its_buffers_back() -> None:
    fetching = Fetching("cpu")
    to, whole = Finalize(fetching=fetching, fetch_from=1), mixture(0)
    layers = [mixture(3, to), mixture(1, to, in_groups)]
    buffers = [each for kind in fetching._kinds.values() for each in kind.all]
    storages = [tensor.untyped_storage() for each in buffers for tensor in each.tensors]
    away = Offloaded.of(layers, "cpu")
    assert storages and not any(storage.nbytes() for storage in storages)
    away.restore()
    torch.testing.assert_close(layers[0](*given(9)), whole(*given(9)), rtol=1e-4, atol=1e-5)


def test_too_many_forms_are_refused() -> None:
    counts = itertools.count(1)

    def each(rows: int, columns: int) -> Weight:
        made = dense(rows, columns)
        made.scale = float(next(counts))  # type: ignore[assignment]
        return made

    to = Finalize(fetching=Fetching("cpu"), fetch_from=1)
    with pytest.raises(UnsupportedError, match="--fetch-experts-from never"):
        for _ in range(MOST_KINDS):
            mixture(2, to, each)


def test_the_host_computes_experts_of_too_many_forms_unless_they_must_be_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module_of_kinds, "MOST_KINDS", 1)
    fetching = Fetching("cpu")
    to, whole = Finalize(fetching=fetching), mixture(0)
    layers = [mixture(2, to, matrix) for matrix in (dense, in_groups, dense)]
    assert not fetching.fits
    hosts = [layer.host for layer in layers if layer.host is not None]
    assert [host.fetched is not None for host in hosts] == [True, False, False]
    torch.testing.assert_close(layers[2](*given(9)), whole(*given(9)), rtol=1e-4, atol=1e-5)


class LateQueue(NoQueue):
    """A device that copies as late as it may: when the main queue waits. A mark is the number of
    products before it."""

    def __init__(self) -> None:
        self.events = list[str]()
        self.under_way = dict[int, Sequence[tuple[Tensor, Tensor]]]()
        self.products = self.most = 0
        self.reads = dict[int, int]()
        """The last product that read a tensor."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], behind: int) -> int:
        number = len(self.events)
        self.events.append("copy")
        for target, _ in pairs:
            assert behind >= self.reads.get(id(target), 0), "a product may still read it"
            assert all(target is not t for each in self.under_way.values() for t, _ in each)
        self.under_way[number] = pairs
        self.most = max(self.most, len(self.under_way))
        return number

    def mark(self) -> int:
        return self.products

    def wait(self, mark: int) -> None:
        for number in [each for each in self.under_way if each <= mark]:
            super().copy(self.under_way.pop(number), None)

    def noted(self, buffer: Buffer, product: Product) -> Product:
        def multiplied(x_ND: Tensor, starts_E1: Tensor) -> Tensor:
            self.products += 1
            self.events.append("product")
            self.reads |= {id(tensor): self.products for tensor in buffer.tensors}
            return product(x_ND, starts_E1)

        return multiplied


def test_the_next_expert_is_copied_while_one_is_multiplied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetching, queue = Fetching("cpu"), LateQueue()
    fetching.queue = queue
    to = Finalize(fetching=fetching, fetch_from=1)
    whole, layers = mixture(0), [mixture(4, to), mixture(1, to)]
    for kind in fetching._kinds.values():
        for buffer in kind.all:
            buffer.product = queue.noted(buffer, buffer.product)
    for layer in layers * 2:
        step = given(9)
        torch.testing.assert_close(layer(*step), whole(*step), rtol=1e-4, atol=1e-5)
    one = ["copy", "copy", "product", "copy", "product", "copy", "product", "product"]
    assert queue.events == (one + ["copy", "product"]) * 2
    assert queue.most == BUFFERS


def test_the_device_is_at_work_before_the_host_waits_for_what_is_needed() -> None:
    parts = mixture(2, Finalize(fetching=Fetching("cpu"), fetch_from=1))
    events, fetching = list[str](), fetched_of(parts).fetching

    class Noted(NoQueue):
        def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], behind: Any) -> None:
            events.append("copied")
            super().copy(pairs, behind)

    fetching.queue = Noted()
    assert parts.near is not None
    parts.near.register_forward_hook(lambda *given: events.append("device computed"))
    parts(*given(3))
    assert events == ["device computed", "copied", "copied"]
