"""What a user sees when something fails: cause, remedy, the right exit code; a traceback only with
--debug."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import rich_click as click
from click.testing import CliRunner, Result

from inferno.cli import cli
from inferno.cli.options import debug_option, declare
from inferno.errors import ERRORS, InfernoError, OutOfMemoryError


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, *args: str) -> Result:
    """`inferno pull`, replaced by a command that raises `error`."""

    @declare
    @debug_option
    def command() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "inferno.cli.pull", SimpleNamespace(command=command))
    return CliRunner().invoke(cli, ["pull", *args])


@pytest.mark.parametrize("kind", ERRORS.values())
def test_errors_end_with_their_exit_code_cause_and_remedy(
    monkeypatch: pytest.MonkeyPatch, kind: type[InfernoError]
) -> None:
    result = failing(monkeypatch, kind("It broke", "Mend it."))
    assert result.exit_code == kind.exit_code
    assert result.stderr == "Error: It broke\nMend it.\n"
    assert result.stdout == ""


def test_another_process_s_traceback_is_shown_without_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = failing(monkeypatch, OutOfMemoryError("Too big", detail="Traceback: there\n"))
    assert result.stderr.splitlines() == ["Error: Too big", "Traceback: there"]
    error = OutOfMemoryError("Too big", "Use less.", detail="Traceback: there\n")
    result = failing(monkeypatch, error)
    assert result.stderr.splitlines() == ["Error: Too big", "Use less."]


def test_a_bug_is_one_line_and_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    result = failing(monkeypatch, KeyError("x"))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "Error: KeyError: 'x'"
    assert "--debug" in result.stderr and "Traceback" not in result.stderr


def test_debug_lets_the_traceback_through(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OutOfMemoryError("Too big", "Use less.", detail="Traceback: there\n")
    assert failing(monkeypatch, error, "--debug").exception is error
    assert error.__notes__ == [error.detail]


def test_click_s_own_errors_stay_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing(monkeypatch, click.UsageError("no")).exit_code == 2


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing(monkeypatch, KeyboardInterrupt()).exit_code == 130


SLOW_EXIT = """
    import sys, time, types
    from inferno.cli import main
    from inferno.cli.options import declare

    @declare
    def command():
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("tidying", flush=True)
            time.sleep(TIDY)

    sys.modules["inferno.cli.pull"] = types.SimpleNamespace(command=command)
    main(["pull"])
"""


def slow(tidy: int) -> subprocess.Popen[str]:
    code = textwrap.dedent(SLOW_EXIT).replace("TIDY", str(tidy))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "tidying\n"
    return process


def test_the_first_ctrl_c_tidies_up() -> None:
    process = slow(tidy=0)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_second_ctrl_c_kills() -> None:
    process = slow(tidy=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
