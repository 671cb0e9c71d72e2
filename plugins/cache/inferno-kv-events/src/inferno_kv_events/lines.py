"""Events to a file: a line of JSON for each batch, its number before what ZeroMQ's has."""

from __future__ import annotations

import os
import select
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import msgspec
from attrs import frozen

from inferno.contracts import EventNeed, EventPublisher
from inferno.errors import OptionError
from inferno_kv_events.publisher import ThreadedPublisher, Waiting
from inferno_kv_events.wire import batch_of


def build(need: EventNeed) -> EventPublisher:
    """Open the file, to append to it. Raises OptionError if that is impossible."""
    path = unquote(urlsplit(need.url).path)
    if need.replay is not None:
        raise OptionError(
            "--kv-events-replay is for subscribers, and a file has none",
            "Leave it out, or publish to tcp://*:5557.",
        )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OptionError(
            f"--kv-events {need.url}: {error.strerror}", "Name a file: file:///FOLDER/FILE."
        ) from error
    waiting = Waiting()
    serving = _Serving(need, waiting, os.fdopen(descriptor, "wb", buffering=0))
    return ThreadedPublisher(waiting, serving.run, "inferno-kv-events")


@frozen(eq=False)
class _Serving:
    """What the thread does."""

    need: EventNeed
    waiting: Waiting
    file: BinaryIO

    def run(self) -> None:
        encode, poller = msgspec.json.Encoder().encode, select.poll()
        poller.register(self.waiting.descriptor, select.POLLIN)
        with self.file:
            while True:
                poller.poll()
                closed = self.waiting.closed  # before `take`: nothing is put after it
                for batch in self.waiting.take():
                    told = batch_of(batch.at, batch.events, self.need)
                    try:
                        self.file.write(encode([batch.number, *told]) + b"\n")
                    except OSError:  # the disk is full: a gap in the numbers
                        continue
                if closed:
                    return
