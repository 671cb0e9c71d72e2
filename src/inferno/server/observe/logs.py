"""Log lines as text or JSON, with the request that they belong to, and one line per request.
Prompts are logged only if asked for, keys never."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal, TextIO

import msgspec

from inferno.server.observe.record import Record, current

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_access = logging.getLogger("inferno.access")
QUIET_PATHS = ("/health", "/ping", "/livez", "/readyz", "/startupz", "/metrics")
"""Paths that probes request every few seconds: their successes are logged at level debug."""
_MAX_PATH = 1000
_MAX_PROMPT = 10_000
"""Characters of a logged prompt."""


def set_up(form: LogFormat = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send the log of inferno and uvicorn to stderr in one format. Replaces what was set up
    before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name, least in (("inferno", level), ("uvicorn", "warning"), ("asyncio", "warning")):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
        logger.addHandler(handler)
        numbers = logging.getLevelNamesMapping()
        logger.setLevel(max(numbers[level.upper()], numbers[least.upper()]))
        logger.propagate = False


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, and what the line knows."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """A time, a level, a message, and what the line knows as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in _context(record).items())
        line = f"{_time(record)} {record.levelname:7} {record.getMessage()}"
        line = f"{line} {shown}" if shown else line
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_request(record: Record) -> None:
    """Write a request's line, once its response has been sent."""
    failed = record.status is None or record.status >= 400
    quiet = record.path in QUIET_PATHS and not failed
    level = logging.DEBUG if quiet else logging.INFO
    if _access.isEnabledFor(level):
        path = record.path[:_MAX_PATH]
        path = path if path.isprintable() else json.dumps(path)
        _access.log(level, "%s %s", record.method, path, extra={"inferno": fields(record)})


def fields(record: Record) -> dict[str, Any]:
    """What is logged of a request; what it has not is left out."""
    line: dict[str, Any] = {
        "request_id": record.id,
        "status": record.status,  # None: the client was gone before the response began
        "client": record.client or None,
        "key": record.key_name or None,
        "model": record.model,
    }
    if record.prompt_tokens:
        line |= {
            "stream": record.streamed,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "ttft": None if record.first_token is None else round(record.first_token, 4),
            "finish_reason": ",".join(dict.fromkeys(record.finish_reasons)) or None,
        }
    line |= {"duration": round(record.seconds, 4), "error": record.error}
    if record.prompts:
        line["prompts"] = [prompt[:_MAX_PROMPT] for prompt in record.prompts]
    return {name: value for name, value in line.items() if value is not None}


def _context(record: logging.LogRecord) -> dict[str, Any]:
    """The line's own fields, or the request that was handled when it was written."""
    line: dict[str, Any] | None = getattr(record, "inferno", None)
    if line is not None:
        return line
    request = current()
    if request is None:
        return {}
    return {"request_id": request.id} | ({"model": request.model} if request.model else {})


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else json.dumps(text)  # escapes what ends a line somewhere


def _time(record: logging.LogRecord) -> str:
    """The time in UTC, to the millisecond."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"
