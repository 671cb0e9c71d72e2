"""Tests of every quantization scheme: it computes with the values its tensors represent, and
refuses tensors it cannot read.

Suffixes: O rows, I columns, T tokens, N rows of all experts, E1 experts + 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.catalog import Catalog
from inferno.contracts import QuantScheme, StoredMatrix, TensorInfo
from inferno.errors import InfernoError
from inferno.nn import Weight
from inferno.plan.schemes import choose_schemes
from inferno.testing.adapted_matrix import AdaptedMatrixTests
from inferno.testing.alike import alike
from inferno.testing.cut_matrix import CutMatrixTests
from inferno.testing.damage import changed, damages
from inferno.testing.draws import random
from inferno.testing.kernels import assert_close
from inferno.testing.tiny import run_python

Parts = Mapping[str, Tensor]

DTYPES = ("float32", "bfloat16")
_SUMS = {"float32": 5.0, "bfloat16": 1.0}
"""Tolerance of matrix products in `assert_close`'s units: float32 sums in any order."""
_RELATIVE = 2e-3
"""Largest error of many products, relative to their norm."""


class QuantSchemeTests(AdaptedMatrixTests, CutMatrixTests):
    """Set `scheme` to its registered name, `quant_config` if it needs one, and implement `parts`
    and `dense`. The latter is the reference: take it from the format's authors, or compute it value
    by value, not with the plugin's code. Set `shapes` if not every shape can be stored, or to test
    others.
    """

    scheme: ClassVar[str]
    quant_config: ClassVar[Mapping[str, Any]] = {}
    path: ClassVar[str] = "model.layers.0.mlp.up_proj"
    """Of the module that stores the parts."""
    shapes: ClassVar[Sequence[tuple[int, int]]] = ((64, 256), (7, 512))
    """Rows and columns of the matrices to test."""
    lost: ClassVar[float] = 0.15
    """Largest relative RMS error from packing a normally distributed matrix: 4 bits have about half
    of it."""

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        """A random, finite matrix of that shape as checkpoints store it, under its tensors' names
        within the module."""
        raise NotImplementedError

    def dense(self, parts: Parts) -> Tensor:
        """The values that these parts represent, (O, I), float32."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> QuantScheme:
        return catalog.named(QuantScheme, cls.scheme).item

    # --- ownership and size -----------------------------------------------------------------------

    def test_the_catalog_finds_it_by_its_parts_and_by_nothing_else(
        self, item: QuantScheme, catalog: Catalog
    ) -> None:
        stored = self._stored(self._parts(0))
        assert catalog.scheme_of(stored).item.name == self.scheme
        one = next(iter(stored.parts.values()))
        plain = {"weight": TensorInfo("float32", (8, 8), 256)}
        unknown: dict[str, Mapping[str, TensorInfo]] = {
            "unknown parts would be ignored": {**stored.parts, "unheard_of": one},
            "it claims what it does not know": {"unheard_of": one},
            "it claims nothing": {},
        }
        if set(stored.parts) != {"weight"}:
            unknown["it claims plain matrices"] = plain
        for wrong, parts in unknown.items():
            reason = item.refuses(attrs.evolve(stored, parts=parts))
            assert reason is not None, wrong
            assert len(reason.split()) > 2 and not reason.endswith("."), "a sentence without a stop"

    @alike
    def test_plans_need_no_torch(self) -> None:
        """Checked for all classes of a test file in one process."""
        module = vars(sys.modules[type(self).__module__]).values()
        classes = [c for c in module if isinstance(c, type) and issubclass(c, QuantSchemeTests)]
        _assert_plans_need_no_torch(
            frozenset(c for c in {type(self), *classes} if hasattr(c, "scheme"))
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_it_holds_what_it_says(self, item: QuantScheme, dtype: str) -> None:
        """The size in memory and the layout are as planned, and every tensor moves with the
        device."""
        for rows, columns in self.shapes:
            parts = self.parts(rows, columns, 0)
            weight, planned = self._load(item, parts, dtype), item.holds(self._stored(parts), dtype)
            assert weight.shape == (rows, columns) and planned.shape in ((rows, columns), None)
            assert weight.layout == (planned.layout or dtype)
            size = sum(tensor.nbytes for tensor in (*weight.buffers(), *weight.parameters()))
            assert planned.nbytes == size
            assert not [
                name for name, value in vars(weight).items() if isinstance(value, Tensor)
            ], "register it as a buffer"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_plans_name_what_grows(self, item: QuantScheme, catalog: Catalog, dtype: str) -> None:
        for rows, columns in self.shapes:
            stored = self._stored(self.parts(rows, columns, 0))
            nbytes = sum(info.nbytes for info in stored.parts.values())
            tensors = {f"{self.path}.{part}": info for part, info in stored.parts.items()}
            config = {"quantization_config": stored.quant_config}
            headers: Any = SimpleNamespace(tensors=tensors, config=config)
            model: Any = SimpleNamespace(vocab_size=0)
            planned = choose_schemes(catalog, headers, model, dtype, {}).value.loaded({}, dtype)
            [note, *_] = planned.notes or ("",)
            assert bool(note) == (item.holds(stored, dtype).nbytes > 1.3 * nbytes), note
            assert not note or self.scheme in note and "as much memory: " in note

    # --- values -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_are_those_of_the_matrix_it_stands_for(
        self, item: QuantScheme, dtype: str
    ) -> None:
        for parts, dense_OI in self._matrices(dtype):
            weight = self._load(item, parts, dtype)
            every_O = torch.arange(len(dense_OI))
            for ids_T in (every_O, every_O[[-1, 0, 0, 1]], every_O[:0]):
                assert_close(weight.rows(ids_T), dense_OI[ids_T], dtype, ulps=0.5)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_products_are_those_of_the_matrix_it_stands_for(
        self, item: QuantScheme, dtype: str
    ) -> None:
        """As loaded, and packed for torch's fastest product."""
        for parts, dense_OI in self._matrices(dtype):
            weight = self._load(item, parts, dtype)
            rows, columns = dense_OI.shape
            bias_O = random(rows).to(dense_OI.dtype)
            for fastest in (False, True):
                if fastest:
                    weight = weight.for_matmul()
                for tokens in (0, 1, 2, 7, 33):
                    x_TI = random(tokens, 2 * columns).to(dense_OI.dtype)[:, columns:]
                    wanted_TO = x_TI.double() @ dense_OI.double().T
                    y_TO = weight.matmul(x_TI)
                    _assert_product(y_TO, wanted_TO, dtype)
                    error = float((y_TO.double() - wanted_TO).norm())
                    assert tokens < 33 or error <= _RELATIVE * wanted_TO.norm()
                    _assert_product(weight.matmul(x_TI, bias_O), wanted_TO + bias_O.double(), dtype)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_products_for_heads_are_float32(self, item: QuantScheme, dtype: str) -> None:
        for parts, dense_OI in self._matrices(dtype):
            weight, x_TI = self._load(item, parts, dtype), random(5, dense_OI.shape[1])
            wanted_TO = (x_TI := x_TI.to(dense_OI.dtype)).double() @ dense_OI.double().T
            for bias_O in (torch.zeros(len(dense_OI)), random(len(dense_OI))):
                y_TO = weight.matmul_float32(x_TI, bias_O := bias_O.to(x_TI.dtype))
                assert y_TO.dtype == torch.float32
                _assert_product(y_TO.to(x_TI.dtype), wanted_TO + bias_O.double(), dtype)
                assert dtype == "float32" or (y_TO != y_TO.to(x_TI.dtype).float()).any()

    @alike
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("counts", [(2, 0, 1), (30, 0, 28), (0, 0, 0)])
    def test_experts_are_multiplied_group_by_group(
        self, item: QuantScheme, dtype: str, counts: tuple[int, ...]
    ) -> None:
        """Stacked matrices of one shape, each multiplied by its own rows: few, many, none; what is
        in rows after the last one's changes nothing."""
        for rows, columns in self.shapes:
            parts = self.parts(rows * len(counts), columns, 0)
            weight = self._load(item, parts, dtype)
            dense_OI = self.dense(parts).to(getattr(torch, dtype))
            x_NI, bias_O = (
                random(sum(counts), columns).to(dense_OI.dtype),
                random(len(dense_OI)).to(dense_OI.dtype),
            )
            starts_E1 = torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)
            each = zip(
                torch.split(x_NI.double(), list(counts)),
                torch.split(dense_OI.double(), rows),
                strict=True,
            )
            wanted_NO = torch.cat([x @ matrix.T for x, matrix in each])
            bias_NO = (
                bias_O.double()
                .view(len(counts), rows)
                .repeat_interleave(torch.tensor(counts), dim=0)
            )
            x_NI = torch.cat([x_NI, torch.full((2, columns), torch.nan, dtype=x_NI.dtype)])
            _assert_product(weight.grouped(x_NI, starts_E1)[:-2], wanted_NO, dtype)
            y_NO = weight.grouped(x_NI, starts_E1, bias_O)[:-2]
            _assert_product(y_NO, wanted_NO + bias_NO, dtype)

    def test_parts_may_be_views_and_are_not_changed(self, item: QuantScheme) -> None:
        """Parts are mapped from a file, and architectures may slice them from larger tensors."""
        parts = self._parts(0)
        views = {
            name: torch.stack([part, part], 1)[:, 0] if part.ndim else part
            for name, part in parts.items()
        }
        before = {name: part.clone() for name, part in parts.items()}
        ours, theirs = (self._load(item, given, "float32") for given in (views, parts))
        rows_O, x_TI = torch.arange(ours.shape[0]), random(3, ours.shape[1])
        assert torch.equal(ours.rows(rows_O), theirs.rows(rows_O))
        _assert_product(ours.matmul(x_TI), theirs.matmul(x_TI).double(), "float32")
        assert all(_same_bytes(part, before[name]) for name, part in parts.items())

    # --- operations on weights --------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_stack_has_the_rows_of_all(self, item: QuantScheme, dtype: str) -> None:
        (rows, columns), *_ = self.shapes
        several = [
            self.parts(count, columns, seed) for seed, count in enumerate((rows, 2 * rows, rows))
        ]
        first, *others = (self._load(item, parts, dtype) for parts in several)
        stacked = first.concatenate(others)
        if stacked is None:
            pytest.skip("it does not concatenate")
        assert stacked.shape == (4 * rows, columns) and stacked.layout == first.layout
        each = torch.cat(
            [weight.rows(torch.arange(weight.shape[0])) for weight in (first, *others)]
        )
        assert torch.equal(stacked.rows(torch.arange(4 * rows)), each)
        x_TI = random(5, columns).to(each.dtype)
        _assert_product(stacked.matmul(x_TI), x_TI.double() @ each.double().T, dtype)

    def test_others_do_not_stack_with_it(self, item: QuantScheme) -> None:
        parts = self._parts(0)
        weight = self._load(item, parts, "float32")
        other = Weight()
        other.shape, other.layout = weight.shape, weight.layout
        assert weight.concatenate([other]) is None, "it cannot join another scheme's weights"
        assert weight.concatenate([self._load(item, parts, "bfloat16")]) is None, (
            "the dtype of its rows would be ambiguous"
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_packing_keeps_the_numbers(self, item: QuantScheme, dtype: str) -> None:
        if item.pack is None:
            pytest.skip("it does not pack")
        for rows, columns in self.shapes:
            weight_OI = random(rows, columns).to(getattr(torch, dtype))
            before_OI = weight_OI.clone()
            packed = item.pack(weight_OI)
            assert packed.shape == (rows, columns) and packed.layout == item.layout
            rows_OI = packed.rows(torch.arange(rows))
            assert rows_OI.dtype == weight_OI.dtype and torch.equal(weight_OI, before_OI)
            assert (rows_OI.float() - weight_OI.float()).square().mean().sqrt() <= self.lost
            x_TI = random(3, columns).to(weight_OI.dtype)
            _assert_product(packed.matmul(x_TI), x_TI.double() @ rows_OI.double().T, dtype)

    def test_a_matrix_that_cannot_be_packed_is_refused(self, item: QuantScheme) -> None:
        if item.pack is None:
            pytest.skip("it does not pack")
        for rows, columns in ((2, 1), (1, 33), (3, 250)):
            try:
                assert item.pack(random(rows, columns)).shape == (rows, columns)
            except InfernoError as error:
                assert error.cause and error.remedy

    # --- damage -----------------------------------------------------------------------------------

    def test_damaged_parts_are_refused_or_harmless(self, item: QuantScheme) -> None:
        """Damage is refused by `refuses` or by an error with a remedy; what loads must be a matrix,
        of any shape: the loader compares shapes later."""
        parts = self._parts(0)
        for name, part in parts.items():
            for what, damaged in damages(part):
                self._try(item, {**parts, name: damaged}, self.quant_config, f"{name} {what}")
            self._try(
                item,
                {n: p for n, p in parts.items() if n != name},
                self.quant_config,
                f"{name} missing",
            )

    @alike
    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def test_any_config_is_read_or_refused_with_a_sentence(
        self, item: QuantScheme, data: st.DataObject
    ) -> None:
        """Values of the config changed, removed, exchanged and added, at any depth: a sentence, or
        a matrix."""
        config = data.draw(changed(self.quant_config))
        self._try(item, self._parts(0), config, json.dumps(config))

    def _try(
        self, item: QuantScheme, parts: Parts, quant_config: Mapping[str, Any], what: str
    ) -> None:
        stored = self._stored(parts, quant_config)
        if set(parts) == {"weight"} and parts["weight"].ndim != 2:
            # this part has the matrix's shape, which the loader has already checked
            return
        if (reason := item.refuses(stored)) is not None:
            assert len(reason.split()) > 2, what
            return
        try:
            assert item.holds(stored, "float32").nbytes >= 0, what  # the plan calls it first
            weight = item.load(stored, parts, dtype="float32")
        except InfernoError as error:
            assert error.cause and error.remedy, what
            return
        rows, columns = weight.shape
        assert tuple(weight.rows(torch.arange(rows)).shape) == (rows, columns), what
        assert tuple(weight.matmul(torch.zeros(1, columns)).shape) == (1, rows), what

    def _parts(self, seed: int) -> dict[str, Tensor]:
        return self.parts(*self.shapes[0], seed)

    def _matrices(self, dtype: str) -> Iterator[tuple[Parts, Tensor]]:
        """Parts, and their values in the compute type."""
        for seed, (rows, columns) in enumerate(self.shapes):
            parts = self.parts(rows, columns, seed)
            dense_OI = self.dense(parts)
            assert tuple(dense_OI.shape) == (rows, columns) and dense_OI.isfinite().all(), (
                "`parts` and `dense` promise it"
            )
            yield parts, dense_OI.to(getattr(torch, dtype))

    def _load(self, item: QuantScheme, parts: Parts, dtype: str) -> Weight:
        weight = item.load(self._stored(parts), parts, dtype=dtype)
        assert isinstance(weight, Weight)
        return weight

    def _stored(self, parts: Parts, quant_config: Mapping[str, Any] | None = None) -> StoredMatrix:
        config = self.quant_config if quant_config is None else quant_config
        return stored_matrix(parts, config, self.path)


def stored_matrix(
    parts: Parts, quant_config: Mapping[str, Any], path: str = QuantSchemeTests.path
) -> StoredMatrix:
    """Return what a scheme is told about a matrix with these parts."""
    infos = {
        n: TensorInfo(str(p.dtype).removeprefix("torch."), tuple(p.shape), p.nbytes)
        for n, p in parts.items()
    }
    return StoredMatrix(path=path, parts=infos, quant_config=quant_config)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _assert_product(ours: Tensor, wanted: Tensor, dtype: str) -> None:
    assert_close(ours, wanted.to(getattr(torch, dtype)), dtype, ulps=_SUMS[dtype])


@cache
def _assert_plans_need_no_torch(classes: frozenset[type[QuantSchemeTests]]) -> None:
    cases = [
        (
            item.scheme,
            item.path,
            {n: attrs.astuple(i) for n, i in item()._stored(item()._parts(0)).parts.items()},
            item.quant_config,
        )
        for item in classes
    ]
    code = (
        "import json, sys; from inferno.catalog import load_catalog\n"
        "from inferno.contracts import QuantScheme, StoredMatrix, TensorInfo\n"
        "catalog = load_catalog()\n"
        "for scheme, path, infos, config in json.loads(sys.argv[1]):\n"
        "    parts = {name: TensorInfo(d, tuple(shape), nbytes) "
        "for name, (d, shape, nbytes) in infos.items()}\n"
        "    stored = StoredMatrix(path=path, parts=parts, quant_config=config)\n"
        "    item = catalog.named(QuantScheme, scheme).item\n"
        "    assert item.refuses(stored) is None, scheme\n"
        "    assert item.holds(stored, 'bfloat16').nbytes > 0, scheme\n"
        "    if 'torch' in sys.modules: sys.exit(f'{scheme}: torch is imported')\n"
    )
    done = run_python(code, json.dumps(cases))
    assert done.returncode == 0, done.stderr
