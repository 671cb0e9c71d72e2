"""Renders a plan as text: a few lines at start, everything for `explain`."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import rich_click as click

from inferno import __version__, host
from inferno.cli import machine_rows, tiers
from inferno.cli.adapters import adapter_rows
from inferno.cli.attended import attention_rows, backends
from inferno.cli.embeddings import embedding_rows
from inferno.cli.images import audio_rows, image_rows
from inferno.cli.lines import width_of, wrapped
from inferno.cli.sandbox import sandbox_rows
from inferno.cli.shares import host_rows, rank_rows
from inferno.contracts import COMPUTE_DTYPES, Link

if TYPE_CHECKING:
    from inferno.contracts import Device, TextAssets
    from inferno.plan import AttentionUse, Plan, SchemeUse
    from inferno.plan.store_use import StoreUse
    from inferno.stores.layouts import Survey

_NO_BREAK = "\u00a0"
Row = tuple[str, str, str]
"""Label, decision, and the distribution it comes from."""


def started(plan: Plan, laps: Mapping[str, float]) -> None:
    """Print to stderr what runs, its plugins, its memory and the start-up times."""
    total, stages = (
        sum(laps.values()),
        ", ".join(f"{name} {seconds:.2f}" for name, seconds in laps.items()),
    )
    items = ", ".join(f"{item.name} {host.format_bytes(item.nbytes)}" for item in plan.memory)
    cached = "none" if plan.whole_prompts else f"{plan.cache_policy}, {plan.kv_tokens} tokens"
    rows = [
        (
            "model",
            f"{plan.architecture}, {plan.dtype} on {plan.device.torch_name}",
            _origin(plan, "architecture"),
        ),
        *_scheme_rows(plan),
        *_override_rows(plan),
        *rank_rows(plan, _origin(plan, "executor")),
        *host_rows(plan),
        *_kernel_rows(plan),
        (
            "attention",
            ", ".join(dict.fromkeys(map(backends, plan.attention))),
            _origin(plan, "attention"),
        ),
        *_speculation_rows(plan),
        *image_rows(plan, _origin(plan, "architecture")),
        *audio_rows(plan, _origin(plan, "architecture")),
        *adapter_rows(plan, _origin),
        ("cache", cached, _origin(plan, "cache policy")),
        *sandbox_rows(plan, _origin(plan, "sandbox")),
        ("memory", items, ""),
        *_measured_rows(plan),
        ("start", f"{total:.2f} s: {stages}", ""),
        *(("note", note, "") for note in plan.notes),
    ]
    click.echo(f"inferno {__version__} runs {click.style(plan.model_id, bold=True)}", err=True)
    click.echo(_table(rows, width_of(sys.stderr)), err=True)


def _measured_rows(plan: Plan) -> Iterable[Row]:
    if plan.measured is not None:
        yield "measured", f"{host.format_bytes(plan.measured.used)}: {_measured(plan)}", ""


def explained(plan: Plan, assets: TextAssets | None = None, survey: Survey | None = None) -> str:
    """The whole plan: decisions, memory, and why nothing else was chosen. With `assets`, how the
    checkpoint is sampled by default too, and what its embeddings are; with a `survey`, what its
    store's folder has."""
    of_one = " of an engine" if plan.engines is not None else ""
    of_one = " of a rank" if plan.ranks is not None else of_one
    rows = [] if assets is None else [*embedding_rows(plan, assets)]
    rows += [] if assets is None or plan.whole_prompts else _sampling_rows(assets)
    columns = width_of(sys.stdout)
    parts = [
        _section(f"{plan.ref}", _table([*_decisions(plan), *rows], columns)),
        _section(
            f"Memory{of_one}, of {host.format_bytes(plan.memory_limit)}",
            _table(_memory_rows(plan), columns),
        ),
    ]
    if (machines := machine_rows.section(plan)) is not None:
        parts.append(_section(machines[0], _table(machines[1], columns)))
    for title, rows in tiers.sections(plan, survey):
        parts.append(_section(title, _table(rows, columns)))
    if plan.notes:
        parts.append(_section("Notes", "\n".join(f"  {note}" for note in plan.notes)))
    refusals = [(refusal.name, refusal.reason, refusal.distribution) for refusal in plan.considered]
    parts.append(
        _section(
            "Not chosen",
            _table(refusals, columns) if refusals else "  nothing: there was no other candidate",
        )
    )
    return "\n\n".join(parts)


