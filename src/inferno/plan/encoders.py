"""Encoders: models whose attention is bidirectional. Each prompt is computed whole, in one step;
nothing is cached, and nothing is generated."""

from __future__ import annotations

from attrs import fields

from inferno.contracts import AttentionSpec, ModelConfig
from inferno.errors import CheckpointError, OptionError
from inferno.plan.decided import Decided
from inferno.plan.options import Options

_NO_CACHE = (
    "cpu_mem_fold",
    "decode_with",
    "kv_cache_dtype",
    "kv_events",
    "kv_store",
    "prefill_for",
    "session_quota",
    "session_ttl",
    "speculative",
)
"""Options about a cache, or about what is generated."""
NOTE = (
    "an encoder: every token attends to its whole prompt, which is computed in one step; nothing "
    "is cached, and no text is generated"
)


def is_encoder(model: ModelConfig) -> bool:
    """Return whether a model's layers are bidirectional. Raises CheckpointError if only some
    are."""
    flags = {isinstance(s, AttentionSpec) and s.bidirectional for s in model.cache_specs()}
    if len(flags) > 1:
        raise CheckpointError(
            "some of the model's layers are bidirectional, and others are not",
            "inferno cannot run it: choose another model.",
        )
    return flags == {True}


def check_options(options: Options) -> None:
    """Refuse options that an encoder has no use for. Raises OptionError."""
    usual = {each.name: each.default for each in fields(Options)}
    names = [name for name in _NO_CACHE if getattr(options, name) != usual[name]]
    if options.cache_policy not in ("auto", "none"):
        names.append("cache_policy")
    if names:
        raise OptionError(
            f"this model is an encoder, which caches nothing and generates nothing: "
            f"{', '.join(names)} would do nothing",
            "Leave it out." if len(names) == 1 else "Leave them out.",
        )


def longest_prompt(options: Options, longest: int, declared: int | None) -> Decided[int]:
    """Return the most tokens of a prompt, if the model takes `longest` and its checkpoint declares
    a limit: a step must hold it. Raises OptionError."""
    step, wanted = options.max_num_batched_tokens, options.max_model_len
    if wanted is not None and wanted > step:
        raise OptionError(
            f"max_model_len {wanted} exceeds max_num_batched_tokens {step}, and this model "
            "computes prompts whole, in one step",
            f"Raise --max-num-batched-tokens to {wanted}, or lower --max-model-len.",
        )
    if wanted is not None:
        return Decided(wanted)
    usual = min(longest, declared or longest)
    if usual > step:
        note = f"as steps have: --max-num-batched-tokens {usual} takes {usual}"
        return Decided(step, notes=(f"prompts have at most {step} tokens, {note}",))
    if usual < longest:
        note = f"as its max_seq_length says: --max-model-len {longest} takes all of its positions"
        return Decided(usual, notes=(f"prompts have at most {usual} tokens, {note}",))
    return Decided(usual)
