"""Tests of every kernel provider: it computes what `inferno.ops` defines, for any shape, or
refuses with a sentence.

Suffixes: T tokens, D any width, H heads, C head dim, I inner width, V vocabulary, O rows of a
matrix, K its columns. Of routed experts: E experts, X experts of a token, N pairs of a token and
one of its experts (T · X).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from mmap import mmap
from typing import ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from inferno.contracts import (
    COLLECTIVES,
    COMPUTE_DTYPES,
    GROUPED,
    LINEAR,
    QUANTIZE,
    Device,
    DType,
    IntLayout,
    KernelNeed,
    KernelProvider,
)
from inferno.contracts.layouts import GROUPS
from inferno.nn import Dense, IntGroups, Weight
from inferno.ops import reference as ops
from inferno.testing.adapter_ops import AdapterOpTests
from inferno.testing.devices import STRANGE, UNKNOWN
from inferno.testing.draws import random

TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-10}
"""Largest difference, relative to the result's largest value: the last bit of each type, and the
order of float32 sums."""

PUBLIC = tuple(
    IntLayout(bits=bits, group=group, symmetric=symmetric)
    for bits in (4, 8)
    for group in GROUPS
    for symmetric in (False, True)
)
"""The public layouts for which kernels are written."""


def random_ints(layout: IntLayout, rows: int, columns: int, dtype: torch.dtype) -> IntGroups:
    """Return a random matrix in a public layout."""
    generator = torch.Generator().manual_seed(rows + columns)
    shape, grid = (rows, columns * layout.bits // 8), (rows, columns // layout.group)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    scales = torch.rand(grid, generator=generator).half() / 16
    zeros = torch.randint(0, 1 << layout.bits, grid, generator=generator).half()
    return IntGroups(data, scales, None if layout.symmetric else zeros, layout.bits, dtype)


class KernelProviderTests(AdapterOpTests):
    """Set `provider` to its registered name. Override `weights` if its `linear` takes other layouts
    than dense matrices and the public ones."""

    linear_tolerance: ClassVar[float] = 1.0
    """Tolerance of packed layouts, whose activations may be rounded, beyond the rounding of the
    result: in units of bfloat16's TOLERANCE, relative to a product of random vectors."""

    def weights(self, rows: int, columns: int, dtype: torch.dtype) -> Iterable[Weight]:
        """Weights of that shape in every layout, to test `linear` with."""
        yield Dense(random(rows, columns).to(dtype))
        for layout in PUBLIC:
            yield random_ints(layout, rows, columns, dtype)

    def test_it_provides_known_ops_and_refuses_with_sentences(self, item: KernelProvider) -> None:
        every = (LINEAR, GROUPED, QUANTIZE, COLLECTIVES, *(f.name for f in attrs.fields(ops.Ops)))
        assert set(item.ops) <= {*every}
        for op in every:
            for device in (Device("cpu"), *STRANGE):
                reason = item.refuses(
                    KernelNeed(op=op, dtype="float32", device=device, layout="unheard_of")
                )
                assert reason is None or len(reason.split()) > 2
                assert device is not UNKNOWN or reason is not None, (
                    f"it takes a device of a kind it cannot know, {device.kind!r}"
                )

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    def test_quantizing_to_public_layouts(self, item: KernelProvider, dtype: DType) -> None:
        """Values come back within half a step, and better where columns count more."""
        if QUANTIZE not in item.ops:
            pytest.skip("it does not quantize")
        quantize = item.ops[QUANTIZE]
        for group in GROUPS:
            layout = IntLayout(bits=4, group=group).name
            need = KernelNeed(op=QUANTIZE, layout=layout, dtype=dtype, device=Device("cpu"))
            if item.refuses(need) is not None:
                continue
            weight_OI = random(5, 3 * group).to(getattr(torch, dtype))
            weight_OI[1, :group], weight_OI[2, :group], weight_OI[3] = 0, -0.5, weight_OI[3].abs()
            importance_I = torch.rand(3 * group) ** 4 + 1e-3
            errors = []
            for given in (None, importance_I):
                data_OB, scales_OG, zeros_OG = quantize(layout, weight_OI, given)
                weight = IntGroups(data_OB, scales_OG, zeros_OG, 4, torch.float32)
                assert weight.layout == layout and weight.shape == weight_OI.shape
                off_OI = weight.rows(torch.arange(5)) - weight_OI.float()
                assert off_OI.norm() <= 0.15 * weight_OI.float().norm()
                assert off_OI[1, :group].abs().max() == 0
                assert off_OI[2, :group].abs().max() <= 1e-3
                errors.append(float((importance_I * off_OI.square()).sum()))
            assert errors[1] < errors[0]

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize("rows, width", [(1, 16), (3, 64), (17, 96), (1, 1000), (40, 33)])
    def test_norms(self, item: KernelProvider, dtype: DType, rows: int, width: int) -> None:
        x_TD, delta_TD, weight_D = (
            random(*s).to(getattr(torch, dtype)) for s in ((rows, width), (rows, width), (width,))
        )
        wide_TD = random(rows, 3 * width).to(x_TD.dtype)[:, width : 2 * width]
        if norm := self._op(item, "rms_norm", dtype):
            for x in (x_TD, wide_TD):
                assert_close(norm(x, weight_D, 1e-6), ops.rms_norm(x, weight_D, 1e-6), dtype)
        if run := self._op(item, "add_layer_norm", dtype):
            for residual, bias in ((delta_TD, None), (None, x_TD[0])):
                inputs = (wide_TD, residual, weight_D, bias, 1e-5)
                assert_close(run(*inputs), ops.add_layer_norm(*inputs), dtype, ulps=2)
        if add_norm := self._op(item, "add_rms_norm", dtype):
            before, args = x_TD.clone(), (x_TD, delta_TD, weight_D, 1e-5)
            for ours, theirs in zip(add_norm(*args), ops.add_rms_norm(*args), strict=True):
                assert_close(ours, theirs, dtype)
            assert torch.equal(x_TD, before), "inputs are not changed"

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize(
        "shape", [(1, 4, 64, 32), (5, 3, 128, 64), (7, 2, 80, 16), (20, 1, 96, 48)]
    )
    def test_norm_rope(
        self, item: KernelProvider, dtype: DType, shape: tuple[int, int, int, int]
    ) -> None:
        tokens, heads, head_dim, pairs = shape
        if (run := self._op(item, "norm_rope", dtype)) is None:
            return
        qkv = random(tokens, (heads + 2) * head_dim).to(getattr(torch, dtype))
        x_THC = qkv[:, head_dim : (heads + 1) * head_dim].view(tokens, heads, head_dim)
        angle_TE = random(tokens, pairs) * 3
        for weight_C in (None, random(head_dim).to(x_THC.dtype)):
            args = (x_THC, weight_C, 1e-6, angle_TE.cos(), angle_TE.sin())
            assert_close(run(*args), ops.norm_rope(*args), dtype, ulps=2)

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize("tokens, width", [(1, 16), (3, 100), (33, 48)])
    def test_silu_mul_gelu_gather_argmax(
        self, item: KernelProvider, dtype: DType, tokens: int, width: int
    ) -> None:
        both = (4 * random(tokens, 2 * width)).to(getattr(torch, dtype))
        gate_TI, up_TI = both[:, :width], both[:, width:]
        if run := self._op(item, "silu_mul", dtype):
            assert_close(run(gate_TI, up_TI), ops.silu_mul(gate_TI, up_TI), dtype, ulps=2)
        if run := self._op(item, "gelu", dtype):
            assert_close(run(both.clone()[:, :width]), ops.gelu(gate_TI.clone()), dtype, ulps=2)
        if run := self._op(item, "gather", dtype):
            ids_T = torch.randint(tokens, (9,))
            for ids in (ids_T, ids_T[::2], ids_T[:1]):
                for table in (both, gate_TI):
                    assert torch.equal(run(table, ids), ops.gather(table, ids))
        if run := self._op(item, "argmax", dtype):
            both[:, width // 2] = both[:, -1] = both.max()  # a tie: the lowest id wins
            assert torch.equal(run(both), ops.argmax(both))
            both[0] = float("nan")
            both[-1, 0] = float("nan")  # beside numbers
            assert run(both).tolist()[0] == run(both).tolist()[-1] == -1

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize("rows, columns", [(1, 256), (17, 256), (100, 512), (48, 768)])
    def test_linear(self, item: KernelProvider, dtype: DType, rows: int, columns: int) -> None:
        for weight in self.weights(rows, columns, getattr(torch, dtype)):
            if self._refused(item, LINEAR, dtype, weight.layout):
                continue
            dense_OK = weight.rows(torch.arange(rows))
            ours = self._bound(item, LINEAR)(weight)
            assert ours is not None and tuple(ours.shape) == (rows, columns)
            assert_close(ours.rows(torch.arange(rows)), dense_OK, dtype, ulps=0)
            for tokens in (1, 2, 7, 33):
                x_TK = random(tokens, columns).to(dense_OK.dtype)
                exact_TO = x_TK.double() @ dense_OK.double().T
                if weight.layout in COMPUTE_DTYPES:
                    assert_close(ours.matmul(x_TK), exact_TO.to(x_TK.dtype), dtype)
                    continue
                size_TO = x_TK.double().norm(dim=1)[:, None] * dense_OK.double().norm(dim=1)
                rounding_TO = exact_TO.abs() * torch.finfo(x_TK.dtype).eps / 2
                lost_TO = (ours.matmul(x_TK).double() - exact_TO).abs() - rounding_TO
                units = float((lost_TO / size_TO).max()) * columns**0.5 / TOLERANCE["bfloat16"]
                assert units <= self.linear_tolerance, f"{weight.layout}: off by {units:.2g} units"

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize("scale", [1, 30])
    def test_heads_multiply_into_float32(
        self, item: KernelProvider, dtype: DType, scale: int
    ) -> None:
        """Logits up to 10 000: rounded only here, they are those of `matmul`."""
        for weight in self.weights(100, 512, getattr(torch, dtype)):
            if self._refused(item, LINEAR, dtype, weight.layout):
                continue
            ours = self._bound(item, LINEAR)(weight)
            dense_OK = weight.rows(torch.arange(100))
            bias_O = (10 * random(100)).to(dense_OK.dtype)
            for tokens in (1, 5, 33):
                x_TK = (scale * random(tokens, 512)).to(dense_OK.dtype)
                for bias in (None, bias_O):
                    y_TO = ours.matmul_float32(x_TK, bias)
                    assert y_TO.dtype == torch.float32
                    assert_close(y_TO.to(dense_OK.dtype), ours.matmul(x_TK, bias), dtype)
                    assert dtype == "float32" or (y_TO != y_TO.to(dense_OK.dtype).float()).any()
                if weight.layout in COMPUTE_DTYPES:
                    size_TO = x_TK.double().abs() @ dense_OK.double().abs().T
                    lost_TO = (
                        ours.matmul_float32(x_TK) - x_TK.double() @ dense_OK.double().T
                    ).abs()
                    assert (lost_TO <= 1e-6 * size_TO).all()

    def test_packed_weights_are_the_same_after_a_file(self, item: KernelProvider) -> None:
        if item.packing is None:
            return
        assert item.packing.version() == item.packing.version(), "it names the layouts"
        for weight in self.weights(48, 256, torch.bfloat16):
            if self._refused(item, LINEAR, "bfloat16", weight.layout):
                continue
            ours = self._bound(item, LINEAR)(weight)
            if (saved := item.packing.save(ours)) is None:
                continue
            about, data = json.loads(json.dumps(saved[0])), b"".join(map(bytes, saved[1]))
            pages = mmap(-1, len(data))  # aligned as a part of a file is
            pages[:] = data
            again, x_TK = item.packing.load(about, memoryview(pages)), random(5, 256).bfloat16()
            assert torch.equal(again.matmul(x_TK), ours.matmul(x_TK))
            assert torch.equal(again.rows(torch.arange(48)), ours.rows(torch.arange(48)))
            with pytest.raises(ValueError):
                item.packing.load(about, memoryview(pages)[:-64])

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    def test_linears_that_share_their_input_become_one(
        self, item: KernelProvider, dtype: DType
    ) -> None:
        parts = [[*self.weights(rows, 256, getattr(torch, dtype))] for rows in (48, 16, 33)]
        x_TK = random(5, 256).to(getattr(torch, dtype))
        for stacked in zip(*parts, strict=True):
            if self._refused(item, LINEAR, dtype, stacked[0].layout):
                continue
            each = [self._bound(item, LINEAR)(weight) for weight in stacked]
            whole = self._bound(item, LINEAR)(*stacked)
            if whole is not None:
                assert tuple(whole.shape) == (97, 256)
                assert torch.equal(
                    whole.matmul(x_TK), torch.cat([w.matmul(x_TK) for w in each], -1)
                )

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize("counts", [[1], [0, 2, 0, 1], [3, 17, 0, 9, 40], [0, 0]])
    def test_grouped(self, item: KernelProvider, dtype: DType, counts: list[int]) -> None:
        """Each matrix is multiplied by its own rows, also in a view; what is in rows after the last
        one's changes nothing."""
        rows, columns, count = 48, 256, len(counts)
        starts_E1 = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        for weight in self.weights(rows * count, columns, getattr(torch, dtype)):
            if self._refused(item, GROUPED, dtype, weight.layout):
                continue
            dense_OK = weight.rows(torch.arange(rows * count))
            ours = self._bound(item, GROUPED)(weight)
            assert ours is not None and tuple(ours.shape) == (rows * count, columns)
            x_NK, bias_O = (
                random(*s).to(dense_OK.dtype) for s in ((sum(counts), 2 * columns), (rows * count,))
            )
            others = torch.full((2, 2 * columns), torch.nan, dtype=x_NK.dtype)
            more_NK, x_NK = torch.cat([x_NK, others])[:, columns:], x_NK[:, columns:]
            parts = zip(
                torch.split(x_NK.double(), counts), dense_OK.double().chunk(count), strict=True
            )
            wanted = torch.cat([part @ matrix.T for part, matrix in parts])
            biases = (
                bias_O.double().view(count, rows).repeat_interleave(torch.tensor(counts), dim=0)
            )
            exact = weight.layout in COMPUTE_DTYPES
            ulps = 1 if exact else self.linear_tolerance
            for x, bias, expected in ((x_NK, None, wanted), (more_NK, bias_O, wanted + biases)):
                y_NO = ours.grouped(x, starts_E1, bias)[: len(x_NK)]
                assert_close(
                    y_NO, expected.to(x_NK.dtype), dtype if exact else "bfloat16", ulps=ulps
                )

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize(
        "tokens, width, count, top",
        [(0, 64, 8, 2), (1, 2048, 128, 8), (5, 33, 7, 7), (90, 100, 60, 4)],
    )
    def test_routing(
        self, item: KernelProvider, dtype: DType, tokens: int, width: int, count: int, top: int
    ) -> None:
        if (run := self._op(item, "route", dtype)) is None:
            return
        x_TD = random(tokens, width + 9).to(getattr(torch, dtype))[:, 4:-5]
        weight_ED, bias_E, correction_E = (
            random(count, width) / width**0.5,
            random(count),
            random(count + 1)[1:],
        )
        for sigmoid, normalize in ((False, False), (False, True), (True, True)):
            few = bias_E - 46  # the sigmoids' sum is about the 1e-20 that is added to it
            cases = (None, None), (bias_E, None), (few, None), (None, correction_E)
            for bias, correction in cases:
                experts_TX, weights_TX = run(
                    x_TD, weight_ED, bias, correction, top, sigmoid, normalize, 1.5
                )
                assert experts_TX.dtype == torch.int64 and experts_TX.shape == (tokens, top)
                assert all(len(set(row)) == top for row in experts_TX.tolist()), "an expert once"
                # Not compared by id: two that differ in the last bit may swap places.
                scores_TE = ops.scores(x_TD, weight_ED, bias, sigmoid)
                choice_TE = scores_TE if correction is None else scores_TE + correction
                torch.testing.assert_close(
                    choice_TE.gather(1, experts_TX),
                    choice_TE.topk(top).values,
                    rtol=1e-5,
                    atol=1e-6,
                )
                wanted = ops.weights(scores_TE, experts_TX, normalize, 1.5)
                torch.testing.assert_close(weights_TX, wanted, rtol=2e-5, atol=1e-6)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("sigmoid", [False, True])
    def test_a_token_that_is_not_finite_is_routed_alone(
        self, item: KernelProvider, sigmoid: bool, bad: float
    ) -> None:
        if (run := self._op(item, "route", "float32")) is None:
            return
        x_TD, weight_ED = random(3, 64), random(20, 64)
        clean = run(x_TD, weight_ED, None, None, 4, sigmoid, True, 1.0)
        x_TD[1, 5] = bad
        experts_TX, weights_TX = run(x_TD, weight_ED, None, None, 4, sigmoid, True, 1.0)
        assert set(experts_TX.flatten().tolist()) <= {*range(20)}
        assert weights_TX[1].isnan().all() or bad in (float("inf"), float("-inf"))
        for whole, now in zip(clean, (experts_TX, weights_TX), strict=True):
            assert torch.equal(whole[::2], now[::2])

    @pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
    @pytest.mark.parametrize(
        "tokens, width, count, top",
        [(0, 16, 4, 2), (1, 100, 128, 8), (50, 7, 7, 3), (3, 2049, 1, 1)],
    )
    def test_rows_by_expert(
        self, item: KernelProvider, dtype: DType, tokens: int, width: int, count: int, top: int
    ) -> None:
        experts_TX = random(tokens, count).topk(top).indices
        if dtype == "float32" and (run := self._op(item, "dispatch", dtype)):
            for picked_TX in (experts_TX, experts_TX[::2], experts_TX.flip(1).T.contiguous().T):
                both = run(picked_TX, count), ops.dispatch(picked_TX, count)
                for ours, theirs in zip(*both, strict=True):
                    assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        if run := self._op(item, "combine", dtype):
            y_ND, weights_TX = (
                random(tokens * top, width + 3).to(getattr(torch, dtype))[:, 2:-1],
                random(tokens, top),
            )
            places_TX = ops.dispatch(experts_TX, count)[2]
            for weights in (weights_TX, weights_TX.T.contiguous().T):
                assert_close(
                    run(y_ND, places_TX, weights), ops.combine(y_ND, places_TX, weights), dtype
                )

    def test_what_it_captures_runs_again(self, item: KernelProvider) -> None:
        """Its ops and torch's in turns, on other values at the same places; captures of one model
        share their memory."""
        norm = self._op(item, "rms_norm", "float32") or ops.rms_norm
        gated = self._op(item, "silu_mul", "float32") or ops.silu_mul

        def compute(x_TD: Tensor) -> Tensor:
            y_TD = norm(x_TD, weight_D, 1e-6)
            return norm(torch.tanh(gated(y_TD, x_TD)) + x_TD, weight_D, 1e-6) * y_TD

        if item.capture is None:
            return
        capture, weight_D, x_TD = item.capture(), random(48), random(3, 48)
        with torch.inference_mode():
            captured, other = (capture(lambda: compute(x_TD)) for _ in range(2))
            for seed in range(3):
                x_TD.copy_(random(3, 48) * (seed + 1))
                other.replay()
                captured.replay()
                assert_close(captured.output, compute(x_TD), "float32")


def assert_close(ours: Tensor, theirs: Tensor, dtype: str, ulps: float = 1) -> None:
    """Assert equal shapes and types, and a difference of at most `ulps` times the TOLERANCE."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if not theirs.numel():
        return
    scale = max(float(theirs.float().abs().max()), 1e-6)
    difference = float((ours.float() - theirs.float()).abs().max()) / scale
    assert difference <= ulps * TOLERANCE[dtype], f"off by {difference:.2g} of the largest value"
