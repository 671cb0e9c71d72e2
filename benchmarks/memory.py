"""Peak memory while a model is quantized: while it is loaded, and by `inferno convert`.

    python benchmarks/memory.py MODEL --text FILE

Each case is a process, whose memory is sampled (Linux): anonymous pages, and pages of mapped files,
which the system can drop and read again. A load ends with the packed weights in memory; `before`
is the rest of what is in memory then. Of a conversion, it is what is in memory before a weight is
read. `work` is the peak without either. It should be the largest matrix packed, or, with a text,
one layer and its activations.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attrs import frozen

_LOAD = """
import sys, time
from inferno import LLM
with LLM(sys.argv[1], isq=sys.argv[2], packed_cache=sys.argv[3], max_model_len=1024, threads=2):
    print("loaded", flush=True)
    time.sleep(float(sys.argv[4]))
"""
_CONVERT = """
import re, sys
from pathlib import Path
from inferno_convert.convert import convert
told = []
def progress(done, total, what):
    if not told:
        status = Path("/proc/self/status").read_text()
        told.append(int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]) << 10)
        print(told[0], flush=True)
ref, to, out, *text = sys.argv[1:]
convert(ref, to, Path(out), calibrate=Path(text[0]) if text else None, progress=progress)
"""
_EVERY = 0.002
"""Seconds between samples."""


@frozen
class Memory:
    """In bytes."""

    peak: int
    """Of anonymous pages."""
    last: int
    """Of anonymous pages, when the process waits before it ends."""
    files: int
    """Of mapped files, at most."""
    said: str
    """What the process printed."""


def measured(*command: str, settled: float = 0.0) -> Memory:
    """Run a Python command and sample it. `settled`: the seconds that it waits at its end, of which
    a quarter counts as the last state. Raises CalledProcessError."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    samples: list[tuple[float, int, int]] = []
    while child.poll() is None:
        if (sample := _sample(child.pid)) is not None:
            samples.append((time.monotonic(), *sample))
        time.sleep(_EVERY)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    middle = samples[-1][0] - settled / 2
    last = next(anonymous for at, anonymous, _ in samples if at >= middle)
    assert child.stdout is not None, "it is a pipe"
    output = child.stdout.read()
    return Memory(max(s[1] for s in samples), last, max(s[2] for s in samples), output)


def _sample(pid: int) -> tuple[int, int] | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    sizes = dict(re.findall(r"(RssAnon|RssFile):\s+(\d+)", status))
    return (int(sizes["RssAnon"]) << 10, int(sizes["RssFile"]) << 10) if len(sizes) == 2 else None


def loads(model: str, isq: str, folder: Path) -> None:
    """Print a row for the first start, and one for that which reads packed weights."""
    for start, seconds in (("first", 20.0), ("second", 2.0)):
        command = "-c", _LOAD, model, isq, str(folder / "packed"), str(seconds)
        memory = measured(*command, settled=seconds)
        [packed] = [file.stat().st_size for file in (folder / "packed").glob("*.packed")]
        row(f"`--isq {isq}`, {start} start", memory, packed, memory.last - packed)


def converts(model: str, to: str, folder: Path, text: list[str]) -> None:
    """Print a row for a conversion, calibrated if there is a text."""
    out = folder / to
    memory = measured("-c", _CONVERT, model, to, str(out), *text)
    size = sum(f.stat().st_size for f in ([out] if out.is_file() else out.glob("*.safetensors")))
    row(f"`convert --to {to}{' --calibrate' * len(text)}`", memory, size, int(memory.said), held=0)


def row(name: str, found: Memory, result: int, before: int, held: int | None = None) -> None:
    """Print one. `held` are the bytes of the result that are in memory, all by default."""
    work = found.peak - before - (result if held is None else held)
    cells = (result, found.peak, before, work, found.files)
    print(f"| {name} | {' | '.join(f'{nbytes / 1e6:.0f}' for nbytes in cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--isq", default="q4_k_m")
    parser.add_argument("--text", help="for a calibrated conversion to gptq-int4")
    parser.add_argument("--only", choices=["load", "convert", "calibrate"])
    given = parser.parse_args()
    print("| MB | result | peak | before | work | mapped files |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        if given.only in (None, "load"):
            loads(given.model, given.isq, Path(folder))
        if given.only in (None, "convert"):
            converts(given.model, given.isq, Path(folder), [])
        if given.text is not None and given.only in (None, "calibrate"):
            converts(given.model, "gptq-int4", Path(folder), [given.text])


if __name__ == "__main__":
    main()
