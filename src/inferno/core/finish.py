"""Turns the tokens that a step drew into outputs, up to the one that ends the request."""

from __future__ import annotations

from inferno.core.types import Sampled, Sequence
from inferno.requests import EngineOutput, FinishReason, Request


def outputs_of(
    sequence: Sequence,
    sampled: Sampled,
    index: int,
    num_drafts: int,
    num_accepted: int,
    max_model_len: int,
) -> list[EngineOutput]:
    """Return the outputs of the sequence's latest tokens: those from `index` on in `sampled`, which
    have been appended to it. Tokens after the end are dropped."""
    first = len(sequence.token_ids) - 1 - num_accepted
    outputs: list[EngineOutput] = []
    for offset in range(1 + num_accepted):
        output = output_of(sequence, first + offset, sampled, index + offset, max_model_len)
        outputs.append(output)
        if output.finish is not None:
            break
    outputs[0].num_drafts, outputs[0].num_accepted = num_drafts, len(outputs) - 1
    return outputs


def output_of(
    sequence: Sequence, position: int, sampled: Sampled, index: int, max_model_len: int
) -> EngineOutput:
    """Return the output of the token at a position of the sequence: token `index` of `sampled`."""
    request, token_id = sequence.request, sequence.token_ids[position]
    generated = position + 1 - len(request.token_ids)
    finish = finish_of(request, token_id, generated, position + 1 >= max_model_len)
    output = EngineOutput(
        request.id,
        token_id,
        finish,
        None if finish is None else _stop_id(request, token_id, finish),
        sampled.logprobs.get(index) if sampled.logprobs else None,
    )
    if generated == 1:
        output.num_cached, output.queue_seconds = sequence.num_cached or 0, sequence.waited
        output.prompt_logprobs = sampled.prompt_logprobs.get(sequence.held_row)
    return output


def embedding_of(sequence: Sequence, embedding: tuple[float, ...]) -> EngineOutput:
    """Return the only output of a request that pools."""
    cached = sequence.num_cached or 0
    request_id, stop = sequence.request.id, FinishReason.STOP
    return EngineOutput(request_id, None, stop, num_cached=cached, embedding=embedding)


def finish_of(
    request: Request, token_id: int, generated: int, is_full: bool
) -> FinishReason | None:
    """Return why a request ends with its latest token, its `generated`-th; None if it goes on."""
    params = request.params
    if generated >= params.min_tokens and (
        token_id in request.eos_token_ids or token_id in params.stop_token_ids
    ):
        return FinishReason.STOP
    if is_full or generated == params.max_tokens:
        return FinishReason.LENGTH
    return None


def _stop_id(request: Request, token_id: int, finish: FinishReason) -> int | None:
    """Return the entry of `stop_token_ids` that ended a request; None for the model's own end."""
    own = finish is not FinishReason.STOP or token_id in request.eos_token_ids
    return None if own else token_id
