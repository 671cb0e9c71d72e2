"""Functions of single elements are the same bits wherever the element is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.nn.in_vectors import InVectors

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "in place": lambda x: x.clone().sigmoid_(),
    "tanh": torch.tanh,
    "exp": torch.exp,
}


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_has_the_same_bits_in_any_row_and_thread(name: str) -> None:
    x_TD = torch.randn(50, 1003, generator=torch.Generator().manual_seed(0))
    wide = torch.cat([x_TD, x_TD], -1)
    with InVectors():  # type: ignore[no-untyped-call]
        whole = FUNCTIONS[name](x_TD)
        rows = torch.cat([FUNCTIONS[name](row) for row in x_TD.split(1)])
        strided = FUNCTIONS[name](wide[:, ::2][:, :5])
    torch.testing.assert_close(whole, FUNCTIONS[name](x_TD))
    assert torch.equal(whole, rows)
    with InVectors():  # type: ignore[no-untyped-call]
        assert torch.equal(strided, FUNCTIONS[name](wide)[:, ::2][:, :5])


def test_without_it_a_sigmoid_depends_on_the_number_of_rows() -> None:
    """Else `InVectors` could be removed."""
    x_T1 = torch.randn(70, 1, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(x_T1.sigmoid(), torch.cat([each.sigmoid() for each in x_T1.split(1)]))
