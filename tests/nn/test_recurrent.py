"""The rules of recurrent layers: equal to transformers', however a prompt is cut and whatever is
computed beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_next import modeling_qwen3_next

from inferno.nn import causal_conv, gated_delta, recurrence, ssd
from inferno.nn.batch import Batch

LENGTHS = (1, 1, 70, 1, 2, 200, 1)
"""Of the sequences of a mixed step: single tokens, less than a chunk, several chunks."""
H, J, K, V = 4, 2, 8, 6
P, G, N = 6, 2, 8
D, TAPS = 10, 4

Rule = Callable[[Sequence[Tensor], Tensor, Sequence[int]], tuple[Tensor, Tensor]]


def batch_of(starts: Sequence[int], follows: Sequence[bool] = ()) -> Batch:
    """What a rule reads of a step."""
    return cast(Batch, SimpleNamespace(query_starts=starts, follows=follows))


def _conv(inputs: Sequence[Tensor], state: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(D, TAPS, generator=generator), torch.randn(D, generator=generator)
    device = state.device
    return causal_conv(inputs[0], weight.to(device), bias.to(device), state, starts)


def _delta(inputs: Sequence[Tensor], state: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = inputs
    return gated_delta(q, k, v, g, beta, state, batch_of(starts))


def _ssd(inputs: Sequence[Tensor], state: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    x, dt, b, c = inputs
    rates = -torch.arange(1.0, H + 1).to(state.device)
    return ssd(x, dt, rates, b, c, state, batch_of(starts))


RULES: dict[str, tuple[Rule, tuple[int, ...]]] = {
    "conv": (_conv, (TAPS - 1, D)),
    "delta": (_delta, (H, K, V)),
    "ssd": (_ssd, (H, P, N)),
}
every_rule = pytest.mark.parametrize("name", RULES)


def draw(name: str, tokens: int, sequences: int) -> tuple[list[Tensor], Tensor]:
    """Inputs of so many tokens, and states that are not zero."""
    torch.manual_seed(0)
    state = torch.randn(sequences, *RULES[name][1])
    if name == "conv":
        return [torch.randn(tokens, D)], state
    if name == "delta":
        heads = (torch.randn(tokens, n, w) for n, w in ((J, K), (J, K), (H, V)))
        # The decays of some heads are strong: within a chunk they multiply to nothing.
        decay = -torch.rand(tokens, H) * torch.tensor([0.01, 0.5, 5.0, 20.0])
        return [*heads, decay, torch.rand(tokens, H)], state
    dt = torch.rand(tokens, H) * torch.tensor([0.01, 0.5, 2.0, 5.0])
    return [torch.randn(tokens, H, P), dt, *torch.randn(2, tokens, G, N).unbind()], state


def starts_of(lengths: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def alone(
    name: str, inputs: Sequence[Tensor], state: Tensor, cuts: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """One sequence, given piece by piece."""
    outputs = []
    for start, stop in itertools.pairwise((0, *cuts, len(inputs[0]))):
        y, state = RULES[name][0]([x[start:stop] for x in inputs], state, [0, stop - start])
        outputs.append(y)
    return torch.cat(outputs), state


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@every_rule
def test_neighbours_change_nothing(name: str) -> None:
    starts = starts_of(LENGTHS)
    inputs, state = draw(name, starts[-1], len(LENGTHS))
    together = RULES[name][0](inputs, state, starts)
    each = [
        alone(name, [x[i:j] for x in inputs], state[s : s + 1], ())
        for s, (i, j) in enumerate(itertools.pairwise(starts))
    ]
    assert_close(together, [torch.cat(parts) for parts in zip(*each, strict=True)])


@every_rule
@pytest.mark.parametrize("cuts", [(16, 32, 48), (1,), (64, 65, 128), tuple(range(1, 150))])
def test_cutting_a_prompt_changes_nothing(name: str, cuts: tuple[int, ...]) -> None:
    inputs, state = draw(name, 150, 1)
    assert_close(alone(name, inputs, state, cuts), alone(name, inputs, state, ()))


@pytest.mark.parametrize("name", ["delta", "ssd"])
def test_spans_of_a_long_sequence_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, state = draw(name, 300, 1)
    whole = alone(name, inputs, state, ())
    monkeypatch.setattr(recurrence, "SPAN", 128)
    assert_close(alone(name, inputs, state, ()), whole)


def test_cutting_a_convolution_changes_no_bit() -> None:
    inputs, state = draw("conv", 40, 1)
    for one, other in zip(
        alone("conv", inputs, state, range(1, 40)), alone("conv", inputs, state, ()), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("length", [1, 3, 64, 65, 200])
def test_the_delta_rule_is_transformers(length: int) -> None:
    inputs, state = draw("delta", length, 1)
    options: Any = {
        "initial_state": state,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    y, new = modeling_qwen3_next.torch_recurrent_gated_delta_rule(
        *(x[None] for x in inputs), **options
    )
    assert_close(alone("delta", inputs, state, ()), (y[0], new))


@pytest.mark.parametrize("length", [1, 3, 64, 65, 200])
def test_the_state_space_recurrence_is_transformers(length: int) -> None:
    (x, dt, b, c), state = draw("ssd", length, 1)
    rates = -torch.arange(1.0, H + 1)
    y, new = modeling_mamba2.mamba2_chunk_scan(
        *(t[None] for t in (x, dt)),
        rates,
        *(t[None] for t in (b, c)),
        chunk_size=32,
        initial_states=state,
        return_final_states=True,
    )
    assert_close(alone("ssd", (x, dt, b, c), state, ()), (y[0], new))


def test_the_convolution_is_torchs() -> None:
    inputs, state = draw("conv", 20, 1)
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(D, TAPS, generator=generator), torch.randn(D, generator=generator)
    whole = torch.cat([state[0], inputs[0]])
    y = torch.nn.functional.conv1d(whole.T[None], weight[:, None], bias, groups=D)[0].T
    assert_close(alone("conv", inputs, state, ()), (y, whole[None, -TAPS + 1 :]))


class Counted(TorchDispatchMode):
    """Counts operators."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@every_rule
