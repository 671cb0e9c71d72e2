"""What kernels make ready before torch is imported: for whom it is asked, and that it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferno.contracts import KernelProvider
from inferno.plan import Opened
from inferno.process.prepare import prepared


class Asked:
    """Providers of which "one" multiplies most of the plan's weights, "other" none, and what they
    were asked."""

    def __init__(self, *, isq: str | None = None) -> None:
        self.seen: list[str] = []
        providers = {name: self._provider(name) for name in ("one", "other")}
        silent = KernelProvider(name="silent", ops={}, refuses=lambda need: None)
        kernels = [
            ("linear", "bfloat16", "one"),
            ("linear", "a", "one"),
            ("linear", "b", "silent"),
            ("rms_norm", "", "other"),
        ]
        plan = SimpleNamespace(
            schemes=[
                SimpleNamespace(layout=layout, nbytes=nbytes)
                for layout, nbytes in (("bfloat16", 4), ("a", 20), ("b", 100))
            ],
            kernels=[
                SimpleNamespace(op=op, layout=layout, name=name) for op, layout, name in kernels
            ],
            isq=isq,
            packed_cache=None,
        )
        parts = SimpleNamespace(kernels={**providers, "silent": silent})
        self.opened = cast(Opened, SimpleNamespace(plan=plan, parts=parts))

    def _provider(self, name: str) -> KernelProvider:
        @contextmanager
        def prepare(nbytes: int) -> Iterator[None]:
            self.seen.append(f"{name} {nbytes}")
            try:
                yield
            finally:
                self.seen.append(f"{name} ends")

        return KernelProvider(name=name, ops={}, refuses=lambda need: None, prepare=prepare)


def test_providers_of_products_prepare_once_for_all_bytes_of_weights() -> None:
    asked = Asked()
    with prepared(asked.opened):
        assert asked.seen == ["one 24"]
    assert asked.seen == ["one 24", "one ends"]


def test_it_ends_when_loading_fails() -> None:
    asked = Asked()
    with pytest.raises(KeyError), prepared(asked.opened):
        raise KeyError
    assert asked.seen[-1] == "one ends"


def test_weights_that_are_quantized_while_loading_are_not_prepared_for() -> None:
    asked: Any = Asked(isq="q8_0")
    with prepared(asked.opened):
        assert not asked.seen
