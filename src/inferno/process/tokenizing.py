"""Encodes text in a process of its own (`bounded`), for a tokenizer that is not trusted: the
regular expressions of its file may take minutes for a line of text, in native code that cannot be
interrupted. Called by threads: each waits for its answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import msgspec
from attrs import frozen

from inferno.errors import InfernoError, RequestError, TokenizerBusyError
from inferno.plan import Opened, Plan, plan_from_json, plan_to_json
from inferno.process.bounded import PATIENCE, begin, serve
from inferno.process.environment import environment
from inferno.text import Encoded, Tokenizer

SECONDS, SECONDS_PER_BYTE = 0.25, 5e-6
"""Processor time for a text: usual tokenizers take a fifth of the second for each byte."""
MEMORY = 2 * 2**30
"""Bytes that the process may allocate."""
_START_SECONDS = 60.0
_TURN_SECONDS = 10.0
"""A text may wait for those before it, and for the start of a process."""
_PART = 2**20


@frozen
class Asked:
    """A text, or two that are encoded as one."""

    text: str
    special: bool
    spans: bool = False
    pair: str | None = None


@frozen
class Answer:
    """Its tokens, or why there are none."""

    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    type_ids: list[int] = []
    cause: str = ""
    remedy: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(Asked).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def tokenizer_of(opened: Opened) -> Tokenizer | None:
    """Return the tokenizer of an opened model, or None if it has none. It encodes in a process of
    its own in a sandbox, and if its file describes what may take long. Raises CheckpointError."""
    plan, stop_tokens = opened.plan, opened.parts.architecture.stop_tokens
    tokenizer = Tokenizer.from_assets(opened.text(), plan.config, stop_tokens=stop_tokens)
    if tokenizer is None or (plan.sandbox is None and not tokenizer.is_suspect):
        return tokenizer
    return OutsideTokenizer(tokenizer, plan)


class OutsideTokenizer(Tokenizer):
    """A tokenizer whose texts are encoded in another process, one after another. Tokens are decoded
    in this one."""

    waits = True

    def __init__(self, inside: Tokenizer, plan: Plan, *, seconds: float = SECONDS) -> None:
        super().__init__(inside.backend, eos_token_ids=inside.eos_token_ids)
        self._inside, self._child = inside, _Child(plan, seconds)

    @property
    def inside(self) -> Tokenizer:
        return self._inside

    def _encoded(
        self, text: str, add_special_tokens: bool, *, spans: bool = False, pair: str | None = None
    ) -> Encoded:
        try:
            body = _encode(Asked(text, add_special_tokens, spans, pair))
        except UnicodeEncodeError:
            return self._inside._encoded(text, add_special_tokens, pair=pair)  # raises
        answer = _decode_answer(self._child.ask(body))
        if answer.cause:
            raise RequestError(answer.cause, answer.remedy, param="prompt")
        return answer


class _Child:
    """The process. It is started at once, and again after a text that ended it."""

    def __init__(self, plan: Plan, seconds: float) -> None:
        self._plan, self._seconds = plan, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._start()

    def ask(self, body: bytes) -> bytes:
        """Return the answer. Raises RequestError, TokenizerBusyError."""
        limit = self._seconds + SECONDS_PER_BYTE * len(body)
        if not self._lock.acquire(timeout=_TURN_SECONDS):
            raise TokenizerBusyError("too many texts are being encoded")
        try:
            process = self._ready()
            try:
                return _exchange(process, body, PATIENCE * limit)
            except TimeoutError as error:
                self._end()
                raise TokenizerBusyError("the process that encodes text gets no time") from error
            except OSError as error:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE * limit)
                timely = process.returncode != -signal.SIGPROF
                how = "too much memory" if timely else f"more than {limit:.2g} s"
                raise RequestError(
                    f"the model's tokenizer takes {how} for this text",
                    "Send another text, or use a model whose tokenizer.json is as usual.",
                    param="prompt",
                    code="tokenizer_failed",
                ) from error
        finally:
            self._lock.release()

    def _ready(self) -> subprocess.Popen[bytes]:
        """Return the process, once it waits for texts."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None, "it is started"
        if self._folder is not None:
            try:
                _exchange(self._process, b"", _START_SECONDS)
            except OSError as error:
                self._end()
                raise TokenizerBusyError("the process that encodes text did not start") from error
            self._folder.cleanup()
            self._folder = None
        return self._process

    def _start(self) -> None:
        self._end()
        self._folder = folder = tempfile.TemporaryDirectory(prefix="inferno-")
        plan = Path(folder.name) / "plan.json"
        plan.write_text(plan_to_json(self._plan), encoding="utf-8")
        variables = environment(None if self._plan.sandbox is None else folder.name)
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "inferno.process.tokenizing", str(plan), str(self._seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**variables, "RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"},
        )
        self._finish = weakref.finalize(self, _kill, process)

    def _end(self) -> None:
        if self._process is not None:
            self._finish()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _exchange(process: subprocess.Popen[bytes], body: bytes, seconds: float) -> bytes:
    """Send a message, unless it is empty, and return the answer. Raises TimeoutError, and OSError
    if the process has ended."""
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    end = time.monotonic() + seconds
    if body:
        _write(process.stdin.fileno(), len(body).to_bytes(4, "big") + body, end)
    out = process.stdout.fileno()
    return _read(out, int.from_bytes(_read(out, 4, end), "big"), end)


def _write(pipe: int, data: bytes, end: float) -> None:
    os.set_blocking(pipe, False)
    left = memoryview(data)
    while left:
        _wait(pipe, select.POLLOUT, end)
        left = left[os.write(pipe, left[:_PART]) :]


def _read(pipe: int, size: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        _wait(pipe, select.POLLIN, end)
        part = os.read(pipe, min(_PART, size - len(data)))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)


def _wait(pipe: int, event: int, end: float) -> None:
    poller = select.poll()  # `select` refuses descriptors above 1023
    poller.register(pipe, event)
    if not poller.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError


def main() -> None:
    """Answer each text with its tokens."""
    from inferno.process.confined import confine

    begin()
    plan = plan_from_json(Path(sys.argv[1]).read_bytes())
    confine(plan)  # before anything of the model is read
    from inferno.plan import reopen

    with reopen(plan) as opened:
        tokenizer = Tokenizer.from_assets(opened.text(), plan.config)
    assert tokenizer is not None, "the parent has it"

    def answer(body: bytes) -> bytes:
        request: Asked = _decode_asked(body)
        try:
            encoding = tokenizer._encoded(
                request.text, request.special, spans=request.spans, pair=request.pair
            )
        except MemoryError:
            return _encode(Answer(cause="the text takes too much memory", remedy="Shorten it."))
        except InfernoError as error:
            return _encode(Answer(cause=error.cause, remedy=error.remedy))
        offsets = encoding.offsets if request.spans else []
        types = encoding.type_ids if request.pair is not None else []
        return _encode(Answer(encoding.ids, offsets, types))

    serve(answer, _encode(Answer()), float(sys.argv[2]), MEMORY, SECONDS_PER_BYTE)


if __name__ == "__main__":
    main()
