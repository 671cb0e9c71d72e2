"""What clients may ask about their own requests: usage, and what the prefix cache held."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from inferno.errors import NotFoundError
from inferno.server.access.keys import owner_of
from inferno.server.access.usage import Used
from inferno.server.hosting.models import Models
from inferno.server.observe.prompt_history import explain


@get("/v1/usage", sync_to_thread=False)
def usage(
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
    session_id: FromQuery[str | None] = None,
) -> dict[str, Any]:
    """Report what the client's key has used since the server started, in total or in one
    session."""
    owner, total, by_model = owner_of(request), Used(), {}
    for model in models.served:
        used = model.pipeline.memory.usage.of(owner, session_id)
        if used is not None:
            by_model[model.names[0]] = used.body()
            total.add(used)
    body: dict[str, Any] = {"object": "usage", **total.body(), "models": by_model}
    return body | ({"session_id": session_id} if session_id is not None else {})


@get("/v1/debug/cache/{name:str}")
async def debug_cache(
    name: FromPath[str], request: Request[Any, Any, Any], models: NamedDependency[Models]
) -> Response[Any]:
    """Explain what the prefix cache held of a request: the closest earlier prompt of the same key,
    and the first token that differs."""
    owner = owner_of(request)
    for model in models.served:
        memory = model.pipeline.memory
        seen = memory.history.find(name, owner)
        if seen is not None:
            earlier, block_size = memory.history.before(seen), model.llm.plan.block_size
            body = await asyncio.to_thread(explain, seen, earlier, model.tokenizer, block_size)
            return Response({"model": model.names[0], **body}, media_type="application/json")
    raise NotFoundError(
        f"no request {name[:80]!r} of this key is remembered",
        "Use the id of a recent answer: --prompt-history sets how many are remembered.",
    )


HANDLERS = (usage, debug_cache)
