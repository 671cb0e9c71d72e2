"""The engine process: `python -m inferno.process PARENT PIPE BEAT [FOLDER]`.

Begins to import torch, and reads a line from its input: a folder with the file of its plan. It then
runs the plan for the client at the endpoint in that folder (`Worker`), and sends a sign of life to
the pipe every BEAT seconds. It ends as the worker does, after reporting a fatal error, or when its
input ends without a plan.

With the FOLDER of its temporary files it is to be confined (`--sandbox`): then it imports nothing
before it has its plan, because threads and files that are open would stay as they are.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from inferno.host import load_torch_library, sleep_at_barriers

if TYPE_CHECKING:
    from inferno.catalog import Catalog


def main() -> None:
    sleep_at_barriers()
    # Both may go to the whole process group (Ctrl-C, a service manager): the client drains, then
    # sends a stop message.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    gc.disable()  # loading makes a million objects, and they stay
    imports = _Imports(name="inferno imports")
    scratch = sys.argv[4] if len(sys.argv) > 4 else None
    if scratch is None:
        imports.start()
    line = sys.stdin.buffer.readline()
    if not line:  # the parent ended before it had a plan
        os._exit(0)  # whatever the thread is doing
    refused = None
    if scratch is not None:
        refused = _confined(os.fsdecode(line.removesuffix(b"\n")), scratch)
        imports.start()
    import logging
    from pathlib import Path

    import zmq

    from inferno.process import protocol
    from inferno.process.heartbeat import Heart
    from inferno.process.launch import ENDPOINT, PLAN
    from inferno.process.worker import ToClient, Worker

    parent, pipe, beat = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    folder = Path(os.fsdecode(line.removesuffix(b"\n")))
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.setsockopt(zmq.RECONNECT_IVL, 5)  # ms: the client may open the endpoint later
    socket.connect(f"ipc://{folder / ENDPOINT}")
    to_client = ToClient(socket)
    logging.getLogger("inferno").addHandler(to_client)
    logging.getLogger("inferno").setLevel(logging.INFO)
    try:
        if refused is not None:
            raise refused
        worker = Worker(socket, parent, Heart(pipe, beat), to_client.send_waiting)
        worker.run(folder / PLAN, imports.catalog, imports.join)
    except Exception as caught:
        error: BaseException = caught
        if scratch is not None:
            from inferno.process.confined import explained

            error = explained(caught)
        socket.setsockopt(zmq.LINGER, 30_000 if os.getppid() == parent else 0)
        socket.send_multipart([protocol.FAILED, protocol.encode(protocol.Failure.of(error))])
    finally:
        to_client.send_waiting()
        socket.close()
        context.term()


def _confined(folder: str, scratch: str) -> Exception | None:
    """Confine this process as the plan says. Returns the error if that fails: it is reported over a
    socket, which has threads."""
    from inferno.images.pixels import folder_of
    from inferno.plan import plan_from_json
    from inferno.process.confined import confine
    from inferno.process.launch import PLAN

    try:
        with open(os.path.join(folder, PLAN), "rb") as file:
            plan = plan_from_json(file.read())
        assert plan.sandbox is not None, "`launch` sees to it"
        reads = [folder, str(folder_of(os.getppid()))] if plan.media else [folder]
        confine(plan, reads=reads, writes=[scratch, *plan.sandbox.writes])
    except Exception as error:
        return error
    return None


class _Imports(threading.Thread):
    """Imports what runs any plan, torch included. If that fails, the worker fails in the same
    way."""

    catalog: Catalog | None = None
    """The installed plugins, once they are imported."""

    def run(self) -> None:
        with suppress(Exception):
            library = load_torch_library()
            self.catalog = import_python()
            if library is not None:
                library.join()
            import inferno.process.worker  # noqa: F401  # zmq

            import_engine()


def import_python() -> Catalog:
    """Import what needs neither torch nor numpy, and the plugins."""
    from inferno.catalog import load_catalog

    return load_catalog()


def import_engine() -> None:
    """Import the rest."""
    import inferno.core.engine
    import inferno.core.runner
    import inferno.weights.loading
    import inferno.weights.measure  # noqa: F401


if __name__ == "__main__":
    main()
