"""Turns the tokens that a step drew into outputs, up to the one that ends the request."""

from __future__ import annotations

from inferno.core.types import Sampled, Sequence
from inferno.request.requests import EngineOutput, FinishReason


def outputs_of(
    sequence: Sequence, sampled: Sampled, index: int, num_drafts: int, num_accepted: int
) -> list[EngineOutput]:
    """Return the outputs of the sequence's latest tokens: those from `index` on in `sampled`, which
    have been appended to it. Tokens after the end are dropped."""
    first = len(sequence.token_ids) - 1 - num_accepted
    outputs: list[EngineOutput] = []
    for offset in range(1 + num_accepted):
        output = output_of(sequence, first + offset, sampled, index + offset)
        outputs.append(output)
        if output.finish is not None:
            break
    outputs[0].num_drafts, outputs[0].num_accepted = num_drafts, len(outputs) - 1
    return outputs


def output_of(sequence: Sequence, position: int, sampled: Sampled, index: int) -> EngineOutput:
    """Return the output of the token at a position of the sequence: token `index` of `sampled`."""
    request, token_id = sequence.request, sequence.token_ids[position]
    generated = position + 1 - len(request.token_ids)
    finish = _finish_of(sequence, position)
    output = EngineOutput(
        request.id,
        token_id,
        finish,
        None if finish is None else request.stop_id(token_id, finish),
        sampled.logprobs.get(index) if sampled.logprobs else None,
    )
    if generated == 1 + sequence.num_given:  # the first one that this engine has drawn
        output.num_cached, output.queue_seconds = sequence.num_cached or 0, sequence.waited
        output.num_remote = min(sequence.num_remote, sequence.num_stored)
        output.num_disk = min(sequence.num_far, sequence.num_stored - output.num_remote)
        output.num_host = sequence.num_stored - output.num_disk - output.num_remote
        output.prompt_logprobs = sampled.prompt_logprobs.get(sequence.held_row)
    return output


def embedding_of(sequence: Sequence, embedding: tuple[float, ...]) -> EngineOutput:
    """Return the only output of a request that pools."""
    cached = sequence.num_cached or 0
    request_id, stop = sequence.request.id, FinishReason.STOP
    return EngineOutput(request_id, None, stop, num_cached=cached, embedding=embedding)


def _finish_of(sequence: Sequence, position: int) -> FinishReason | None:
    """Return why a sequence ends with the token at a position; None if it goes on."""
    request, length = sequence.request, position + 1
    is_long_enough = length - len(request.token_ids) >= request.params.min_tokens
    if is_long_enough and sequence.token_ids[position] in sequence.end_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if length >= sequence.limit else None
