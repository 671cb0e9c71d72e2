"""Several models for one server: what the command line and the file name, with each one's options
and share of the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from attrs import evolve, frozen

from inferno.cli.config import ModelConfig, ModelTable, from_file, given, seconds
from inferno.cli.options import plan_options
from inferno.errors import OptionError
from inferno.plan.names import model_name

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM
    from inferno.plan import Options
    from inferno.server.hosting.hosted_model import ModelSpec

_SHARED = ("memory", "gpu_memory_utilization")
"""Options that limit all models together, unless a model has its own."""


@frozen
class Several:
    """The models of a server."""

    specs: tuple[ModelSpec, ...]
    budgets: Mapping[str, int]
    """Bytes that models may use together on each device, by torch's name for it."""
    options: tuple[Options, ...]
    """Of each model's engine."""


def configured(ctx: click.Context, refs: Sequence[str], named: Sequence[str]) -> list[ModelConfig]:
    """The models of the command line, then those of the file. Raises OptionError."""
    models = [_of_ref(ref, model_name(ref)) for ref in refs]
    for pair in named:
        name, equals, ref = pair.partition("=")
        if not (name and equals and ref):
            raise OptionError(f"--model {pair} is not NAME=REF", "Write --model small=demo.")
        models.append(_of_ref(ref, name))
    return models + from_file(ctx)


def several(
    ctx: click.Context,
    models: Sequence[ModelConfig],
    values: Mapping[str, Any],
    *,
    idle: str | None,
    max_loaded: int | None,
    engine_timeout: float | None = None,
) -> Several:
    """Check the models, and share the memory among them. Raises OptionError, DeviceError,
    OutOfMemoryError."""
    from inferno.plan.devices import find_device
    from inferno.plan.memory import memory_limit

    _check_names(models)
    idle_seconds = seconds(idle, "--idle")
    preloads = any(model.table.preload is not None for model in models)
    budgets: dict[str, int] = {}
    specs, chosen = [], []
    for i, model in enumerate(models):
        overrides = {k: v for k, v in model.options.items() if not _beaten(ctx, k)}
        merged = {**values, **overrides}
        template = merged.pop("chat_template", None)
        whole = plan_options(merged | {name: values.get(name) for name in _SHARED})
        device = find_device(whole.device)
        if device.torch_name not in budgets:
            budgets[device.torch_name] = memory_limit(whole, device).value
        options = plan_options({**merged, **{name: overrides.get(name) for name in _SHARED}})
        if options.memory is None and options.gpu_memory_utilization is None:
            share = budgets[device.torch_name] // (max_loaded or len(models))
            options = evolve(options, memory=str(share))
        options = evolve(options, served_model_name=model.name)  # for the engine's log lines
        chosen.append(options)
        specs.append(
            _spec(
                model,
                options,
                template,
                idle=seconds(model.table.idle, f"models.{model.name}.idle") or idle_seconds,
                preload=bool(model.table.preload) if preloads else i == 0,
                engine_timeout=engine_timeout,
            )
        )
    return Several(tuple(specs), budgets, tuple(chosen))


def _of_ref(ref: str, name: str) -> ModelConfig:
    return ModelConfig(name=name, table=ModelTable(ref=ref), options={})


def _beaten(ctx: click.Context, name: str) -> bool:
    """Whether the command line or the environment sets the option for all models. A model's memory
    is not what all have together."""
    return name not in _SHARED and given(ctx, name)


def _check_names(models: Sequence[ModelConfig]) -> None:
    seen: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.table.aliases):
            if name in seen:
                raise OptionError(
                    f"{name!r} names two models: {seen[name]} and {model.table.ref}",
                    "Give one another name: --model NAME=REF, or [models.NAME].",
                )
            seen[name] = model.table.ref


def _spec(
    model: ModelConfig,
    options: Options,
    template: str | None,
    *,
    idle: float | None,
    preload: bool,
    engine_timeout: float | None,
) -> ModelSpec:
    from inferno.server.hosting.hosted_model import ModelSpec

    def make() -> AsyncLLM:
        from inferno.llm import AsyncLLM
        from inferno.plan import open_model

        opened = open_model(model.table.ref, options)
        return AsyncLLM.of_opened(
            opened, template, engine_timeout=engine_timeout, expect_grammars=True
        )

    return ModelSpec(
        names=(model.name, *model.table.aliases),
        make=make,
        ref=model.table.ref,
        pin=model.table.pin,
        idle_seconds=idle,
        preload=preload,
    )
