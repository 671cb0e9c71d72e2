"""What every kernel provider must do: compute what `inferno.nn.ops` says, for any shape, or refuse with a sentence.

Suffixes: T tokens, D any width, H heads, C head dim, I inner width, V vocabulary, O rows of a matrix, K its columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from inferno import lazy
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import GROUPED, LINEAR, OPS, DType, KernelNeed, KernelProvider
from inferno.nn import Dense, Weight, ops

DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7, "float16": 2**-10}
"""Largest difference, in units of the result's largest number: the last bit of each type, and the order of float32 sums."""


class KernelProviderTests:
    """Set `provider` to the name it is registered by. Override `weights` for what its `linear` multiplies beside dense
    matrices."""

    provider: ClassVar[str]
    device: ClassVar[str] = "cpu"
    linear_tolerance: ClassVar[float] = 1.0
    """Of packed layouts, in units of TOLERANCE of bfloat16: how exact their activations are."""

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls) -> KernelProvider:
        catalog: Catalog = load_catalog()
        [found] = [o.item for o in catalog.of("inferno_kernels") if o.item.name == cls.provider]
        assert isinstance(found, KernelProvider)
        return found

    def weights(self, rows: int, columns: int, dtype: torch.dtype) -> Iterable[Weight]:
        """Weights of that shape, in every layout it takes: what `linear` is tried with."""
        yield Dense(random(rows, columns).to(dtype))

    def test_it_provides_known_ops_and_refuses_with_sentences(self, item: KernelProvider) -> None:
        assert set(item.ops) <= {LINEAR, GROUPED, *OPS}
        for op in (LINEAR, GROUPED, *OPS):
            for device in ("cpu", "cuda", "somewhere"):
                reason = item.refuses(KernelNeed(op=op, dtype="float32", device=device, layout="unheard_of"))
                assert reason is None or len(reason.split()) > 2

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("rows, width", [(1, 16), (3, 64), (17, 96), (1, 1000), (40, 33)])
    def test_norms(self, item: KernelProvider, dtype: DType, rows: int, width: int) -> None:
        x_TD, delta_TD, weight_D = (random(*s).to(getattr(torch, dtype)) for s in ((rows, width), (rows, width), (width,)))
        if norm := self._op(item, "rms_norm", dtype):
            _close(norm(x_TD, weight_D, 1e-6), ops.rms_norm(x_TD, weight_D, 1e-6), dtype)
            wide_TD = random(rows, 3 * width).to(x_TD.dtype)[:, width : 2 * width]
            _close(norm(wide_TD, weight_D, 1e-6), ops.rms_norm(wide_TD, weight_D, 1e-6), dtype)
        if add_norm := self._op(item, "add_rms_norm", dtype):
            before, args = x_TD.clone(), (x_TD, delta_TD, weight_D, 1e-5)
            for ours, theirs in zip(add_norm(*args), ops.add_rms_norm(*args), strict=True):
                _close(ours, theirs, dtype)
            assert torch.equal(x_TD, before), "inputs are not changed"

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(1, 4, 64, 32), (5, 3, 128, 64), (7, 2, 80, 16), (20, 1, 96, 48)])
    def test_norm_rope(self, item: KernelProvider, dtype: DType, shape: tuple[int, int, int, int]) -> None:
        tokens, heads, head_dim, pairs = shape
        if (run := self._op(item, "norm_rope", dtype)) is None:
            return
        qkv = random(tokens, (heads + 2) * head_dim).to(getattr(torch, dtype))
        x_THC = qkv[:, head_dim : (heads + 1) * head_dim].view(tokens, heads, head_dim)
        angle_TE = random(tokens, pairs) * 3
        for weight_C in (None, random(head_dim).to(x_THC.dtype)):
            args = (x_THC, weight_C, 1e-6, angle_TE.cos(), angle_TE.sin())
            _close(run(*args), ops.norm_rope(*args), dtype, ulps=2)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("tokens, width", [(1, 16), (3, 100), (33, 48)])
    def test_silu_mul_gather_argmax(self, item: KernelProvider, dtype: DType, tokens: int, width: int) -> None:
        both = (4 * random(tokens, 2 * width)).to(getattr(torch, dtype))
        gate_TI, up_TI = both[:, :width], both[:, width:]
        if run := self._op(item, "silu_mul", dtype):
            _close(run(gate_TI, up_TI), ops.silu_mul(gate_TI, up_TI), dtype, ulps=2)
        if run := self._op(item, "gather", dtype):
            ids_T = torch.randint(tokens, (9,))
            for ids in (ids_T, ids_T[::2], ids_T[:1]):
                assert torch.equal(run(both, ids), ops.gather(both, ids))
        if run := self._op(item, "argmax", dtype):
            both[:, width // 2] = both[:, -1] = both.max()  # equals: the lowest id wins
            assert torch.equal(run(both), ops.argmax(both))
            both[0] = float("nan")
            assert run(both).tolist()[0] == -1

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("rows, columns", [(1, 256), (17, 256), (100, 512), (48, 768)])
    def test_linear(self, item: KernelProvider, dtype: DType, rows: int, columns: int) -> None:
        for weight in self.weights(rows, columns, getattr(torch, dtype)):
            if self._refused(item, LINEAR, dtype, weight.layout):
                continue
            dense_OK = weight.rows(torch.arange(rows))
            ours = item.ops[LINEAR](weight)
            assert ours is not None and tuple(ours.shape) == (rows, columns)
            _close(ours.rows(torch.arange(rows)), dense_OK, dtype, ulps=0)
            for tokens in (1, 2, 7, 33):
                x_TK = random(tokens, columns).to(dense_OK.dtype)
                wanted = (x_TK.double() @ dense_OK.double().T).to(x_TK.dtype)
                exact = weight.layout in DTYPES
                _close(ours.matmul(x_TK), wanted, dtype if exact else "bfloat16", ulps=1 if exact else self.linear_tolerance)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_linears_that_share_their_input_become_one(self, item: KernelProvider, dtype: DType) -> None:
        parts = [[*self.weights(rows, 256, getattr(torch, dtype))] for rows in (48, 16, 33)]
        x_TK = random(5, 256).to(getattr(torch, dtype))
        for stacked in zip(*parts, strict=True):
            if self._refused(item, LINEAR, dtype, stacked[0].layout):
                continue
            each = [item.ops[LINEAR](weight) for weight in stacked]
            whole = item.ops[LINEAR](*stacked)
            if whole is not None:
                assert tuple(whole.shape) == (97, 256)
                assert torch.equal(whole.matmul(x_TK), torch.cat([w.matmul(x_TK) for w in each], -1))

    def _refused(self, item: KernelProvider, op: str, dtype: DType, layout: str = "") -> bool:
        return item.refuses(KernelNeed(op=op, dtype=dtype, device=self.device, layout=layout)) is not None

    def _op(self, item: KernelProvider, op: str, dtype: DType):  # type: ignore[no-untyped-def]  # each op its own signature
        if op not in item.ops or self._refused(item, op, dtype):
            return None
        return lazy.resolved(item.ops[op])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _close(ours: Tensor, theirs: Tensor, dtype: str, ulps: float = 1) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    scale = max(float(theirs.float().abs().max()), 1e-6)
    difference = float((ours.float() - theirs.float()).abs().max()) / scale
    assert difference <= ulps * TOLERANCE[dtype], f"{difference:.2g} of the largest number"
