"""Lets the constraints of requests accept what was drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferno.constraints.constraint import Constraint
from inferno.errors import GrammarFailedError
from inferno.request.requests import EngineOutput, FinishReason


class Queue(Protocol):
    """What is told of the requests that a constraint ends, or whose next tokens it knows."""

    def abort(self, request_id: str) -> object: ...
    def suggest(self, request_id: str, token_ids: Sequence[int]) -> None: ...


def follow(
    held: dict[str, Constraint], outputs: list[EngineOutput], queue: Queue
) -> list[EngineOutput]:
    """Let the constraints, by request id, accept the outputs. One that is complete ends its
    request, and so does one with an error. The request's later outputs are dropped."""
    if not held:
        return outputs
    accepted, ended = list[EngineOutput](), set[str]()
    for output in outputs:
        request_id, constraint = output.request_id, held.get(output.request_id)
        if request_id in ended:
            continue
        if output.finish is FinishReason.ERROR:
            constraint = None
        if error := _advance(constraint, output) if constraint else "":
            output = EngineOutput.failed(request_id, GrammarFailedError(error))
        elif constraint and constraint.is_done and output.finish is not FinishReason.STOP:
            if constraint.ends(output.token_id):  # with `ignore_eos`, or before `min_tokens`
                output.finish = FinishReason.STOP
            else:
                output.finish = None  # its token is part of the text
                accepted.append(output)
                output = EngineOutput(request_id, None, FinishReason.STOP)
        if output.finish is not None:
            ended.add(request_id)
            queue.abort(request_id)
            held.pop(request_id, None)
        accepted.append(output)
    for request_id in {output.request_id for output in accepted} - ended:
        if (constraint := held.get(request_id)) is not None:
            queue.suggest(request_id, constraint.forced())
    return accepted


def _advance(constraint: Constraint, output: EngineOutput) -> str:
    """Let a constraint accept a drawn token, unless it ended the request. Returns the error, or an
    empty string."""
    if constraint.error or output.token_id is None or output.finish is FinishReason.STOP:
        return constraint.error
    if constraint.accept(output.token_id):
        return ""
    return constraint.error or "a token was drawn that the grammar does not allow"
