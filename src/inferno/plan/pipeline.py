"""Divides a model's layers among pipeline stages, by the bytes of their weights."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from attrs import evolve, frozen

from inferno.contracts import (
    DTYPE_BYTES,
    Architecture,
    Divided,
    HeldMatrix,
    LayerSpan,
    ModelConfig,
    Range,
)
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.cache_groups import nbytes_of
from inferno.plan.dealing import dealt_use, divide_engines
from inferno.plan.dealt_use import DealtUse
from inferno.plan.isq import Packed
from inferno.plan.options import Options
from inferno.plan.plan import Plan
from inferno.plan.rank_use import StageUse
from inferno.plan.ranks import Division, divides_of, kind_of
from inferno.plan.schemes import Matrices, StoredMatrices
from inferno.plan.speculation import MTPUse
from inferno.plan.stored import modules_of

_LAYER = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")


def divide_layers(sizes: Sequence[int], before: int, after: int, stages: int) -> list[Range]:
    """Return each stage's layers, at least one, so that the largest stage is as small as it can
    be. `sizes` are the layers' bytes, `before` those of the embedding and `after` those of the
    output head."""
    ends = [0, *accumulate(sizes)]
    count = len(sizes)
    assert 0 < stages <= count, "each stage has a layer"

    def cut(most: int) -> list[int] | None:
        """Return the stages' ends if none of them is larger than `most`: each takes what it can,
        and leaves a layer for each of those after it."""
        starts, first = [0], 0
        for left in range(stages - 1, -1, -1):
            room = most - (before if first == 0 else 0) - (0 if left else after)
            stop = min(bisect_right(ends, ends[first] + room) - 1, count - left)
            if stop <= first:
                return None
            starts.append(first := stop)
        return starts if first == count else None

    whole = ends[-1] + before + after
    low, high = 0, whole
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if cut(middle) is None else (low, middle)
    bounds = cut(low)
    assert bounds is not None, "all layers fit into a stage of the whole size"
    return list(zip(bounds, bounds[1:], strict=False))


@frozen(kw_only=True)
class StagedLayers:
    """The stages, and what the plan is told of the largest of them."""

    stages: tuple[StageUse, ...]
    matrix_bytes: int
    """Of the matrices of the largest stage."""
    num_plain: int
    """Elements of its other tensors."""
    ranks: tuple[int, ...]
    """Bytes of the weights of each rank."""
    passed_bytes: int
    inside: str
    """The path whose children are the layers."""

    def drafting(self, layers: Iterable[int]) -> StagedLayers:
        """Return them with these layers, which draft, on the last stage."""
        *others, last = self.stages
        last = evolve(last, caches=(*last.caches, *layers))
        return evolve(self, stages=(*others, last))

    def largest(self, sizes: Mapping[str, int]) -> int:
        """Return the most bytes that a stage has of what is beside modules, by their paths. What is
        in no layer counts in each: an embedding may be at both ends."""
        spans = [range(stage.span.first, stage.span.stop) for stage in self.stages]
        layers = {path: _layer_in(self.inside, path) for path in sizes}
        inside = [sum(sizes[p] for p, n in layers.items() if n in span) for span in spans]
        return sum(sizes.values()) - sum(inside) + max(inside)

    def count(self, caches: Iterable[int]) -> int:
        """Return how many of these layers' caches a stage has, at most."""
        indices = {*caches}
        return max(len(indices.intersection(stage.caches)) for stage in self.stages)


