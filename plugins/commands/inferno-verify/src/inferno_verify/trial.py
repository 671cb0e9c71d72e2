"""Tries checkpoints, each in a process with limits: `python -m inferno_verify.trial SECONDS MEMORY
LOADS REF...`.

Imports what it needs first, and then forks for each checkpoint, so that its limit of time is that
of the checkpoint alone. Prints a line of JSON for each: `Result`.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from inferno.catalog import load_catalog
from inferno.contracts import Confinement, FetchOptions, Sandbox
from inferno.plan.sandbox import files_of

STAGES = ("plan", "template", "tokenizer", "names", "load")
"""In order. Each is what the one before it made possible."""
PATIENCE = 4
"""How many times as long as its processor time a checkpoint may take, in all."""
PROBES = {
    "one letter": "a",
    "spaces": " ",
    "mixed": "aA1! ",
    "accents": "a\u0301\u0302",
    "digits": "1",
    "quotes": "'s",
    "newlines": "\n \n",
}
PROBE_CHARACTERS = 20_000
SLOW_SECONDS = 1.0
"""Processor time for a probe. Usual tokenizers take a hundredth."""


@define
class Result:
    """How a checkpoint fared."""

    ref: str
    ended: str = "fine"
    """fine, refused, or why its process was ended: time, memory, crash."""
    sentence: str = ""
    """Why, if it is not fine."""
    done: dict[str, str] = field(factory=dict)
    """By stage, what it found."""
    odd: list[str] = field(factory=list)
    """What is unusual."""
    seconds: float = 0.0
    """Of processor time."""
    sandbox: str = ""
    """What confined it; empty: nothing but limits."""


def attempt(ref: str, loads: bool, say: Callable[[dict[str, Any]], None]) -> None:
    """Run all stages, and tell of each. Raises what they raise."""
    from inferno.llm.preprocessor import Preprocessor
    from inferno.plan import Options, open_model
    from inferno.weights.loading import check
    from inferno_verify.survey import survey

    def began(stage: str) -> None:
        say({"stage": stage})

    def odd(sentence: str) -> None:
        say({"odd": sentence})

    began("plan")
    local = Path(ref)
    for sentence in survey(local) if local.exists() else ():
        odd(sentence)
    with open_model(ref, Options(device="cpu", max_model_len=512)) as opened:
        plan = opened.plan
        if not local.exists():
            for sentence in survey(Path(plan.path)):
                odd(sentence)
        size = f"{plan.num_parameters or 'unknown'} parameters, {plan.nbytes} bytes of memory"
        say({"done": f"{plan.architecture}, {plan.format}, {size}"})
        began("template")
        preprocessor = Preprocessor.open(opened)
        say({"done": _rendered(preprocessor, odd)})
        began("tokenizer")
        say({"done": _tokenized(preprocessor, odd)})
        began("names")
        say({"done": f"{check(opened)} tensors have the names and shapes that the model needs"})
        if loads:
            began("load")
            say({"done": _loaded(opened)})


def _rendered(preprocessor: Any, odd: Callable[[str], None]) -> str:
    from inferno.errors import InfernoError

    began = time.process_time()
    try:
        text = preprocessor.render_chat([{"role": "user", "content": "Hi"}])
    except InfernoError as error:
        odd(f"Chats may be refused: {one_line(error)}")
        return "a chat of one message is refused"
    return f"a chat of one message has {len(text)} characters after {_since(began)}"


def _tokenized(preprocessor: Any, odd: Callable[[str], None]) -> str:
    tokenizer = preprocessor.tokenizer
    if tokenizer is None:
        return "there is none"
    if tokenizer.is_suspect:
        odd("The tokenizer's rules may take very long for a text: it encodes in another process.")
    tokenizer = tokenizer.inside  # this process has limits, too
    slowest = 0.0
    for name, piece in PROBES.items():
        text = (piece * PROBE_CHARACTERS)[:PROBE_CHARACTERS]
        began = time.process_time()
        tokenizer.encode(text)
        slowest = max(slowest, took := time.process_time() - began)
        if took > SLOW_SECONDS:
            odd(f"{len(text)} characters ({name}) take the tokenizer {took:.1f} s.")
    return f"{PROBE_CHARACTERS} characters take at most {slowest:.2g} s of processor time"


def _loaded(opened: Any) -> str:
    from inferno.core.engine import Engine
    from inferno.request.requests import Request
    from inferno.request.sampling_params import SamplingParams

    engine = Engine.load(opened)
    try:
        params = SamplingParams(max_tokens=2, temperature=0)
        engine.submit(Request(id="verify", token_ids=(0,), params=params))
        outputs = []
        while engine.busy:
            outputs += engine.step()
    finally:
        engine.close()
    if outputs[-1].error:
        raise outputs[-1].failure()
    return f"loaded, and it generates ({len(outputs)} tokens)"


def one_line(error: BaseException) -> str:
    """An InfernoError's cause and remedy as a sentence or two, of a bounded length."""
    cause, remedy = getattr(error, "cause", str(error)), getattr(error, "remedy", "")
    text = " ".join(f"{cause}. {remedy}".split())
    return text if len(text) <= 600 else f"{text[:600]}..."


