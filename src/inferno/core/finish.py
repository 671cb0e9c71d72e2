"""Turns the tokens that a step drew into outputs, up to one that ends the request."""

from __future__ import annotations

from inferno.core.types import EngineOutput, FinishReason, Request, Sampled, Sequence


def outputs_of(
    sequence: Sequence, sampled: Sampled, index: int, num_accepted: int, max_model_len: int
) -> list[EngineOutput]:
    """Return the outputs of the sequence's latest tokens: those from `index` on in `sampled`, which
    have been appended to it. Tokens after the end are dropped."""
    request, token_ids = sequence.request, sequence.token_ids
    row, first = sequence.held_row, len(token_ids) - 1 - num_accepted
    logprobs, prompt_logprobs = sampled.logprobs, sampled.prompt_logprobs
    outputs: list[EngineOutput] = []
    for position in range(first, len(token_ids)):
        token_id, generated = token_ids[position], position + 1 - len(request.token_ids)
        finish = finish_of(request, token_id, generated, position + 1 >= max_model_len)
        outputs.append(
            EngineOutput(
                request.id,
                token_id,
                finish,
                None if finish is None else _stop_id(request, token_id, finish),
                logprobs.get(index + position - first) if logprobs else None,
                prompt_logprobs.get(row) if prompt_logprobs and generated == 1 else None,
                sequence.num_cached or 0 if generated == 1 else 0,
            )
        )
        if finish is not None:
            break
    return outputs


def finish_of(
    request: Request, token_id: int, generated: int, is_full: bool
) -> FinishReason | None:
    """Return why a request ends with its latest token, the `generated`-th; None if it goes on."""
    params = request.params
    if generated >= params.min_tokens and (
        token_id in request.eos_token_ids or token_id in params.stop_token_ids
    ):
        return FinishReason.STOP
    if is_full or generated == params.max_tokens:
        return FinishReason.LENGTH
    return None


def _stop_id(request: Request, token_id: int, finish: FinishReason) -> int | None:
    """The entry of `stop_token_ids` that ended a request: none for the model's own end token."""
    own = finish is not FinishReason.STOP or token_id in request.eos_token_ids
    return None if own else token_id
