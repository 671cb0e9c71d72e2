"""Values of a table in groups, the public layouts nf4 and fp4.

Suffixes: O rows, I columns, G groups of columns, T tokens.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno.contracts import TABLES, TableLayout
from inferno.errors import CheckpointError
from inferno.nn import TableGroups, Weight, packed_nibbles


def table_groups(
    rows: int, columns: int, group: int, kind: str = "nf4", seed: int = 0
) -> tuple[TableGroups, torch.Tensor]:
    """A random matrix, and its values."""
    generator = torch.Generator().manual_seed(seed)
    codes_OI = torch.randint(0, 16, (rows, columns), generator=generator)
    scales_OG = torch.randn(rows, columns // group, generator=generator)
    table = torch.tensor(TABLES[kind])
    values_OI = table[codes_OI] * scales_OG.repeat_interleave(group, 1)
    data_OB = packed_nibbles(codes_OI.to(torch.uint8))
    return TableGroups(data_OB, scales_OG, kind, torch.float32), values_OI


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(sorted(TABLES)),
    rows=st.integers(1, 9),
    group=st.sampled_from([2, 32, 64, 128]),
    groups=st.integers(1, 5),
    seed=st.integers(0, 100),
)
def test_values_are_scales_times_entries_of_the_table(
    kind: str, rows: int, group: int, groups: int, seed: int
) -> None:
    weight, values_OI = table_groups(rows, group * groups, group, kind, seed)
    assert torch.equal(weight.rows(torch.arange(rows)), values_OI)
    x_TI = torch.randn(3, group * groups)
    torch.testing.assert_close(weight.matmul(x_TI), x_TI @ values_OI.T)
    layout = TableLayout(table=kind, group=group)
    assert weight.layout == layout.name
    assert layout.nbytes(rows, group * groups) == sum(b.nbytes for b in weight.buffers())


@pytest.mark.parametrize(("group", "size"), [(64, 64), (4096, 128), (96, 32), (6, 6)])
def test_groups_are_split_to_what_kernels_have(group: int, size: int) -> None:
    assert TableLayout.fitting("nf4", group).name == f"nf4_g{size}"


def test_only_the_same_table_and_groups_stack() -> None:
    weight, values_OI = table_groups(4, 128, 64)
    other, its_OI = table_groups(2, 128, 64, seed=1)
    stacked = weight.concatenate([other])
    assert stacked is not None and torch.equal(
        stacked.rows(torch.arange(6)), torch.cat([values_OI, its_OI])
    )
    different: list[Weight] = [
        table_groups(2, 128, 64, "fp4")[0],
        table_groups(2, 128, 32)[0],
        table_groups(2, 64, 64)[0],
    ]
    assert [weight.concatenate([each]) for each in different] == [None, None, None]


def test_a_scale_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="scale"):
        TableGroups(torch.zeros(1, 32).byte(), torch.tensor([[float("inf")]]), "nf4", torch.float32)
