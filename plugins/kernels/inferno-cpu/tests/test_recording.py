"""A recorded list of operators gives the same results in every replay, on any number of threads."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch
from packed_matrices import matrix
from torch import Tensor

from inferno.nn import Dense
from inferno.testing import alike
from inferno_cpu import _native, adapters, elementwise
from inferno_cpu.dense import Panels
from inferno_cpu.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("isa")


@alike
@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_run_sees_what_the_last_operator_wrote(count: int) -> None:
    """A late thread takes tasks of the right operator or none, even if threads outnumber cores."""
    _native.set_threads(count)
    torch.manual_seed(0)
    weight, up = Panels.of(Dense(torch.randn(512, 256))), Panels.of(Dense(torch.randn(256, 256)))
    norm, x_TD = torch.ones(256), torch.randn(16, 256)
    outputs = []
    with _native.Recording() as recording:
        y_TD = x_TD
        for _ in range(6):
            normed = elementwise.rms_norm(y_TD, norm, 1e-6)
            gate_up = weight.matmul(normed)
            hidden = elementwise.silu_mul(gate_up[:, :256], gate_up[:, 256:])
            y_TD = up.matmul(hidden)
            outputs += [normed, gate_up, hidden, y_TD]  # a recording keeps addresses, not tensors
    wanted = [output.clone() for output in outputs]
    for _ in range(300):
        for output in outputs:
            output.fill_(float("nan"))
        recording.replay()
        assert all(torch.equal(output, want) for output, want in zip(outputs, wanted, strict=True))


@pytest.mark.parametrize("rows", [1, 4, 21])
@pytest.mark.parametrize("count", [1, 3])
def test_a_product_that_fetches_for_the_adapters_after_it_changes_no_values(
    count: int, rows: int
) -> None:
    """Whichever slots a replay has: more than are fetched, one, or none."""
    _native.set_threads(count)
    torch.manual_seed(0)
    rank, inputs, outputs, slots = 4, 256, 160, 40
    packed = matrix("q8_0", outputs, inputs, dtype=torch.bfloat16).panels
    x_TI, slots_T = torch.randn(rows, inputs).bfloat16(), torch.arange(rows) % 3
    down_SRI = torch.randn(slots, 2 * rank, inputs).bfloat16()
    ups = [torch.randn(slots, rank, each).bfloat16() for each in (96, 64)]

    def computed() -> Tensor:
        y_TO = packed.matmul(x_TI)
        tensors.extend([y_TO, h_TR := adapters.shrink(x_TI, down_SRI, slots_T)])
        return adapters.expand(y_TO, h_TR, ups, slots_T)

    tensors: list[Tensor] = []
    with _native.Recording() as recording:
        replayed = computed()
    for own_T in (torch.arange(rows) * 2 % slots, torch.full((rows,), 39), torch.full((rows,), -1)):
        slots_T.copy_(own_T)
        expected = computed()
        recording.replay()
        assert torch.equal(replayed, expected)


def test_an_operator_that_fails_ends_the_run() -> None:
    """The error is raised, and the threads can be used again."""
    _native.set_threads(2)
    panels = Panels.of(Dense(torch.randn(64, 32)))
    ids = torch.arange(64)
    with _native.Recording() as recording:
        rows = panels.rows(ids)
    ids[63] = 64
    with pytest.raises(IndexError):
        recording.replay()
    ids[63] = 0
    recording.replay()
    assert torch.equal(rows[63], rows[0])


@alike
def test_other_threads_of_python_run_during_an_op() -> None:
    """Masks are computed beside a step, and a thread tells that the process is alive."""
    panels, x_TI = Panels.of(Dense(torch.randn(1024, 1024))), torch.randn(256, 1024)
    y_TO = torch.empty(256, 1024)
    kind, sizes = DTYPES[torch.float32], (256, 1024, 1024)
    addresses = x_TI.data_ptr(), 1024, panels._address, 0, kind, y_TO.data_ptr()
    turns, ended = 0, False

    def turn() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            time.sleep(0)  # gives the interpreter's lock away

    interval = sys.getswitchinterval()
    other = threading.Thread(target=turn)
    other.start()
    try:
        sys.setswitchinterval(1000)  # no thread is made to give the lock away
        before = turns
        for _ in range(50):
            _native.dense_matmul(kind, kind, *addresses, *sizes)
            if (after := turns) > before:  # the lock was given away by the op alone
                break
    finally:
        sys.setswitchinterval(interval)
        ended = True
        other.join()
    assert after > before


def test_each_thread_records_its_own_ops() -> None:
    """Two models in two threads capture their steps, and compute beside a capture."""
    norm, x_TD = torch.ones(64), torch.randn(3, 64)
    entered, left = threading.Barrier(2), threading.Barrier(2)
    lengths: dict[int, int] = {}

    def record(count: int) -> None:
        with _native.Recording() as recording:
            entered.wait(20)
            for _ in range(count):
                elementwise.rms_norm(x_TD, norm, 1e-6)
            left.wait(20)
        lengths[count] = len(recording)

    threads = [threading.Thread(target=record, args=(count,)) for count in (300, 200)]
    for thread in threads:
        thread.start()
    entered_alone = _native.Recording()
    elementwise.rms_norm(x_TD, norm, 1e-6)  # of a thread that records nothing
    for thread in threads:
        thread.join()
    assert lengths == {300: 300, 200: 200} and len(entered_alone) == 0


def test_threads_compute_together_what_they_compute_alone() -> None:
    _native.set_threads(min(2, torch.get_num_threads()))
    torch.manual_seed(0)
    weight, norm = Panels.of(Dense(torch.randn(256, 256))), torch.ones(256)
    inputs = [torch.randn(tokens, 256) for tokens in (1, 5, 40)]

    def compute(x_TD: torch.Tensor) -> torch.Tensor:
        y_TD = weight.matmul(elementwise.rms_norm(x_TD, norm, 1e-6))
        y_TD[:, 0] = elementwise.argmax(y_TD)
        return y_TD

    wanted, wrong = [compute(x_TD) for x_TD in inputs], list[int]()

    def repeat(i: int) -> None:
        with _native.Recording() as recording:
            normed = elementwise.rms_norm(inputs[i], norm, 1e-6)
            y_TD = weight.matmul(normed)
        for _ in range(100):
            y_TD.fill_(torch.nan)
            recording.replay()
            y_TD[:, 0] = elementwise.argmax(y_TD)
            if not torch.equal(y_TD, wanted[i]) or not torch.equal(compute(inputs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
