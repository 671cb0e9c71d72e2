"""The built-in plugin, registered through the same hooks as any other. Imports no torch."""

from __future__ import annotations

from functools import partial

from inferno import hookimpl
from inferno.builtin import int_groups
from inferno.builtin.sources import HUB, LOCAL
from inferno.contracts import (
    AttentionBackend,
    CachePolicy,
    ChatFormat,
    CheckpointFormat,
    Executor,
    IntLayout,
    LogitsProcessor,
    Proposer,
    QuantScheme,
    QueuePolicy,
    RequestField,
    Source,
    Writer,
)
from inferno.contracts.layouts import GROUPS


@hookimpl
def inferno_checkpoint_formats() -> list[CheckpointFormat]:
    return [
        CheckpointFormat(
            name="safetensors",
            matches="inferno.builtin.safetensors:matches",
            open="inferno.builtin.safetensors:SafetensorsCheckpoint.open",
        )
    ]


@hookimpl
def inferno_quant_schemes() -> list[QuantScheme]:
    return [
        QuantScheme(
            name="dense",
            refuses="inferno.builtin.dense:refuses",
            holds="inferno.builtin.dense:holds",
            load="inferno.builtin.dense:load",
        ),
        *(_int_groups(group) for group in GROUPS),
    ]


def _int_groups(group: int) -> QuantScheme:
    layout = IntLayout(bits=4, group=group).name
    return QuantScheme(
        name=layout,
        refuses="inferno.builtin.int_groups:refuses",
        load="inferno.builtin.int_groups:load",
        holds=int_groups.holds,
        pack=partial(int_groups.pack, group),
        packs=partial(int_groups.packs, group),
        layout=layout,
        weighted=True,
        instead=tuple(IntLayout(bits=4, group=each).name for each in GROUPS if each < group),
        spellings=("int4",) if group == GROUPS[0] else (),
    )


@hookimpl
def inferno_attention_backends() -> list[AttentionBackend]:
    return [
        AttentionBackend(
            name="torch",
            refuses="inferno.builtin.torch_cache:refuses",
            build="inferno.builtin.torch_whole:attend_of",
            cache="inferno.builtin.torch_cache:layout",
            features=frozenset(
                {
                    "sliding_window",
                    "soft_cap",
                    "value_dim",
                    "latent_dim",
                    "sinks",
                    "bidirectional",
                    "batch_invariant",
                    "index",
                    "cache_dtype",
                    "waves",
                }
            ),
            layout="token-major",
            priority=-10,  # the reference: works everywhere, chosen if all faster ones refuse
        )
    ]


@hookimpl
def inferno_cache_policies() -> list[CachePolicy]:
    return [
        CachePolicy(name="lru", build="inferno.builtin.lru:LRUPrefixCache", priority=0),
        CachePolicy(name="none", build=lambda num_blocks: None, priority=-10),
    ]


@hookimpl
def inferno_queue_policies() -> list[QueuePolicy]:
    return [QueuePolicy(name="first-come", build="inferno.builtin.first_come:FirstCome")]


@hookimpl
def inferno_proposers() -> list[Proposer]:
    return [
        Proposer(name="ngram", build="inferno.builtin.ngram:NgramDrafter"),
        Proposer(
            name="draft",
            build="inferno.builtin.draft_model:DraftModelDrafter",
            needs="model",
            num_drafts=4,
            cost=0.1,
        ),
        Proposer(
            name="mtp",
            build="inferno.builtin.mtp:MTPDrafter",
            needs="mtp",
            num_drafts=3,
            cost=0.05,
        ),
    ]


@hookimpl
def inferno_chat_formats() -> list[ChatFormat]:
    return [
        ChatFormat(
            name="response-template",
            matches="inferno.builtin.response_template:matches",
            build="inferno.builtin.response_template:build",
            models="checkpoints whose `tokenizer_config.json` describes the format",
            priority=100,  # the checkpoint's own word
        )
    ]


@hookimpl
def inferno_executors() -> list[Executor]:
    return [
        Executor(
            name="processes",
            start="inferno.builtin.processes:ChildProcess.start",
            refuses="inferno.builtin.processes:refuses",
            inherits=True,
        ),
        Executor(name="environment", machines="inferno.builtin.environment:machines"),
    ]


@hookimpl
def inferno_sources() -> list[Source]:
    return [LOCAL, HUB]


@hookimpl
def inferno_writers() -> list[Writer]:
    return [Writer(name="safetensors", describe="a Hugging Face folder with dense matrices")]


@hookimpl
def inferno_logits_processors() -> list[LogitsProcessor]:
    return [
        LogitsProcessor(
            name="no_repeat_ngram",
            build="inferno.builtin.no_repeat:build",
            check="inferno.builtin.no_repeat:check",
            help="No sequence of `size` tokens appears twice in prompt and output together.",
        )
    ]


@hookimpl
def inferno_request_fields() -> list[RequestField]:
    return [
        RequestField(
            name="no_repeat_ngram_size",
            type="integer",
            minimum=1,
            maximum=1024,
            apply="inferno.builtin.no_repeat:apply",
            help="No sequence of this many tokens appears twice, as in transformers.",
        )
    ]