def test_a_step_of_single_tokens_has_no_loop_and_waits_for_nothing(name: str) -> None:
    """As many operators for few sequences as for many; and it runs on meta, where there are no
    numbers to wait for."""
    counts = []
    for sequences in (2, 9):
        inputs, state = draw(name, sequences, sequences)
        with Counted() as counted:  # type: ignore[no-untyped-call]
            RULES[name][0]([x.to("meta") for x in inputs], state.to("meta"), range(sequences + 1))
        counts.append(counted.count)
    assert counts[0] == counts[1]


@every_rule
def test_drafts_go_on_with_the_states_before_them(name: str) -> None:
    """In a step of chunks, single tokens and drafts, each is what it is in a step of its own, to
    the bit; and the state after each draft is known."""
    known, drafts = (70, 1, 5, 1, 1), (0, 3, 1, 0, 4)
    lengths = [n for k, d in zip(known, drafts, strict=True) for n in (k, *[1] * d)]
    follows = [f for d in drafts for f in (False, *[True] * d)]
    starts = starts_of(lengths)
    inputs, state = draw(name, starts[-1], len(known))
    outputs, after = recurrence.in_turn(RULES[name][0], inputs, state, batch_of(starts, follows))
    sequence = 0
    for row, (k, d) in enumerate(zip(known, drafts, strict=True)):
        first = starts[sequence]
        for count in range(1 + d):
            parts = [x[first : first + k + count] for x in inputs]
            cuts = range(k, k + count)
            expected, left = alone(name, parts, state[row : row + 1], cuts)
            assert torch.equal(outputs[first : first + k + count], expected)
            assert torch.equal(after[sequence + count], left[0])
        sequence += 1 + d