def _decisions(plan: Plan) -> list[Row]:
    limits = f"{plan.max_num_seqs} requests at once, {plan.max_num_batched_tokens} tokens in a step"
    if plan.max_step_time and not plan.whole_prompts:
        limits += f", {plan.max_step_time:g} s while a stream waits"
    return [
        ("source", _source(plan), _origin(plan, "source")),
        ("architecture", plan.architecture, _origin(plan, "architecture")),
        ("format", plan.format, _origin(plan, "format")),
        *_scheme_rows(plan, classes=True),
        *_override_rows(plan),
        *_in_situ_rows(plan),
        ("compute", f"{plan.dtype} on {plan.device.torch_name}", ""),
        ("device", _device(plan.device), ""),
        *rank_rows(plan, _origin(plan, "executor")),
        *host_rows(plan),
        *_kernel_rows(plan),
        *(row for use in plan.attention for row in _attention_rows(plan, use)),
        *_state_rows(plan),
        *_speculation_rows(plan),
        *image_rows(plan, _origin(plan, "architecture")),
        *audio_rows(plan, _origin(plan, "architecture")),
        *adapter_rows(plan, _origin),
        *_capture_rows(plan),
        *_step_rows(plan),
        *_packed_rows(plan),
        *_output_rows(plan),
        ("cache policy", plan.cache_policy, _origin(plan, "cache policy")),
        ("queue policy", plan.queue_policy, _origin(plan, "queue policy")),
        *_store_rows(plan),
        *_event_rows(plan),
        *_session_rows(plan),
        *sandbox_rows(plan, _origin(plan, "sandbox")),
        ("context", f"{plan.max_model_len} tokens", ""),
        ("limits", limits, ""),
    ]


def _store_rows(plan: Plan) -> Iterable[Row]:
    if (store := plan.store) is None:
        return
    if (link := store.link) is not None:
        yield "link", _linked(link, store, plan), _origin(plan, "link")
    if store.name is not None:
        yield "block store", store.name, _origin(plan, "block store")


def _event_rows(plan: Plan) -> Iterable[Row]:
    if (events := plan.events) is None:
        return
    parts = [f"{events.name}: {events.url}"]
    parts += [f"replay at {events.replay}"] if events.replay is not None else []
    parts += [f"topic {events.topic}"] if events.topic is not None else []
    parts += ["each further engine at the next port or name"] if plan.engines is not None else []
    yield "cache events", ", ".join(parts), _origin(plan, "event sink")


def _linked(link: Link, store: StoreUse, plan: Plan) -> str:
    name = store.linked_by
    token = f"{host.format_bytes(round(plan.kv_bytes_per_token))} a token"
    if link.role == "prefill":
        urls = ", ".join(store.addresses())
        return f"{name}: computes prompts for those that connect to {urls}, {token}"
    urls = ", ".join(dict.fromkeys(store.addresses()))
    return (
        f"{name}: prompts from {link.min_tokens} tokens are computed by {urls} if nothing of "
        f"them or all but {link.min_uncached} tokens or more are cached; {token}, "
        f"{link.timeout:g} s at most"
    )


def _session_rows(plan: Plan) -> Iterable[Row]:
    if (use := plan.sessions) is not None:
        text = f"{use.name}: up to {use.quota} tokens of each, {use.ttl:g} s after its last use"
        yield "sessions", text, _origin(plan, "session keeper")


def _source(plan: Plan) -> str:
    came_with = f"{plan.origin.name} {plan.origin.version}, " if plan.origin is not None else ""
    return f"{plan.source}: {came_with}{plan.path}"


def _sampling_rows(assets: TextAssets) -> Iterable[Row]:
    from inferno.llm import defaults

    interactive = defaults.named_values(defaults.interactive_params(assets))
    api = defaults.named_values(defaults.default_params(assets))
    text = f"{_values(interactive)}, as the checkpoint says"
    if difference := {name: value for name, value in interactive.items() if value != api[name]}:
        text = f"{_values(difference)} in the terminal and on the page: the checkpoint names none; "
        text += f"the API's are {_values({name: api[name] for name in difference})}"
    yield "sampling", text, ""


