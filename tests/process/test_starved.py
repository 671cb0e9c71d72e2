"""Errors that come of the system's limits say so, whatever was made of them since."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable

import pytest

from inferno.contracts import Device
from inferno.device import device_errors
from inferno.errors import CheckpointError, InfernoError, OutOfMemoryError
from inferno.host import starved
from inferno.process.confined import explained
from inferno.process.protocol import Failure


def raised(work: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        work()
    return caught.value


def damaged() -> None:
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError as error:
        raise CheckpointError("it cannot be read", "Download it again.") from error


@pytest.mark.parametrize(
    "error, limit",
    [
        (MemoryError(), "-v"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "-v"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "-v"),
        (RuntimeError("can't start new thread"), "-u"),
        (ValueError("Resource temporarily unavailable (os error 11)"), "-u"),
        (raised(damaged), "-n"),
    ],
)
def test_a_lack_is_told_with_the_limit_to_raise(error: BaseException, limit: str) -> None:
    failure = starved(error)
    assert failure is not None and f"ulimit {limit}" in failure.remedy
    assert (failure.status, failure.exit_code) == (503, 4)
    told = Failure.of(error)
    assert (told.cause, told.remedy) == (failure.cause, failure.remedy)
    assert type(error).__name__ in told.detail, "the log may have more"


def test_a_process_that_cannot_be_started_is_such_a_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    socket = raised(refuse)
    assert starved(socket) is None, "usual for a socket"
    refuse.__code__ = refuse.__code__.replace(co_name="_execute_child")
    monkeypatch.setattr(subprocess.Popen, "_execute_child", refuse)
    failure = starved(raised(lambda: subprocess.Popen(["true"])))
    assert failure is not None and "threads" in failure.cause


def again() -> BaseException:
    """An error that was raised from itself."""
    error = InfernoError("no", "Go.")
    error.__cause__ = error
    return error


def in_turns() -> BaseException:
    """An error that was raised from one that was raised while it was handled."""
    error, other = ValueError("no"), KeyError("other")
    error.__cause__, other.__context__ = other, error
    return error


@pytest.mark.parametrize("error", [again(), in_turns()])
def test_an_error_among_its_own_causes_is_told(error: BaseException) -> None:
    assert starved(error) is None
    assert explained(error) is error
    assert "no" in Failure.of(error).cause


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError(errno.ENOENT, "no such file"), InfernoError("no", "Go.")]
)
def test_others_stay_as_they_are(error: BaseException) -> None:
    assert starved(error) is None
    assert "no" in Failure.of(error).cause


def test_pages_that_the_system_refuses_are_a_lack_of_memory() -> None:
    def refuse() -> None:
        with device_errors(Device("cpu"), "allocate its cache"):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    assert "to allocate its cache" in str(raised(refuse))
    assert isinstance(raised(refuse), OutOfMemoryError)
