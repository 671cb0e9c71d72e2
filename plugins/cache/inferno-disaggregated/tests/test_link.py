"""The contract of links, through shared memory and over tcp."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from inferno.contracts import Link
from inferno.testing import LinkTests
from inferno_disaggregated import shared_memory
from inferno_disaggregated.address import nixl_package


class TestSharedMemory(LinkTests):
    store = "disaggregated"

    @pytest.fixture
    def links(self) -> tuple[Link, Link]:
        link = Link(role="prefill", url=f"shm://test-{secrets.token_hex(6)}", buffer=1 << 20)
        return link, evolve(link, role="decode")


class TestWithoutSharedMemory(TestSharedMemory):
    """Blocks follow the headers over the socket, as where the two cannot see each other's."""

    @pytest.fixture(autouse=True)
    def none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_memory, "attach", lambda name, nbytes: None)


class TestWithoutAnyMemory(TestSharedMemory):
    @pytest.fixture(autouse=True)
    def none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_memory.Arena, "create", lambda nbytes: None)


class TestTcp(LinkTests):
    store = "disaggregated"
    scheme = "tcp"

    @pytest.fixture
    def links(self, tmp_path: Path) -> tuple[Link, Link]:
        file = tmp_path / "token"
        file.write_text(secrets.token_hex(32))
        file.chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        url = url.replace("tcp", self.scheme)
        link = Link(role="prefill", url=url, token_file=file, buffer=1 << 20)
        return link, evolve(link, role="decode")


@pytest.mark.skipif(nixl_package() is None, reason="needs nixl, which is not installed")
class TestNixl(TestTcp):
    scheme = "nixl"

    def test_it_is_nixl_that_reads(self, ends: Any) -> None:
        ends.ask([b"k" * 16], [0b11])
        assert ends.here.mover.client._agent is not None
