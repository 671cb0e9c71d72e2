"""What a server does all the time that shares its store: it says that it lives, and stops what it
was told to stop, or what is no longer its own."""

from __future__ import annotations

import asyncio
import time

from inferno.errors import InfernoError
from inferno.server.batches.service import Batches
from inferno.server.responses.running import Running
from inferno.server.responses.store import Store

SECONDS = 1.0
"""Between two: as long as it takes until a response that another server generates is cancelled."""


async def beat(store: Store, running: Running, batches: Batches) -> None:
    """Go on until cancelled."""
    heard_at = time.monotonic()
    while True:
        await asyncio.sleep(SECONDS)
        began = time.monotonic()
        asking = asyncio.ensure_future(store.beat())
        try:
            # A store that is slow to answer must not keep leases from ending in time.
            left = max(0.0, heard_at + store.lease_seconds - began)
            done, _ = await asyncio.wait([asking], timeout=left)
            if not done:
                _lose(running, batches)
            heard = await asking
        except InfernoError:
            if time.monotonic() - heard_at >= store.lease_seconds:
                _lose(running, batches)
            continue
        if not heard.kept:
            _lose(running, batches)
        heard_at = began
        for id in heard.cancelled:
            if (response := running.of_id(id)) is not None:
                response.cancel()
            await batches.stop(id)


def _lose(running: Running, batches: Batches) -> None:
    """Stop what others may have taken over."""
    for response in running.in_background():
        response.discard()
    batches.lose()
