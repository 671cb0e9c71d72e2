"""Process groups of trainers, in which the server has a rank that receives weights."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field
from litestar import Request

from inferno.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

JOIN_SECONDS = 300.0
"""A group that is not complete by then is given up."""
RECEIVE_SECONDS = 600.0
"""So long may a call's tensors take."""
_START = "Start the trainer's side of the group, then POST /init_weights_update_group again."


@define(eq=False)
class WeightGroup:
    """A rank of a trainer's process group, in a process beside the server."""

    name: str
    process: asyncio.subprocess.Process
    version: str | None = None
    """Of the weights that were received and are not loaded yet."""
    num_received: int = 0
    """Those tensors."""

    @classmethod
    async def join(cls, name: str, place: Mapping[str, Any]) -> WeightGroup:
        """Start the process, and meet the trainer's ranks. Raises RequestError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inferno_sglang.receiver"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        group = cls(name, process)
        message = {"action": "join", "group_name": name, "seconds": JOIN_SECONDS, **place}
        await group._ask(message, 2 * JOIN_SECONDS)
        return group

    async def receive(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]], version: str | None
    ) -> None:
        """Receive tensors that the trainer sends. Raises RequestError."""
        message = {"action": "receive", "names": names, "dtypes": dtypes, "shapes": shapes}
        await self._ask(message, RECEIVE_SECONDS)
        self.num_received += len(names)
        self.version = version

    async def load(self, llm: AsyncLLM, mode: str) -> str:
        """Let a model have the weights that were received. Returns their version. Raises as
        `AsyncLLM.update_weights`, and RequestError."""
        path = await self._ask({"action": "write", "folder": llm.scratch}, RECEIVE_SECONDS)
        version, self.version, self.num_received = self.version, None, 0
        return await llm.update_weights(path, version=version, mode=mode, temporary=True)

    async def _ask(self, message: Mapping[str, Any], seconds: float) -> str:
        """Return the process's answer. If there is none in time, or the caller waits no longer, or
        the group is broken, the process ends: its next answer would be to an earlier message."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None, "both are pipes"
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            line = await asyncio.wait_for(stdout.readline(), seconds)
            if not line:
                raise EngineDeadError(
                    "the process that receives weights has ended", "See the log, and join again."
                )
            answer = json.loads(line)
            if "cause" in answer:
                cause = f"the process group {self.name[:80]!r}: {answer['cause']}"
                raise RequestError(cause, answer.get("remedy", _START), param="group_name")
            return str(answer["path"])
        except TimeoutError as error:
            await self.close()
            raise RequestError(
                f"the trainer sent nothing for {seconds:.0f} seconds", _START
            ) from error
        except BaseException:
            await self.close()
            raise

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def close(self) -> None:
        """End the process, and with it what it has received."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@define(eq=False)
class WeightGroups:
    """The server's process groups. One at a time is changed, or receives weights."""

    turns: asyncio.Lock = field(factory=asyncio.Lock)
    by_name: dict[str, WeightGroup] = field(factory=dict)

    def named(self, name: str) -> WeightGroup:
        """Return a group. Raises RequestError."""
        group = self.by_name.get(name)
        if group is None or not group.alive:
            raise RequestError(
                f"there is no process group {name[:80]!r}",
                "POST /init_weights_update_group first.",
                param="group_name",
            )
        return group

    async def join(self, name: str, place: Mapping[str, Any]) -> None:
        """Join a group, in place of one that had its name. Raises RequestError."""
        async with self.turns:
            if (former := self.by_name.pop(name, None)) is not None:
                await former.close()
            self.by_name[name] = await WeightGroup.join(name, place)

    async def leave(self, name: str) -> None:
        """Leave a group. Raises RequestError if weights of it are not loaded yet."""
        async with self.turns:
            group = self.named(name)
            if group.num_received:
                raise RequestError(
                    f"{group.num_received} tensors that were received are not loaded yet",
                    "POST /continue_generation or /flush_cache first: either loads them.",
                    param="group_name",
                )
            del self.by_name[name]
            await group.close()

    async def load(self, llm: AsyncLLM, mode: str = "wait") -> None:
        """Let the model have all weights that were received. Raises as `WeightGroup.load`."""
        async with self.turns:
            for group in self.by_name.values():
                if group.num_received and group.alive:
                    await group.load(llm, mode)


def groups_of(request: Request[Any, Any, Any]) -> WeightGroups:
    """Return the server's."""
    state = request.app.state
    if "sglang_groups" not in state:
        state["sglang_groups"] = WeightGroups()
    groups: WeightGroups = state["sglang_groups"]
    return groups
