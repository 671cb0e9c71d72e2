"""A step's arrays arrive on the device as they were written, whatever was there before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve
from tests.device.late_copies import LateCopies

from inferno.core.runner import Tables
from inferno.core.runner.inputs import Inputs, InputSpec
from inferno.core.types import BlockUpdate, NewSequence, Slice, Step
from inferno.nn.batch import Batch
from inferno.plan import Options, resolve
from inferno.request.requests import Request

SPEC = InputSpec(4, 64, 2, trial_slot=3)
DECODE = Step((Slice(0, 5, 1, True), Slice(2, 2, 1, True)))
MIXED = Step((Slice(2, 0, 3, False), Slice(0, 5, 1, True)))


@pytest.fixture
def tables() -> Tables:
    tables = Tables(3, 64, 4, SPEC.num_groups)
    new = [
        NewSequence(0, Request(id="a", token_ids=(7,)), (9, 8, 7, 6, 5, 4)),
        NewSequence(2, Request(id="b", token_ids=(7,)), (1, 2, 3)),
    ]
    blocks = [(0, 0, 0, 5), (0, 0, 1, 6), (0, 2, 0, 7), (1, 0, 0, 1), (1, 0, 1, 2), (1, 2, 0, 3)]
    tables.update(Step((), tuple(new), tuple(BlockUpdate(*update) for update in blocks)))
    return tables


def values(batch: Batch) -> list[object]:
    groups = [batch.of_group(0), batch.of_group(1)]
    return [
        batch.token_ids_T.tolist(),
        batch.positions_T.tolist(),
        batch.query_starts_S1.tolist(),
        batch.context_lens_S.tolist(),
        None if batch.state_slots_S is None else batch.state_slots_S.tolist(),
        [group.slots_T.tolist() for group in groups],
        [group.blocks_SM.tolist() for group in groups],
    ]


@pytest.mark.parametrize("copied", [False, True])
@torch.inference_mode()
def test_a_step_is_a_batch_of_tensors(tables: Tables, copied: bool) -> None:
    arrays = tables.lay_out(MIXED)
    inputs = evolve(SPEC, copied=copied).inputs_of(arrays)
    batch = inputs.batch(arrays)
    assert values(batch) == [
        [1, 2, 3, 4],
        [0, 1, 2, 5],
        [0, 3, 4],
        [3, 6],
        [2, 0],
        [[28, 29, 30, 25], [12, 13, 14, 9]],
        [[[7, 0], [5, 6]], [[3, 0], [1, 2]]],
    ]
    assert (batch.query_starts, batch.context_lens, batch.captured) == ([0, 3, 4], [3, 6], False)
    assert inputs.last_L.tolist() == [3]
    assert batch.token_ids_T.dtype == batch.blocks_SM.dtype == torch.int64
    assert batch.query_starts_S1.dtype == batch.context_lens_S.dtype == torch.int32


@pytest.mark.parametrize("copied", [False, True])
@torch.inference_mode()
def test_what_a_step_leaves_is_padding_rows_at_the_same_addresses(
    tables: Tables, copied: bool
) -> None:
    inputs = Inputs(evolve(SPEC, copied=copied), 4, 4, 3, 4)
    batch = inputs.to_capture()
    assert batch.captured and list(batch.context_lens) == [12] * 4
    inputs.clear()
    padding = values(batch)
    assert padding == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 1, 2, 3, 4],
        [0, 0, 0, 0],
        [3, 3, 3, 3],
        [[-1] * 4] * 2,
        [[[0] * 3] * 4] * 2,
    ]
    for _ in range(2):
        inputs.write(tables.lay_out(DECODE))
        *fields, blocks = values(batch)
        assert fields == [
            [4, 3, 0, 0],
            [5, 2, 0, 0],
            [0, 1, 2, 3, 4],
            [6, 3, 0, 0],
            [0, 2, 3, 3],
            [[25, 30, -1, -1], [9, 14, -1, -1]],
        ]
        assert np.array(blocks)[:, :2, :2].tolist() == [[[5, 6], [7, 0]], [[1, 2], [3, 0]]]
        inputs.write(tables.lay_out(evolve(DECODE, slices=DECODE.slices[::-1])))
        assert batch.context_lens_S.tolist() == [3, 6, 0, 0]
    inputs.clear()
    assert values(batch) == padding


@torch.inference_mode()
def test_a_device_is_sent_one_buffer(tables: Tables) -> None:
    inputs = Inputs(evolve(SPEC, copied=True), 4, 4, 3, 4)
    before = [t.data_ptr() for t in inputs._tensors.values()]
    host = {array.ctypes.data for array in inputs._arrays.values()}
    assert not host & set(before), "the twin is another buffer"
    storages = {t.untyped_storage().data_ptr() for t in inputs._tensors.values()}
    assert len(storages) == 1
    inputs.write(tables.lay_out(DECODE))
    assert [t.data_ptr() for t in inputs._tensors.values()] == before


@torch.inference_mode()
def test_a_step_is_written_while_the_one_before_it_waits_to_be_copied(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = LateCopies(monkeypatch)
    inputs = Inputs(evolve(SPEC, copied=True), 4, 4, 3, 4)
    batch = inputs.to_capture()
    inputs.clear()
    steps = [DECODE, evolve(DECODE, slices=DECODE.slices[::-1]), DECODE]
    for step in steps[:2]:
        inputs.write(tables.lay_out(step))
    before = device.sent
    device.run(before - 1)
    assert batch.positions_T.tolist() == [5, 2, 0, 0], "the first, whole"
    inputs.write(tables.lay_out(steps[2]))
    device.run(before)
    assert batch.positions_T.tolist() == [2, 5, 0, 0]
    device.run(before + 1)
    assert batch.positions_T.tolist() == [5, 2, 0, 0]


@torch.inference_mode()
def test_tokens_that_only_the_device_knows_are_looked_up_there(tables: Tables) -> None:
    last_tokens_R = torch.tensor([50, 51, 52])
    spec = evolve(SPEC, copied=True, last_tokens_R=last_tokens_R)
    inputs = Inputs(spec, 4, 4, 3, 4)
    inputs.clear()
    drawn = tables.lay_out(DECODE)
    owners = tables.append_unknown(drawn)
    following = Step((Slice(0, 6, 1, True), Slice(2, 3, 1, True)))
    inputs.write(tables.lay_out(following))
    assert inputs.to_capture().token_ids_T.tolist() == [50, 52, 0, 0]
    new = NewSequence(2, Request(id="c", token_ids=(7,)), (3, 3, 3, 3))
    tables.update(Step((), (new,)))
    tables.learn(drawn, owners, [60, 62])
    inputs.write(tables.lay_out(following))
    assert inputs.to_capture().token_ids_T.tolist() == [60, 3, 0, 0], "row 2 has another owner"


def test_groups_with_states_have_no_block_tables() -> None:
    plan = resolve("demo", Options(device="cpu"))
    state = evolve(plan.groups[0], kind="state")
    with_states = evolve(plan, groups=(*plan.groups, state))
    assert InputSpec.of_plan(with_states).num_groups == len(plan.groups) == 1