@frozen
class Shared:
    """What the ranks of a model have: divided matrices, layers by stage, and all matrices as the
    largest rank holds them."""

    matrices: Matrices
    division: Division | None = None
    pipeline: StagedLayers | None = None
    ranks: tuple[int, ...] = ()
    """Bytes of the weights of each rank."""
    dealt: DealtUse | None = None
    """The experts that engines share, if they do."""

    def held(self, whole: Mapping[str, HeldMatrix]) -> Mapping[str, HeldMatrix]:
        """Return what the largest rank has of each matrix, in all stages."""
        if (division := self.division) is None:
            return whole
        local = {path: division.local(path) for path in whole}
        return {path: matrix for path, matrix in local.items() if matrix is not None}

    def largest(self, sizes: Mapping[str, int]) -> int:
        """Return the most bytes that one rank has of these, by the paths of modules."""
        return sum(sizes.values()) if self.pipeline is None else self.pipeline.largest(sizes)

    def count(self, caches: Sequence[int]) -> int:
        """Return how many of these layers one rank has, at most."""
        return len(caches) if self.pipeline is None else self.pipeline.count(caches)


def share_model(
    options: Options,
    architecture: Architecture,
    config: ModelConfig,
    stored: StoredMatrices,
    packed: Mapping[str, Packed],
    whole: Matrices,
    dtype: str,
    mtp: MTPUse,
) -> Shared:
    """Divide a model, whose matrices are `whole` once loaded, among the ranks that are asked for,
    or its experts among engines. `mtp` are its multi-token-prediction layers, if they are used.
    Raises UnsupportedError, OptionError."""
    if options.ranks == 1 and not options.deals:
        return Shared(whole)
    held, division, matrices = stored.held(packed), None, whole
    local: Callable[[str], HeldMatrix | None] = held.get
    if options.tp > 1:
        specs = [*config.cache_specs(), *mtp.specs]
        division = Division.of(architecture, specs, held, options.tp, config, experts=options.ep)
    elif options.deals:
        division = divide_engines(held, options.dp, modules_of(mtp.tensors))
    each = [{path: matrix.nbytes for path, matrix in held.items()}]
    if division is not None:
        local, matrices = division.local, stored.loaded(packed, dtype, division.local)
        parts, ranks = {path: division.nbytes(path) for path in held}, range(division.shard.ranks)
        each = [{path: own[rank] for path, own in parts.items()} for rank in ranks]
    if options.pp == 1:
        plain = matrices.num_plain * DTYPE_BYTES[dtype]
        sizes = tuple(sum(own.values()) + plain for own in each)
        use = dealt_use(division, sizes, config, dtype) if division is not None else None
        return Shared(matrices, division, ranks=sizes, dealt=use)
    own = {path: part for path in held if (part := local(path)) is not None}
    kinds = divides_of(architecture, config)
    pipeline = _pipeline(options.pp, config, kinds, own, each, stored.plain, dtype, mtp)
    count = len(config.cache_specs())
    pipeline = pipeline.drafting(range(count, count + len(mtp.specs)))
    largest = evolve(matrices, share=pipeline.matrix_bytes, num_plain=pipeline.num_plain)
    return Shared(largest, division, pipeline, pipeline.ranks)


def stage_starts(config: object) -> Sequence[int]:
    """Return the layers that a pipeline stage may begin with."""
    layers: int = getattr(config, "num_hidden_layers", 0)
    starts: Sequence[int] = getattr(config, "stage_starts", range(layers))
    return starts