def _values(params: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in params.items())


def _device(device: Device) -> str:
    free, total = host.format_bytes(device.free), host.format_bytes(device.total)
    parts = [device.name] if device.name else []
    parts.append(f"{free} of {total} free")
    if device.capability is not None:
        parts.append("compute capability {}.{}".format(*device.capability))
    if device.shared_memory is not None:
        parts.append(f"{host.format_bytes(device.shared_memory)} of shared memory for a block")
    if device.numa_node is not None:
        parts.append(f"NUMA node {device.numa_node}")
    return ", ".join(parts)


def _scheme_rows(plan: Plan, *, classes: bool = False) -> Iterable[Row]:
    return [
        (
            "weights",
            _scheme(use, plan.dtype, classes),
            _origin(plan, "in-situ scheme" if use.in_situ else "scheme", use.name),
        )
        for use in plan.schemes
    ]


def _scheme(use: SchemeUse, dtype: str, classes: bool) -> str:
    size = host.format_bytes(use.nbytes)
    plain = use.layout == dtype and set(use.stored) <= set(COMPUTE_DTYPES)
    name = use.name if plain or use.layout == use.name else f"{use.name} in {use.layout}"
    how = ", quantized while loading" if use.in_situ else ""
    count = f"{use.count} {'matrix' if use.count == 1 else 'matrices'}"
    text = f"{name}: {count} of {', '.join(use.stored)}{how}, {size}"
    return f"{text} ({', '.join(use.classes)})" if classes else text


def _in_situ_rows(plan: Plan) -> Iterable[Row]:
    for use in plan.isq.uses if plan.isq is not None else ():
        origin = _origin(plan, "in-situ scheme", use.scheme)
        yield "quantized", f"to {use.scheme}, {use.why}: {use.modules}", origin
    if plan.isq is not None and plan.isq.importance is not None:
        yield "importance", plan.isq.importance, ""


def _override_rows(plan: Plan) -> Iterable[Row]:
    for use in plan.overrides:
        by_scheme: dict[str, dict[str, None]] = {}
        for path, scheme in use.schemes.items():
            by_scheme.setdefault(scheme, {})[path.rpartition(".")[2]] = None
        listing = "; ".join(f"{scheme} ({', '.join(each)})" for scheme, each in by_scheme.items())
        taken = f"{use.count} modules{f': {listing}' if listing else ''}"
        yield (
            "override",
            f"{use.pattern} from {use.path}, {taken}",
            _origin(plan, "format", use.format),
        )


def _kernel_rows(plan: Plan) -> Iterable[Row]:
    ops: dict[tuple[str, str], list[str]] = {}
    for use in plan.kernels:
        ops.setdefault((use.name, use.level), []).append(f"{use.op} {use.layout}".rstrip())
    for (name, level), each in ops.items():
        text = f"{name}{f' ({level})' if level else ''}: {', '.join(each)}"
        yield "kernels", text, _origin(plan, "kernels", name)
    if plan.batch_invariant:
        yield "batch-invariant", "the same bits in any batch, chunks, prefix hits, threads", ""
    if plan.onednn:
        yield "kernels", "torch (oneDNN): linear bfloat16", ""


def _capture_rows(plan: Plan) -> Iterable[Row]:
    if (use := plan.capture) is not None:
        origin = _origin(plan, "kernels", use.name)
        yield "decode steps", f"captured by {use.name}, up to {use.sizes[-1]} tokens", origin


def _step_rows(plan: Plan) -> Iterable[Row]:
    if plan.overlap:
        yield "steps", "each is launched before the results of the one before it are known", ""


def _packed_rows(plan: Plan) -> Iterable[Row]:
    if plan.packed_cache is not None:
        limit = host.format_bytes(plan.packed_cache_limit)
        yield "packed weights", f"kept in {plan.packed_cache}, {limit} at most", ""


def _attention_rows(plan: Plan, use: AttentionUse) -> Iterable[Row]:
    origin = _origin(plan, "attention", use.name if use.tokens is None else None)
    return attention_rows(use, plan.block_size, _layers(use.layers), origin)


