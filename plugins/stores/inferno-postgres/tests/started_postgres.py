"""A real PostgreSQL for the tests of this folder: one server for all, in a temporary folder, and a
database for each test."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define


def _program(name: str) -> str:
    binary = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None
    )
    if binary is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return binary


def _user() -> dict[str, Any]:
    """Whose processes the server's are: PostgreSQL refuses to be root's."""
    if os.geteuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")


@define(eq=False)
class Postgres:
    """A server, which can be stopped and started again."""

    folder: Path
    port: int
    password: str = "p@ss:w/rd'"
    """Of the user `guest`, who comes by TCP."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(_program("postgres"), "-D", str(self.folder / "data")),
                    *("-k", str(self.folder), "-p", str(self.port), "-h", "127.0.0.1"),
                    *("-c", "fsync=off", "-c", "max_connections=50"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **_user(),
            )
        end = time.monotonic() + 60
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < end, self.log
            time.sleep(0.05)

    def answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.Error):
            psycopg.connect(self.address("postgres")).close()
            return True
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it; its clients lose their connections."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def address(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement as the database's owner."""
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg")
    initdb, owner = _program("initdb"), _user()
    folder = Path(tempfile.mkdtemp(prefix="inferno-pg-", dir="/tmp"))  # a socket's path is short
    try:
        folder.chmod(0o755)
        if owner:
            os.chown(folder, owner["user"], owner["group"])
        done = subprocess.run(
            [
                *(initdb, "-D", str(folder / "data"), "-U", "postgres", "-E", "UTF8", "-N"),
                *("--no-locale", "--auth-local=trust", "--auth-host=scram-sha-256"),
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            **owner,
        )
        assert done.returncode == 0, done.stderr
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = Postgres(folder, port)
        try:
            server.start()
            quoted = server.password.replace("'", "''")
            server.execute(f"CREATE ROLE guest LOGIN PASSWORD '{quoted}'")
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The name of an empty database."""
    name = f"test_{secrets.token_hex(4)}"
    postgres.execute(f"CREATE DATABASE {name}")
    yield name
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def address(postgres: Postgres, database: str) -> str:
    return postgres.address(database)
