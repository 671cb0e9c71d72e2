"""Fields of bodies that every API has, checked."""

from __future__ import annotations

from inferno.errors import RequestError
from inferno.request.sessions import MOST_TTL


def checked_salt(salt: str | None) -> str:
    """Return the `cache_salt` of a body. Raises RequestError."""
    if salt is None:
        return ""
    if not 0 < len(salt) <= 128 or any(c in salt for c in "@/\\\0"):
        raise RequestError(
            "invalid cache_salt",
            "Give 1 to 128 characters without @, / and \\.",
            param="cache_salt",
        )
    return salt


def checked_ttl(seconds: float | None) -> float | None:
    """Return the `session_ttl` of a body. Raises RequestError."""
    if seconds is not None and not 0 < seconds <= MOST_TTL:
        raise RequestError(
            f"session_ttl is {seconds:g}",
            f"Give seconds, above 0 and at most {MOST_TTL}.",
            param="session_ttl",
        )
    return seconds


def checked_timeout(seconds: float | None) -> float | None:
    """Return the `timeout` of a body. Raises RequestError."""
    if seconds is not None and not seconds > 0:
        raise RequestError(
            f"timeout is {seconds:g}", "Give a positive number of seconds.", param="timeout"
        )
    return seconds


def checked_engine(number: int | None, count: int) -> int | None:
    """Return the engine number of a body or a header. Raises RequestError if it is not one of
    `count` engines."""
    if number is not None and not 0 <= number < count:
        raise RequestError(
            f"the request names engine {number}, and this model has {count} "
            f"{'engine' if count == 1 else 'engines'}",
            "Leave out the header x-data-parallel-rank or the field data_parallel_rank, or name an "
            f"engine from 0 to {count - 1}.",
        )
    return number
