"""The context of a section: device, time, the machine's limits, and output for figures."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
from attrs import define, frozen

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import AttentionBackend, Device, lazy
from inferno.errors import InfernoError, MissingKind
from inferno.plan import find_device
from inferno_gpu_report.report import ERROR, Figure, Status

COPY, MATMUL, FP8_MATMUL = "copy on the device", "matrix product, bfloat16", "matrix product, fp8"
"""Figures of the section `machine` from which floors are computed: GB/s, TFLOP/s."""


_ATTEMPT, _LEAST_ATTEMPT = 0.4, 4.0
"""Share of a section's remaining time that one attempt may take, and its minimum in seconds."""


class NotInstalled(Exception):
    """A package that a section needs is not installed. The message says how to install it."""


@frozen
class Limits:
    """Measured limits of the machine. None: not measured."""

    gigabytes: float | None = None
    """Bytes that a copy reads and writes, in 10^9 per second."""
    teraflops: float | None = None
    """Rate of bfloat16 matrix products, in 10^12 operations per second."""

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> Limits:
        return cls(figures.get(COPY), figures.get(MATMUL))

    def seconds(self, nbytes: float, flops: float = 0.0) -> float | None:
        """Return the minimum time to move these bytes and compute these operations."""
        if self.gigabytes is None or (flops and self.teraflops is None):
            return None
        computing = flops / (self.teraflops * 1e12) if flops and self.teraflops else 0.0
        return nbytes / (self.gigabytes * 1e9) + computing


@define(slots=False)
class Job:
    """The work of one section."""

    device: Device
    small: bool
    """Tiny sizes, on a CPU."""
    end: float
    """When its time ends, by `time.monotonic`."""
    folder: Path
    """For temporary files."""
    limits: Limits
    write: Callable[[str], object]
    """Writes one line of JSON: a figure, a fact or a note."""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog()

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        floor: float | None = None,
        *,
        lower: bool = False,
        detail: str = "",
    ) -> None:
        """Report a value immediately."""
        figure = Figure(name, float(value), unit, floor, lower, detail)
        self._send("figure", attrs.asdict(figure))

    def error(self, name: str, value: float, tolerance: float, detail: str = "") -> None:
        """Report the error of a result. An error beyond the tolerance fails the section at its
        end."""
        self.figure(name, value, ERROR, tolerance, lower=True, detail=detail)
        if not value <= tolerance:  # also if it is not a number
            self.wrong.append(name)

    @cached_property
    def wrong(self) -> list[str]:
        """Names of results whose errors exceed their tolerance."""
        return []

    def fact(self, name: str, value: object) -> None:
        self._send("fact", [name, str(value)])

    def note(self, text: str) -> None:
        self._send("note", text)

    def attempt(self, what: str, call: Callable[[], object], of: str = "") -> None:
        """Call a function, and report an exception as a note, so that one candidate does not end
        the section. A call that takes too much of the section's time is interrupted, and later
        attempts with the same `of` are skipped."""
        if of and of in self._slow:
            return
        limit = max(_LEAST_ATTEMPT, _ATTEMPT * self.left)
        begin = time.monotonic()
        try:
            with _interrupted(limit):
                call()
        except Exception as error:
            if time.monotonic() - begin >= limit:
                self._slow.add(of)
                self.note(f"{what}: interrupted after {limit:.0f} s")
            else:
                self.note(f"{what}: {_said(error)}")
            if self.device.kind == "cuda":
                import torch

                torch.cuda.synchronize()  # raises again if the device's context is lost

    @cached_property
    def _slow(self) -> set[str]:
        return set()

    def attention_backends(self) -> list[AttentionBackend]:
        """Return the installed attention backends, the preferred one first."""
        items = [offer.item for offer in self.catalog.of("inferno_attention_backends")]
        return sorted(items, key=lambda backend: -backend.priority)

    def need(self, kind: MissingKind, name: str) -> None:
        """Raise NotInstalled, with the hint of an installed index."""
        hint = self.catalog.hint(kind, name) or "Install a plugin that provides it."
        raise NotInstalled(f"no plugin has the {kind} {name}. {hint}")

    def mention_missing(self, kind: MissingKind) -> None:
        """Note each thing of that kind that an index lists and no installed plugin provides."""
        for hint in self.catalog.of("inferno_hints"):
            if hint.item.kind == kind and hint.item.distribution:
                if text := self.catalog.missing_hint(kind, hint.item.name):
                    self.note(f"{kind} {hint.item.name} is not installed. {text}")

    def _send(self, kind: str, value: Any) -> None:
        self.write(json.dumps({kind: value}, ensure_ascii=False))

    def run(self, section: Callable[[Job], None]) -> None:
        """Run a section, and report how it ended."""
        status: tuple[Status, str] = ("done", "")
        try:
            section(self)
        except NotInstalled as error:
            status = ("not installed", str(error))
        except TimeoutError as error:
            status = ("stopped", str(error))
        except Exception as error:
            import traceback

            traceback.print_exc()
            status = ("failed", _said(error))
        if self.wrong:
            status = ("failed", f"not exact: {', '.join(self.wrong[:8])}")
        self._send("status", status)

    def check_time(self, what: str) -> None:
        """Raise TimeoutError if the time is over. Figures so far are kept."""
        if self.left <= 0:
            raise TimeoutError(f"time was over before {what}")


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Context in which TimeoutError is raised after this time, in Python code."""

    def interrupt(signum: int, frame: object) -> None:
        raise TimeoutError("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _said(error: Exception) -> str:
    if isinstance(error, InfernoError):
        return f"{error.cause}. {error.remedy}".strip()
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def main(run: str, device: str, small: str, seconds: str, folder: str, lines: str) -> None:
    """Run one section in this process."""
    limits = Path(folder) / "limits.json"
    figures = json.loads(limits.read_text()) if limits.exists() else {}
    with Path(lines).open("a", encoding="utf-8", buffering=1) as stream:
        job = Job(
            device=find_device(device),
            small=bool(int(small)),
            end=time.monotonic() + float(seconds),
            folder=Path(folder),
            limits=Limits.of(figures),
            write=lambda line: stream.write(f"{line}\n"),
        )
        job.run(lazy.resolved(lazy.function(run)))
