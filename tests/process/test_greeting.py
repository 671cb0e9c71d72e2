"""The token of machines, their addresses, and what is made of what users write."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from inferno.errors import OptionError
from inferno.process.ranks.greeting import address, make_token, parse_address, read_token
from inferno.process.ranks.hosts import address_of


def test_a_token_is_made_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    """Whichever of several processes is first: all read the same one."""
    file = tmp_path / "new" / "ranks.token"
    made = [threading.Thread(target=make_token, args=(str(file),)) for _ in range(8)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()
    token = read_token(str(file))
    assert len(token) == 64 and file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == ["ranks.token"]
    make_token(str(file))
    assert read_token(str(file)) == token


def test_a_token_that_is_missing_short_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read") as caught:
        read_token(str(tmp_path / "none"))
    assert "INFERNO_RANK_TOKEN" in caught.value.remedy
    (tmp_path / "short").write_text("hunter2\n")
    with pytest.raises(OptionError, match="has 7 letters"):
        read_token(str(tmp_path / "short"))
    with pytest.raises(OptionError, match="cannot be written") as caught:
        make_token(str(tmp_path / "short" / "token"))
    assert "--rank-token-file" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("10.0.0.1:29400", ("10.0.0.1", 29400)), ("[fe80::1]:7", ("fe80::1", 7)), ("a:1", ("a", 1))],
)
def test_addresses_are_read_as_they_are_printed(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed and address(*parsed) == text


@pytest.mark.parametrize("text", ["10.0.0.1", ":1", "a:b", "a:0", "a:70000", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not HOST:PORT"):
        parse_address(text)


def test_an_interface_is_its_address() -> None:
    assert address_of("127.0.0.1") == "127.0.0.1"
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(OptionError, match="neither an address nor a network interface") as caught:
        address_of("no such host.invalid")
    assert "lo" in caught.value.remedy
