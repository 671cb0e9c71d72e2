"""What an operator has an engine process do between two steps. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from inferno.llm.client import Client
from inferno.llm.weights import Weights, send_update, woken_wholly
from inferno.process.protocol import Control
from inferno.request.requests import pause_mode, sleep_level


class Controls:
    """A part of `AsyncLLM`: sleep, pauses, other weights."""

    _client: Client

    @property
    def is_sleeping(self) -> bool:
        """Whether `sleep` was called, and not yet `wake_up`."""
        return self._client.asleep

    @property
    def weight_version(self) -> str:
        """The version of the weights that it computes with now."""
        return self._client.weight_version

    async def sleep(self, level: int = 1, *, mode: str = "wait") -> None:
        """Give memory back, like `LLM.sleep`. An engine process that ends meanwhile is restarted,
        awake."""
        level, chosen = sleep_level(level), pause_mode(mode)
        await self._client.control(Control(action="sleep", level=level, mode=chosen))

    async def wake_up(self, tags: Collection[str] | None = None) -> None:
        """Have the memory again, like `LLM.wake_up`."""
        await self._client.control(Control(action="wake_up", cache=woken_wholly(tags)))

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and not yet `resume`."""
        return self._client.paused

    async def pause(self, mode: str = "wait") -> None:
        """Compute nothing until `resume`. Requests that run end before it ("wait"), go on after it
        ("keep"), or end now ("abort"); those that come meanwhile wait for it. Weights may be
        updated meanwhile. An engine process that ends is restarted without a pause."""
        await self._client.control(Control(action="pause", mode=pause_mode(mode)))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._client.control(Control(action="resume"))

    async def reset_prefix_cache(self) -> None:
        """Forget what memory has of earlier prompts. Requests go on: their own tokens are computed
        again. What a store has stays: it is of the same weights."""
        await self._client.control(Control(action="reset_prefix_cache"))

    @property
    def scratch(self) -> str | None:
        """The folder where a confined engine process reads files that are written for it; None
        where it may read any."""
        return self._client.scratch

    async def update_weights(
        self,
        weights: Weights,
        *,
        version: str | None = None,
        mode: str = "wait",
        temporary: bool = False,
    ) -> str:
        """Replace weights, like `LLM.update_weights`. Another process has the checkpoint's. A
        `temporary` file is deleted, however the update ends; a confined engine needs it in
        `scratch`."""
        await send_update(self._client, weights, version, mode, temporary=temporary)
        return self._client.weight_version
