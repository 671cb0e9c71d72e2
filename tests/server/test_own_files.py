"""Files that only the server's user should read, and options that are not numbers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferno.cli.serve import command
from inferno.errors import AddressError, OptionError
from inferno.server.access.keys import read_keys
from inferno.server.http.listen import check_certificate, listening
from inferno.server.responses.store import Store

PLAIN, DIGEST = '[keys.a]\nkey = "secret"', f'[keys.a]\nsha256 = "{"0" * 64}"'


def test_a_store_that_others_may_use_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    Store(file).close()
    file.chmod(0o640)
    with pytest.raises(OptionError, match="mode is 0640") as caught:
        Store(file)
    assert f"chmod 600 {file}" in caught.value.remedy
    file.chmod(0o600)
    Store(file).close()


def test_a_store_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.db"
    Store(file).close()
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(OptionError, match="belongs to another user"):
        Store(file)


def test_a_store_that_is_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="not a regular file"):
        Store(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "mode", "warned"), [(PLAIN, 0o644, 1), (PLAIN, 0o600, 0), (DIGEST, 0o644, 0)]
)
def test_plain_keys_that_others_can_read_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, mode: int, warned: int
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    file.chmod(mode)
    read_keys(file)
    assert len(caplog.records) == warned
    assert "secret" not in caplog.text


def test_keys_are_not_read_from_a_device() -> None:
    with pytest.raises(OptionError, match="a device, not a regular file"):
        read_keys(Path("/dev/zero"))


def test_a_private_key_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    for mode, warnings in ((0o600, 0), (0o644, 1)):
        key.chmod(mode)
        check_certificate(str(certificate), str(key))
        assert len(caplog.records) == warnings


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(AddressError, match="too long"),
        listening("", 0, Path("/tmp/" + "x" * 300), 0o600),
    ):
        pass


@pytest.mark.parametrize(
    "option", ["--shutdown-timeout", "--store-days", "--request-timeout", "--engine-timeout"]
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_seconds_and_days_are_finite(option: str, value: str) -> None:
    done = CliRunner().invoke(command, ["demo", option, value])
    assert done.exit_code == 2 and "is not a finite number" in done.output