def _pipeline(
    stages: int,
    config: ModelConfig,
    kinds: Mapping[str, Divided],
    held: Mapping[str, HeldMatrix],
    each: Sequence[Mapping[str, int]],
    plain: Mapping[str, int],
    dtype: str,
    mtp: MTPUse,
) -> StagedLayers:
    """`held` is what the largest rank has of each matrix, `each` the bytes that each rank of a
    stage has."""
    layers: int = getattr(config, "num_hidden_layers", 0)
    starts = stage_starts(config)
    if stages > len(starts) > 0:
        why = "each stage needs one"
        if len(starts) < layers:
            why = f"{layers - len(starts)} cannot begin a stage, as they read of those before them"
        raise OptionError(
            f"--pp {stages}: the model has {layers} layers, and {why}",
            f"Use --pp {len(starts)}." if len(starts) > 1 else "Leave --pp out, or use --tp.",
        )
    further = {*modules_of(mtp.tensors)}
    encoders = {path for path in (*held, *plain) if _is_encoders(config, path)}
    inside = _layers_in({*held, *plain} - further - encoders, layers)
    caches = _layers_of_caches(config, layers)
    if inside is None or caches is None:
        raise UnsupportedError(
            f"--pp {stages}: this model does not say which of its tensors and caches are of which "
            "layer",
            "Leave --pp out, or use --tp.",
        )
    size = DTYPE_BYTES[dtype]
    within = _Layers(
        inside=inside,
        count=layers,
        kinds=kinds,
        config=config,
        encoders=frozenset(encoders),
        further=frozenset(further),
    )
    largest = within.bytes_of({path: matrix.nbytes for path, matrix in held.items()})
    others = within.plain_bytes({path: number * size for path, number in plain.items()})
    embedding, beside, *sizes, after = [a + b for a, b in zip(largest, others, strict=True)]
    bounds = [*starts, layers]
    parts = [sum(sizes[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    divided = divide_layers(parts, embedding + beside, after, stages)
    spans = [(bounds[first], bounds[stop]) for first, stop in divided]
    by_stage = [(within.of_stage(largest, span), within.of_stage(others, span)) for span in spans]
    uses = [
        StageUse(
            span=LayerSpan(
                first=first, stop=stop, layers=layers, predicts=bool(further) and stop == layers
            ),
            caches=tuple(i for i, layer in enumerate(caches) if first <= layer < stop),
            weight_bytes=sum(nbytes),
        )
        for (first, stop), nbytes in zip(spans, by_stage, strict=True)
    ]
    matrix_bytes, plain_bytes = max(by_stage, key=sum)
    width: int = getattr(config, "passed_size", getattr(config, "hidden_size", 0))
    single = getattr(config, "residual_in_fp32", False)
    return StagedLayers(
        stages=tuple(uses),
        matrix_bytes=matrix_bytes,
        num_plain=plain_bytes // size,
        ranks=tuple(
            within.of_stage(within.bytes_of(by_path), span) + nbytes
            for span, (_, nbytes) in reversed([*zip(spans, by_stage, strict=True)])
            for by_path in each
        ),
        passed_bytes=width * (4 if single else size),
        inside=inside,
    )


@frozen(kw_only=True)
class _Layers:
    """Where a model's bytes are. Lists of them have those of the embedding, of what the first stage
    has beside it, of each layer, and of what comes after the layers."""

    inside: str
    """The path whose children are the layers."""
    count: int
    kinds: Mapping[str, Divided]
    config: ModelConfig
    encoders: frozenset[str]
    """Paths of the encoders' modules."""
    further: frozenset[str]
    """Those of layers of multi-token prediction, which come after the last layer."""

    def bytes_of(self, matrices: Mapping[str, int]) -> list[int]:
        """Divide the bytes of matrices, by their path."""
        embedding, beside, after, has_head = 0, 0, 0, False
        layers, parent = [0] * self.count, self.inside.rpartition(".")[0]
        for path, nbytes in matrices.items():
            within = path.startswith(f"{parent}.") if parent else True
            if path in self.encoders:
                beside += nbytes
            elif path in self.further:
                after += nbytes
            elif (layer := _layer_in(self.inside, path)) is not None:
                layers[layer] += nbytes
            elif _is_first(self.config, path):
                beside += nbytes
            elif kind_of(self.kinds, path) == "vocabulary" and within:
                embedding += nbytes
            else:
                has_head |= kind_of(self.kinds, path) == "vocabulary"
                after += nbytes
        if not has_head or self.further:  # it is the last stage's head, or is read there
            after += embedding
        return [embedding, beside, *layers, after]

    def plain_bytes(self, tensors: Mapping[str, int]) -> list[int]:
        """Divide the bytes of tensors without a scheme, by their module's path."""
        beside, after, layers = 0, 0, [0] * self.count
        for path, nbytes in tensors.items():
            layer = None if path in self.further else _layer_in(self.inside, path)
            if path in self.encoders or _is_first(self.config, path):
                beside += nbytes
            elif layer is None:
                after += nbytes
            else:
                layers[layer] += nbytes
        return [0, beside, *layers, after]

    def of_stage(self, nbytes: Sequence[int], span: Range) -> int:
        """Return the bytes of a stage."""
        return stage_bytes(nbytes, span, _features(self.config))


def stage_bytes(nbytes: Sequence[int], span: Range, seeing: int = 0) -> int:
    """Return the bytes of a stage, of those of a model as `_Layers` divides them, of which so many
    first layers add features of images."""
    first, stop = span
    embedding, beside, *layers, after = nbytes
    ends = embedding * (first == 0) + after * (stop == len(layers))
    return sum(layers[first:stop]) + ends + beside * (first == 0 or first < seeing)


def _is_encoders(config: ModelConfig, path: str) -> bool:
    """Return whether a module is an encoder of images or of audio, or in one."""
    names = (getattr(config, name, None) for name in ("image_encoder", "audio_encoder"))
    return any(path == name or path.startswith(f"{name}.") for name in names if name)


def _is_first(config: ModelConfig, path: str) -> bool:
    """Return whether a module is of the first stage, beside the embedding."""
    return not {*path.split(".")}.isdisjoint(getattr(config, "first_modules", ()))


def _features(config: ModelConfig) -> int:
    """Return how many layers, from the first one on, add features of images."""
    vision: object = getattr(config, "vision", None)
    return len(getattr(vision, "deepstack_visual_indexes", ()))


def _layers_in(paths: Iterable[str], layers: int) -> str | None:
    """Return the path whose children are the model's layers, by their numbers."""
    numbers = defaultdict[str, set[int]](set)
    for path in paths:
        if (parts := _LAYER.match(path)) is not None:
            numbers[parts[1]].add(int(parts[2]))
    wanted = {*range(layers)}
    return next((prefix for prefix, each in numbers.items() if each == wanted and each), None)


def _layer_in(inside: str, path: str) -> int | None:
    """Return the number of the layer that a module is in, if it is in one."""
    parts = _LAYER.match(path)
    return int(parts[2]) if parts is not None and parts[1] == inside else None


def _layers_of_caches(config: ModelConfig, layers: int) -> Sequence[int] | None:
    """Return the layer of each of `cache_specs`."""
    count = len(config.cache_specs())
    given: Sequence[int] | None = getattr(config, "spec_layers", None)
    if given is None:
        return range(layers) if count == layers else None
    return given if len(given) == count else None


def plan_of_stage(plan: Plan, stage: int) -> Plan:
    """Return the plan of a pipeline stage's ranks: of what layers keep, only what theirs do. The
    groups are those of the whole plan: each stage has the same blocks, of its own layers. Without
    stages, the plan."""
    if plan.ranks is None or not plan.ranks.pipeline:
        return plan
    caches = {*plan.ranks.pipeline[stage].caches}

    def kept(layers: Iterable[int]) -> tuple[int, ...]:
        return tuple(layer for layer in layers if layer in caches)

    attention = [evolve(use, layers=kept(use.layers)) for use in plan.attention]
    states = [evolve(use, layers=kept(use.layers)) for use in plan.states]
    sizes = {layer: nbytes_of(use.cache) for use in attention for layer in use.layers}
    sizes |= {layer: nbytes_of(use.cache) for use in states for layer in use.layers}
    groups = [
        evolve(group, layers=numbers, unit_bytes=sum(sizes[layer] for layer in numbers))
        for group, numbers in ((group, kept(group.layers)) for group in plan.groups)
    ]
    return evolve(
        plan,
        attention=tuple(use for use in attention if use.layers),
        states=tuple(use for use in states if use.layers),
        groups=tuple(groups),
    )
