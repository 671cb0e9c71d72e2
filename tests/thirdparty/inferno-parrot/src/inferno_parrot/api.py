from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from attrs import define, frozen
from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.params import JSONBody

from inferno.server.api import (
    Api,
    Choice,
    CompletionRequest,
    Field,
    Models,
    Parsed,
    Shape,
    honoured,
    post_body,
    prepare_text,
)


@frozen(kw_only=True)
class ParrotRequest:
    """The body of POST /parrot/generate."""

    path: ClassVar[str] = "/parrot/generate"
    rows: ClassVar[tuple[Field, ...]] = (
        *honoured(inputs="The prompt.", max_new_tokens="Maximum number of tokens."),
        Field("details", "accepted", "There are none.", harmless=(False,)),
        Field("best_of", "refused", "Ask again."),
    )

    inputs: str
    max_new_tokens: int | None = None


@define
class ParrotChoice(Choice):
    text: str = ""

    def take(self, delta: Any) -> None:
        super().take(delta)
        self.text += delta.text


class ParrotShape(Shape[ParrotChoice]):
    def __init__(self) -> None:
        self.choices = [ParrotChoice(0)]

    def update(self, choice: ParrotChoice) -> Iterable[bytes]:
        return ()

    def end(self) -> Iterable[bytes]:
        return ()

    def whole(self) -> dict[str, Any]:
        ignored = list(self.generation.prepared.ignored)
        return {"generated_text": self.choices[0].text, "ignored": ignored}


@post_body(ParrotRequest)
async def generate(
    data: JSONBody[Parsed[ParrotRequest]],
    request: Request[Any, Any, Any],
    models: NamedDependency[Models],
) -> Response[Any]:
    """Continue a prompt."""
    body = data.body
    model = await models.find(None)
    text = CompletionRequest(prompt=body.inputs, max_tokens=body.max_new_tokens, temperature=0)
    prepared, _ = await prepare_text(Parsed(text, data.ignored), model)
    return await model.pipeline.respond(prepared, ParrotShape(), request.receive)


def failed(status: int, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    return {"error": body["error"]["message"], "error_type": body["error"]["type"]}


API = Api(handlers=(generate,), bodies=(ParrotRequest,), error=failed)
