"""What kernels make ready before torch is imported: for whom it is asked, and that it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferno.catalog import Catalog, Offer
from inferno.contracts import KernelProvider, QuantScheme
from inferno.plan import Plan
from inferno.process.prepare import prepared


class Asked:
    """Providers of which "one" multiplies most of the plan's weights, "other" none, and what they
    were asked."""

    def __init__(self, *, isq: str | None = None) -> None:
        self.seen: list[str] = []
        offers = tuple(Offer(self._provider(name), "tests") for name in ("one", "other"))
        silent = Offer(KernelProvider(name="silent", ops={}, refuses=lambda need: None), "tests")
        schemes = tuple(
            Offer(self._scheme(name, layout), "tests")
            for name, layout in (("plain", ""), ("a", "a"), ("b", "b"))
        )
        catalog = Catalog(
            (), {"inferno_kernels": (*offers, silent), "inferno_quant_schemes": schemes}
        )
        kernels = [
            ("linear", "bfloat16", "one"),
            ("linear", "a", "one"),
            ("linear", "b", "silent"),
            ("rms_norm", "", "other"),
        ]
        self.plan = cast(
            Plan,
            SimpleNamespace(
                schemes=[
                    SimpleNamespace(name=n, nbytes=nbytes)
                    for n, nbytes in (("plain", 4), ("a", 20), ("b", 100))
                ],
                kernels=[
                    SimpleNamespace(op=op, layout=layout, name=name) for op, layout, name in kernels
                ],
                dtype="bfloat16",
                isq=isq,
                catalog=lambda: catalog,
            ),
        )

    def _scheme(self, name: str, layout: str) -> QuantScheme:
        return QuantScheme(
            name=name, owns="tests:no", load="tests:no", nbytes="tests:no", layout=layout
        )

    def _provider(self, name: str) -> KernelProvider:
        @contextmanager
        def prepare(nbytes: int) -> Iterator[None]:
            self.seen.append(f"{name} {nbytes}")
            try:
                yield
            finally:
                self.seen.append(f"{name} ends")

        return KernelProvider(name=name, ops={}, refuses=lambda need: None, prepare=prepare)


def test_who_multiplies_weights_is_asked_once_with_their_bytes() -> None:
    asked = Asked()
    with prepared(asked.plan):
        assert asked.seen == ["one 24"]
    assert asked.seen == ["one 24", "one ends"]


def test_it_ends_when_loading_fails() -> None:
    asked = Asked()
    with pytest.raises(KeyError), prepared(asked.plan):
        raise KeyError
    assert asked.seen[-1] == "one ends"


def test_weights_that_are_quantized_while_loading_are_not_prepared_for() -> None:
    asked: Any = Asked(isq="q8_0")
    with prepared(asked.plan):
        assert not asked.seen