def _since(began: float) -> str:
    return f"{time.process_time() - began:.2g} s of processor time"


def tried(
    ref: str, seconds: float, memory: int, *, loads: bool, sandbox: Sandbox | None = None
) -> Result:
    """Try a checkpoint in a fork of this process, for these seconds of processor time."""
    result = Result(ref, sandbox="" if sandbox is None else sandbox.name)
    end = time.monotonic() + PATIENCE * seconds
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _run(ref, seconds, memory, write, sandbox, loads=loads)
    os.close(write)
    lines = b""
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (part := os.read(read, 65536)):
            break
        lines += part
    else:
        result.ended = "time"
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    stage = _read(result, lines)
    if code == -signal.SIGXCPU:
        result.ended = "time"
    if result.ended == "time":
        result.sentence = f"It did not end within {seconds:g} s ({stage})."
    elif code and result.ended == "fine":
        result.ended = "crash"
        result.sentence = f"The process ended with code {code} ({stage})."
    result.seconds = used.ru_utime + used.ru_stime
    return result


def _read(result: Result, lines: bytes) -> str:
    """Read what a child said into the result. Returns the stage that it was in."""
    stage = "before the plan"
    for line in lines.splitlines():
        try:
            message = json.loads(line)
        except ValueError:  # it was ended while it said this
            break
        stage = message.get("stage", stage)
        if "done" in message:
            result.done[stage] = message["done"]
        if "odd" in message:
            result.odd.append(message["odd"])
        if "ended" in message:
            result.ended, result.sentence = message["ended"], message["sentence"]
    return stage


def _run(
    ref: str, seconds: float, memory: int, out: int, sandbox: Sandbox | None, *, loads: bool
) -> None:
    """The child: says what it finds, and ends."""
    from inferno.errors import InfernoError

    def say(line: dict[str, Any]) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")

    code = 0
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        if sandbox is not None:
            reads = tuple(_read_of(ref))
            sandbox.confine(Confinement(reads=reads, writes=(tempfile.gettempdir(),)))
        attempt(ref, loads, say)
    except InfernoError as error:
        say({"ended": "refused", "sentence": one_line(error)})
    except MemoryError:
        say({"ended": "memory", "sentence": f"It wants more than {memory} bytes of memory."})
    except BaseException as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        if "not enough memory" in reason or "can't allocate" in reason:
            say({"ended": "memory", "sentence": f"It wants more than {memory} bytes of memory."})
        else:
            say({"ended": "crash", "sentence": reason})
    finally:
        os._exit(code)


def _read_of(ref: str) -> Iterator[str]:
    """Yield what a trial may read. Nothing of it is opened."""
    path = load_catalog().source_of(ref).item.fetch(ref, FetchOptions(offline=True))
    yield from files_of(path)
    if path.is_file():  # a file may be one of several parts
        pattern = re.sub(r"-\d{5}(?=-of-\d{5}\.)", "-*", glob.escape(path.name))
        yield from map(str, path.parent.glob(pattern))


def sandbox_here() -> Sandbox | None:
    """Return the sandbox of the highest priority that works here."""
    offers = [offer.item for offer in load_catalog().of("inferno_sandboxes")]
    able = [sandbox for sandbox in offers if sandbox.refuses("cpu") is None]
    return max(able, key=lambda sandbox: sandbox.priority, default=None)


def main() -> None:
    seconds, memory, loads, *refs = sys.argv[1:]
    import inferno.core.engine
    import inferno.core.runner
    import inferno.llm.preprocessor
    import inferno.weights.loading  # noqa: F401

    sandbox = sandbox_here()
    for ref in refs:
        result = tried(ref, float(seconds), int(memory), loads=loads == "1", sandbox=sandbox)
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
