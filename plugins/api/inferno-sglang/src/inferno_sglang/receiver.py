"""The process that receives weights: `python -m inferno_sglang.receiver`.

It is a rank of a trainer's process group (`torch.distributed`), so that the server imports no torch
and outlives a group that hangs. It answers each line of JSON on its input with one on its output,
and ends when its input does, whatever it waits for.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field

from inferno.errors import InfernoError, RequestError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@define(eq=False)
class Receiver:
    """A rank of a process group, and the tensors that it has received."""

    device: str
    """Where the group's tensors are: NCCL's are on a GPU."""
    group: ProcessGroup
    tensors: dict[str, Tensor] = field(factory=dict)

    @classmethod
    def join(
        cls,
        *,
        address: str,
        port: int,
        rank: int,
        world_size: int,
        group_name: str,
        backend: str,
        device: str,
        seconds: float,
    ) -> Receiver:
        """Join the group of a trainer that listens at an address. Raises RequestError, and what
        torch does if nobody is listening within `seconds`."""
        import torch
        from torch.distributed.distributed_c10d import _new_process_group_helper

        distributed: Any = torch.distributed  # not all of it is in its stubs

        if backend not in ("gloo", "nccl"):
            raise RequestError(f"the backend is {backend[:80]!r}", "It is gloo or nccl.")
        if backend == "nccl" and not (
            torch.cuda.is_available() and distributed.is_nccl_available()
        ):
            raise RequestError(
                "NCCL is for NVIDIA GPUs, and there is none here", 'Send "backend": "gloo".'
            )
        limit = timedelta(seconds=seconds)
        store = distributed.TCPStore(address, port, world_size, is_master=False, timeout=limit)
        # Trainers build a group beside their own out of the same function of torch, as
        # `init_process_group` builds one only, and the keys by which ranks meet have its name.
        prefixed, named = distributed.PrefixStore(group_name, store), cast(Any, group_name)
        made: Any = _new_process_group_helper(
            world_size,
            rank,
            [],
            distributed.Backend(backend),
            prefixed,
            group_name=named,
            timeout=limit,
        )
        return cls(device if backend == "nccl" else "cpu", made[0])

    def receive(
        self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
    ) -> None:
        """Receive tensors that rank 0 sends to all, one after the other."""
        import torch

        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            tensor = torch.empty(*shape, dtype=getattr(torch, dtype), device=self.device)
            self.group.broadcast(tensor, root=0).wait()
            self.tensors[name] = tensor.cpu()

    def write(self, folder: str | None) -> str:
        """Write what was received to a temporary safetensors file, and forget it. Returns the
        path."""
        from inferno.server.api import weights_file

        path, _ = weights_file(self.tensors.items(), folder)
        self.tensors.clear()
        return str(path)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not an answer
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            stop, signal.SIG_IGN
        )  # they go to the whole process group: the server decides
    lines = queue.SimpleQueue[str]()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    receiver: Receiver | None = None
    while True:
        message: dict[str, Any] = json.loads(lines.get())
        action, path = message.pop("action"), ""
        try:
            if action == "join":
                receiver = Receiver.join(**message)
            elif receiver is not None and action == "receive":
                receiver.receive(**message)
            elif receiver is not None and action == "write":
                path = receiver.write(**message)
            answer = {"path": path}
        except InfernoError as error:
            answer = {"cause": error.cause, "remedy": error.remedy}
        except Exception as error:  # torch's, of many kinds
            answer = {"cause": (str(error).splitlines() or [type(error).__name__])[0][:500]}
        print(json.dumps(answer), file=answers, flush=True)


def _read(lines: queue.SimpleQueue[str]) -> None:
    """Pass the input's lines on. At its end the process ends, in the middle of a broadcast too."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
