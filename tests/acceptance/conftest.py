from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.formats import FORMATS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def fake_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint folder for each chat format."""
    folder = tmp_path_factory.mktemp("fakes")
    return {name: each.write(folder / name) for name, each in FORMATS.items()}


@pytest.fixture(scope="session")
def server_urls(fake_checkpoints: dict[str, Path]) -> Iterator[dict[str, str]]:
    """The URL of a running server for each chat format."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.acceptance.fake_server",
            *map(str, fake_checkpoints.values()),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        lines = [process.stdout.readline().split() for _ in fake_checkpoints]
        assert all(lines), "a server did not start: its error is above"
        yield dict(lines)
        process.stdin.close()


@pytest.fixture(scope="session")
def server_url(server_urls: dict[str, str]) -> str:
    """A server of a thinking model with tools."""
    return server_urls["hermes"]
