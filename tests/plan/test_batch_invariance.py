"""`--batch-invariant` is planned, or refused by name with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.stores.test_stored_caches import toy_of

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import KernelNeed, KernelProvider
from inferno.errors import UnsupportedError
from inferno.plan import Options, resolve

pytest.importorskip("inferno_cpu._native", reason="needs native kernels")


def _refusal(**options: Any) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        resolve("demo", Options(batch_invariant=True, **options))
    assert "leave --batch-invariant out" in caught.value.remedy
    return caught.value


def test_native_kernels_compute_it_as_they_are() -> None:
    """The plan chooses what it chooses without the option."""
    with_it, without = (resolve("demo", Options(batch_invariant=each)) for each in (True, False))
    assert with_it.batch_invariant and not without.batch_invariant
    assert with_it.kernels == without.kernels and with_it.capture == without.capture
    names = [[use.name for use in plan.attention] for plan in (with_it, without)]
    assert names[0] == names[1] and with_it.notes == without.notes


def test_attention_of_torch_is_chosen_with_a_note_of_its_cost() -> None:
    plan = resolve("demo", Options(batch_invariant=True, attention_backend="torch"))
    assert any("token by token" in note for note in plan.notes)
    assert plan.capture is None, "captured steps pad contexts, and sums over them"


def test_matrices_of_torch_are_refused() -> None:
    error = _refusal(disable=["inferno-cpu"], device="cpu")
    assert "torch multiplies" in error.cause and "inferno-cpu" in error.remedy


def test_prompts_of_other_instances_are_refused() -> None:
    assert "another instance" in _refusal(decode_with="shm://x").cause


def test_recurrent_states_are_refused(tmp_path: Path) -> None:
    ref = toy_of("mamba2:TestSmall", tmp_path / "toy")
    with pytest.raises(UnsupportedError, match="recurrent states") as caught:
        resolve(ref, Options(batch_invariant=True))
    assert "attention only" in caught.value.remedy


def test_a_provider_that_promises_nothing_is_not_chosen() -> None:
    """Nor one that promises it of other ops."""
    catalog: Catalog = load_catalog()
    need = KernelNeed(op="silu_mul", dtype="float32", device=resolve("demo").device)
    [cpu] = [o for o in catalog.of("inferno_kernels") if o.item.name == "cpu"]
    item: KernelProvider = cpu.item
    assert catalog.kernel(need, batch_invariant=True)[0] == cpu
    for promise in (None, lambda need: need.op == "linear"):
        bare = attrs.evolve(cpu, item=attrs.evolve(item, batch_invariant=promise))
        offer, refusals = Catalog(catalog.plugins, {"inferno_kernels": (bare,)}).kernel(
            need, batch_invariant=True
        )
        assert offer is None
        assert "does not promise" in refusals[0].reason