def _state_rows(plan: Plan) -> Iterable[Row]:
    for use in plan.states:
        tensors = "; ".join(
            f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in use.cache.items()
        )
        yield "states", f"per sequence: {tensors}, {_layers(use.layers)}", ""


def _speculation_rows(plan: Plan) -> Iterable[Row]:
    if (speculation := plan.speculation) is None:
        return
    text = f"{speculation.proposer}: up to {speculation.num_drafts} drafts per step"
    if (draft := speculation.draft) is not None:
        text += f", from {draft.ref} ({draft.architecture}, {draft.dtype})"
    yield "speculation", text, _origin(plan, "proposer")


def _output_rows(plan: Plan) -> Iterable[Row]:
    """How output is held to a grammar and read, unless there is none."""
    if plan.whole_prompts:
        return
    chat = f"{plan.chat_format.name}: {plan.chat_format.why}"
    yield "chat format", chat, _origin(plan, "chat format")
    by_name: dict[str, list[str]] = {}
    for use in plan.grammars:
        by_name.setdefault(use.name, []).append(use.kind)
    for name, kinds in by_name.items():
        yield "grammars", f"{name}: {', '.join(kinds)}", _origin(plan, "grammars", name)
    for label, kind in (("processors", "logits processor"), ("fields", "request field")):
        if names := [each.name for each in plan.chosen if each.kind == kind]:
            yield label, ", ".join(names), _origin(plan, kind)


def _layers(layers: tuple[int, ...]) -> str:
    if len(layers) > 2 and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


def _memory_rows(plan: Plan) -> list[Row]:
    rows = [
        (item.name, f"{host.format_bytes(item.nbytes):>10}  {item.why}", "") for item in plan.memory
    ]
    total = sum(item.nbytes for item in plan.memory)
    if (measured := plan.measured) is not None:
        rows.append(("measured", f"{host.format_bytes(measured.used):>10}  {_measured(plan)}", ""))
        total += measured.used + measured.captured - plan.fixed_bytes
    if plan.host_experts is not None and plan.device.kind != "cpu":
        away = f"{host.format_bytes(plan.host_experts.host_bytes):>10}  experts, beside these"
        rows.append(("host's memory", away, ""))
    at_once = plan.fitting(plan.max_model_len)
    fits = f"{at_once} of {plan.max_model_len} tokens at once"
    if at_once < plan.max_num_seqs:
        lengths = range(plan.block_size, plan.max_model_len, plan.block_size)
        each = (
            bisect_right(lengths, -plan.max_num_seqs, key=lambda length: -plan.fitting(length))
            * plan.block_size
        )
        fits += f", or {plan.max_num_seqs} of {each}"
    return [*rows, ("total", f"{host.format_bytes(total):>10}", ""), ("fits", fits, "")]


def _measured(plan: Plan) -> str:
    planned = host.format_bytes(plan.fixed_bytes)
    captured = plan.measured.captured if plan.measured is not None else 0
    steps = f"; {host.format_bytes(captured)} more for captured steps" if captured else ""
    return f"all but the KV cache, after a trial step; {planned} were planned{steps}"


def _origin(plan: Plan, what: str, name: str | None = None) -> str:
    """Distribution and version of the choices of kind `what`: the one called `name`, or all."""
    origins = (
        f"{c.distribution} {c.version}"
        for c in plan.chosen
        if c.kind == what and name in (None, c.name)
    )
    return ", ".join(dict.fromkeys(origins))


def _section(title: str, body: str) -> str:
    return f"{click.style(title, bold=True)}\n{body}"


def _table(rows: Iterable[Row], columns: int | None = None) -> str:
    """Format rows as lines, wrapped at this number of columns if it is given."""
    rows = list(rows)
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(_line(row, width, columns) for row in rows)


def _line(row: Row, width: int, columns: int | None) -> str:
    name, text, origin = row
    source = f"[{origin}]".replace(" ", _NO_BREAK) if origin else ""
    line = wrapped(f"  {name:<{width}}  {text}  {source}".rstrip(), columns, width + 4)
    return line.replace(source, click.style(f"[{origin}]", dim=True)) if origin else line
