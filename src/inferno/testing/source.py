"""Tests of every source: it lists what it has without a network, fetches it, and raises a clear
error otherwise."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

from inferno.catalog import Catalog
from inferno.contracts import FetchOptions, Source
from inferno.errors import ModelNotFoundError, OptionError
from inferno.testing.installed import Installed
from inferno.testing.tiny import run_python


class SourceTests(Installed):
    """Set `source` to its registered name, and implement the fixture `ref`, which makes a model
    that the source can fetch, mocking any server, and returns its reference.
    """

    source: ClassVar[str]
    missing: ClassVar[str | None] = None
    """A well-formed reference to nothing; None if every well-formed reference exists."""
    foreign: ClassVar[Sequence[str]] = ()
    """References that the source must not match."""

    @pytest.fixture
    def ref(self) -> str:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> Source:
        return catalog.named(Source, cls.source).item

    def test_the_catalog_finds_it_by_the_reference(
        self, item: Source, catalog: Catalog, ref: str
    ) -> None:
        assert catalog.source_of(ref).item.name == self.source
        assert item.describe, "errors say what its references look like"
        for other in ("", *self.foreign):
            assert not item.matches(other), other

    def test_a_model_is_fetched_to_a_path_the_same_each_time(self, item: Source, ref: str) -> None:
        path = item.fetch(ref, FetchOptions())
        assert isinstance(path, Path) and path.exists()
        assert item.fetch(ref, FetchOptions()) == path

    def test_what_was_fetched_needs_no_network(
        self, item: Source, ref: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = item.fetch(ref, FetchOptions())
        attempts = _cut_off(monkeypatch)
        assert item.fetch(ref, FetchOptions(offline=True)) == path
        assert not attempts

    def test_matching_and_listing_ask_no_network(
        self, item: Source, ref: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Listed models are also present."""
        item.fetch(ref, FetchOptions())
        attempts = _cut_off(monkeypatch)
        assert item.matches(ref)
        for known in item.list():
            assert item.matches(known)
            assert item.fetch(known, FetchOptions(offline=True)).exists()
        assert not attempts

    @pytest.mark.parametrize("offline", [False, True])
    def test_a_missing_model_is_an_error_with_a_remedy(
        self, item: Source, ref: str, offline: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if self.missing is None:
            pytest.skip("everything it matches exists")
        assert item.matches(self.missing)
        attempts = _cut_off(monkeypatch) if offline else []
        with pytest.raises(ModelNotFoundError) as caught:
            item.fetch(self.missing, FetchOptions(offline=offline))
        assert caught.value.cause and caught.value.remedy and not attempts

    def test_an_unknown_revision_is_not_ignored(self, item: Source, ref: str) -> None:
        with pytest.raises((ModelNotFoundError, OptionError)) as caught:
            item.fetch(ref, FetchOptions(revision="no-such-revision"))
        assert caught.value.cause and caught.value.remedy

    def test_fetching_imports_no_torch(self, ref: str) -> None:
        code = (
            "import sys; from inferno.catalog import load_catalog; from inferno.contracts "
            "import FetchOptions, Source\n"
            "item = load_catalog().named(Source, sys.argv[1]).item\n"
            "assert item.matches(sys.argv[2])\n"
            "item.list(); item.fetch(sys.argv[2], FetchOptions())\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, self.source, ref)
        assert done.returncode == 0, done.stderr


def _cut_off(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cut off the network, also on open connections. Returns a growing list of attempts."""
    attempts: list[str] = []

    def cut(owner: Any, name: str) -> None:
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            attempts.append(name)
            raise AssertionError("the network was used")  # not an OSError: clients would retry

        monkeypatch.setattr(owner, name, refuse)

    cut(socket, "getaddrinfo")
    for kind in (socket.socket, ssl.SSLSocket):
        for name in ("connect", "connect_ex", "send", "sendall"):
            cut(kind, name)
    return attempts
