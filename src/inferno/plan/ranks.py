"""Divides a model among ranks: what each of them holds, and what cannot be."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from inferno.contracts import (
    ATTENTION,
    COLUMNS,
    DTYPE_BYTES,
    STATE,
    Architecture,
    AttentionSpec,
    Device,
    Divided,
    HeldMatrix,
    ModelConfig,
    Shard,
    StateSpec,
    counts,
)
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.options import Options
from inferno.plan.plan import pattern_of
from inferno.plan.rank_experts import Dealt
from inferno.plan.rank_heads import attended, of_state, whole_attention, whole_states
from inferno.plan.rank_use import RankUse, WholeUse

_OF_HIDDEN: frozenset[Divided] = frozenset(
    {"heads", "from heads", "inner", "two inner", "from inner", "vocabulary"}
)
"""Matrices that read hidden states, or whose results are added to them."""
_LAYER = re.compile(r"^(.*?\.\d+)\.")


def check_ranks(
    options: Options,
    device: Device,
    name: str,
    architecture: Architecture,
    config: object = None,
) -> None:
    """Raise UnsupportedError for what ranks cannot do yet, before anything is chosen. `name` is the
    model's architecture."""
    if options.ranks == 1:
        if options.executor is not None:
            raise OptionError(
                f"--executor {options.executor} starts ranks, and there is one",
                "Say how many: --tp N.",
            )
        return
    if device.kind not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"{options.shared_by}: several ranks compute on CPUs and CUDA devices only, not on "
            f"{device}",
            f"Leave {options.shared_by} out, or add --device cpu.",
        )
    if not divides_of(architecture, config):
        raise UnsupportedError(
            f"{name} cannot be divided among ranks yet",
            f"Leave {options.shared_by} out: one process computes it with all cores.",
        )
    flags: dict[str, object] = {
        "--sandbox": options.sandbox and (options.nodes > 1 or options.executor),
    }
    if options.ep and not architecture.divides:
        raise UnsupportedError(
            f"--ep: {name} is computed by transformers' own code, whose experts are one tensor",
            "Leave --ep out: every rank computes all experts.",
        )
    if options.pp > 1:
        check_pipeline(options, name, architecture)
    if names := [name for name, given in flags.items() if given]:
        machines = f" --nodes {options.nodes}" * (options.nodes > 1)
        raise UnsupportedError(
            f"{options.shared_by}{machines} cannot be combined with {', '.join(names)} yet",
            "Leave out one of them.",
        )


def check_pipeline(options: Options, name: str, architecture: Architecture) -> None:
    """Raise UnsupportedError for a model whose layers cannot be of several stages yet."""
    if not architecture.divides:
        raise UnsupportedError(
            f"--pp {options.pp}: {name} cannot be computed in pipeline stages yet: its layers are "
            "not those of inferno.nn",
            f"Use --tp {options.ranks} instead, or leave --pp out.",
        )


@frozen(kw_only=True)
class Division:
    """How a model's matrices are divided."""

    shard: Shard
    """The first rank's."""
    divides: Mapping[str, Divided]
    spec: AttentionSpec | None
    """That of every layer, if attention can be divided."""
    state: StateSpec | None = None
    """That of every recurrent layer, if states can be divided."""
    refused: str = ""
    """Why attention is not divided."""
    refused_states: str = ""
    """Why states are not divided."""
    held: Mapping[str, HeldMatrix] = field(repr=False)
    """Each matrix, whole."""
    dealt: Dealt = field(repr=False)
    """The experts' matrices, if these are dealt out whole."""

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        specs: Sequence[AttentionSpec | StateSpec],
        held: Mapping[str, HeldMatrix],
        ranks: int,
        config: object = None,
        *,
        experts: bool = False,
    ) -> Division:
        """Deal routed `experts` out whole, instead of dividing each. Raises UnsupportedError for a
        matrix that would be divided, but whose scheme cannot cut it."""
        divides, shard = divides_of(architecture, config), Shard(ranks=ranks, experts=experts)
        held = with_shapes(held, divides, config)
        named = {path: kind_of(divides, path) for path in held if not shard.expert_of(path)}
        columns = all(
            (held[path].unit or (1, 1))[1] for path, kind in named.items() if kind in COLUMNS
        )
        for path, kind in named.items():
            whole = not columns and kind is not None and "experts" in path.split(".")
            if kind is not None and (whole or not held[path].unit or held[path].shape is None):
                layout = held[path].layout or "this layout"
                raise UnsupportedError(
                    f"{path}: a matrix in {layout}, as it is stored, cannot be divided among ranks",
                    "Leave --tp out, or use a checkpoint of another scheme: dense, GGUF, or of "
                    "experts GPTQ, AWQ and compressed-tensors without act-order.",
                )
        units = {path: each.unit or (1, 1) for path, each in held.items()}
        inner = [units[path][1] or 1 for path, kind in named.items() if kind == "from inner"]
        rows = ("inner", "two inner", "outputs")
        inner += [
            units[path][0]
            for path, kind in named.items()
            if kind in rows or (kind in COLUMNS and not columns)
        ]
        attention = [spec for spec in specs if isinstance(spec, AttentionSpec)]
        states = [spec for spec in specs if isinstance(spec, StateSpec)]
        stored = [
            (kind, shape[_axis(kind)], units[path][_axis(kind)] or 1)
            for path, kind in named.items()
            if kind is not None and (shape := held[path].shape) is not None
        ]
        refused = whole_attention(attention, stored, ranks)
        refused_states = whole_states(states, stored, ranks)
        return cls(
            shard=evolve(
                shard,
                unit=math.lcm(1, *inner),
                attention=not refused,
                states=not refused_states,
                columns=columns,
            ),
            divides=divides,
            spec=attention[0] if attention and not refused else None,
            state=states[0] if states and not refused_states else None,
            refused=refused,
            refused_states=refused_states,
            held=held,
            dealt=Dealt.of(shard, held),
        )

    def local(self, path: str) -> HeldMatrix | None:
        """Return what the largest rank holds of a matrix, if it holds any of it."""
        whole = self.held[path]
        if (rank := self.dealt.ranks.get(path)) is not None:
            return whole if rank == self.dealt.largest else None
        if (kind := self.kind(path)) is None or (shape := whole.shape) is None:
            return whole
        axis = _axis(kind)
        size = max(self._sizes(kind, shape[axis]))
        cut = (shape[0], size) if axis else (size, shape[1])
        nbytes = whole.nbytes * size // max(1, shape[axis])
        return evolve(whole, shape=cut, nbytes=nbytes)

    def nbytes(self, path: str) -> Sequence[int]:
        """Return the bytes of a matrix that each rank holds."""
        whole, ranks = self.held[path], range(self.shard.ranks)
        if (owner := self.dealt.ranks.get(path)) is not None:
            return [whole.nbytes * (rank == owner) for rank in ranks]
        if (kind := self.kind(path)) is None or (shape := whole.shape) is None:
            return [whole.nbytes for _ in ranks]
        length = shape[_axis(kind)]
        return [whole.nbytes * size // max(1, length) for size in self._sizes(kind, length)]

    def kind(self, path: str) -> Divided | None:
        """Return what a matrix is divided by; None if every rank holds it whole."""
        kind, shape = kind_of(self.divides, path), self.held[path].shape
        if kind is None or shape is None:
            return None
        if (self.spec if kind in ATTENTION else self.state if kind in STATE else True) is None:
            return None
        if kind == "from inner" and not self.shard.divides(shape[1]):
            return None
        if kind in COLUMNS and not self.shard.columns:
            kind = "outputs"
        if kind in ATTENTION | STATE:
            return kind
        width = shape[1] if kind in COLUMNS else shape[0] // (2 if kind == "two inner" else 1)
        unit = 1 if kind == "vocabulary" else None
        return kind if self.shard.divides(width, unit) else None

    def _sizes(self, kind: Divided, size: int) -> Sequence[int]:
        """Return how many of a matrix's rows or columns each rank has: of heads all as many."""
        if kind in ATTENTION:
            assert self.spec is not None, "only then is it divided by heads"
            return [sum(attended(kind, size, self.spec, self.shard))] * self.shard.ranks
        if kind in STATE:
            assert self.state is not None, "only then is it divided by heads"
            return [of_state(kind, size, self.state, self.shard)] * self.shard.ranks
        both = 2 if kind == "two inner" else 1
        shares = self.shard.shares(size // both, 1 if kind == "vocabulary" else None)
        return [both * (stop - start) for start, stop in shares]

    def use(self, executor: str, distribution: str, model: ModelConfig, dtype: str) -> RankUse:
        """Return what the plan says of it. Raises UnsupportedError if nothing is divided."""
        dealt = self.dealt.ranks
        kinds = {path: self.kind(path) for path in self.held if path not in dealt}
        ranks = self.shard.ranks
        if not any(kinds.values()) and not dealt:
            why = self.refused or "it is too narrow"
            raise UnsupportedError(
                f"no matrix of this model can be divided among {ranks} ranks: {why}",
                "Use fewer ranks, or leave --tp out.",
            )
        # Experts are summed too, with shared ones if these are divided.
        sums = {**kinds, **{path: kind_of(self.divides, path) for path in dealt}}
        summed = {(_layer_of(p), k) for p, k in sums.items() if k in COLUMNS}
        tables = [p for p, k in kinds.items() if k == "vocabulary"]
        num_sums = len(summed) + bool(tables)  # the embedding is summed
        gathered = [size for path in kinds for size in self._gathered(path)]
        hidden = max(
            (
                shape[k == "vocabulary"]
                for p, k in sums.items()
                if (k in COLUMNS or k == "vocabulary") and (shape := self.held[p].shape)
            ),
            default=0,
        )
        wire = num_sums * hidden * DTYPE_BYTES[dtype] * (ranks - 1)
        wire += sum(gathered) * DTYPE_BYTES[dtype] * (ranks - 1) // ranks
        wire += model.vocab_size * 4 * (ranks - 1) // ranks if tables else 0
        return RankUse(
            count=ranks,
            executor=executor,
            distribution=distribution,
            shard=self.shard,
            divided=tuple(sorted({pattern_of(path) for path, kind in kinds.items() if kind})),
            whole=self._whole(kinds),
            experts=self.dealt.uses(self.held),
            copied=tuple(self._copied()),
            weight_bytes=sum(each.nbytes for each in self.held.values()),
            num_sums=num_sums,
            num_gathers=len(gathered),
            wire_bytes=wire,
        )

    def _gathered(self, path: str) -> Iterator[int]:
        """Return what ranks gather of a matrix: its outputs, its inputs before them, or neither."""
        if self.kind(path) == "outputs" and (shape := self.held[path].shape) is not None:
            yield from shape if kind_of(self.divides, path) in COLUMNS else shape[:1]

    def _whole(self, kinds: Mapping[str, Divided | None]) -> tuple[WholeUse, ...]:
        whys: dict[str, list[str]] = defaultdict(list)
        for path, kind in kinds.items():
            if kind is None:
                whys[self._why(path)].append(path)
        return tuple(
            WholeUse(
                modules=", ".join(sorted({pattern_of(path) for path in paths})),
                why=why,
                nbytes=sum(self.held[path].nbytes for path in paths),
            )
            for why, paths in whys.items()
        )

    def _copied(self) -> Iterator[str]:
        """Say what every rank has whole, and of which heads or groups there are fewer than
        ranks."""
        ranks = self.shard.ranks
        for what, why in (("cache", self.refused), ("states", self.refused_states)):
            if why:
                yield f"the {what}, whole on every rank: {why}"
        kinds = (self.spec, "heads of keys and values"), (self.state, "groups of heads of states")
        for spec, what in kinds:
            if spec is None or (groups := counts(spec)[1]) >= ranks:
                continue
            if isinstance(spec, AttentionSpec) and spec.latent_dim:
                yield "the cache, whole on every rank: all heads share one latent"
            else:
                yield f"{groups} {what}: each is on {ranks // groups} ranks"

    def _why(self, path: str) -> str:
        kind = kind_of(self.divides, path)
        if kind is None:
            return "every rank computes them"
        if kind in ATTENTION:
            return self.refused
        if kind in STATE:
            return self.refused_states
        return f"too narrow for {self.shard.ranks} parts of {self.shard.unit}"


def kind_of(divides: Mapping[str, Divided], path: str) -> Divided | None:
    """Return what a matrix is divided by, by its path, the last two parts of it or the last one."""
    *_, parent, name = ("", "", *path.split("."))
    return next((divides[n] for n in (path, f"{parent}.{name}", name) if n in divides), None)


def divides_of(architecture: Architecture, config: object) -> Mapping[str, Divided]:
    """Return what a model's matrices are divided by (`Architecture.divides`)."""
    extra: Mapping[str, Divided] = getattr(config, "divides", {})
    return {**architecture.divides, **extra}


def with_shapes(
    held: Mapping[str, HeldMatrix], divides: Mapping[str, Divided], config: object
) -> Mapping[str, HeldMatrix]:
    """Return the matrices with the shapes of those whose headers tell the number of values only:
    their rows or columns are a hidden state's, by what they are divided by. Modules know their
    shapes, and the loader compares them with what is stored."""
    hidden: int = getattr(config, "hidden_size", 0)

    def shaped(path: str, matrix: HeldMatrix) -> HeldMatrix:
        kind, values = kind_of(divides, path), matrix.values
        if matrix.shape is not None or kind not in _OF_HIDDEN or not hidden or values % hidden:
            return matrix
        other = values // hidden
        return evolve(matrix, shape=(hidden, other) if kind in COLUMNS else (other, hidden))

    return {path: shaped(path, matrix) for path, matrix in held.items()}


def _axis(kind: Divided) -> int:
    return 1 if kind in COLUMNS else 0


def _layer_of(path: str) -> str:
    """Return the path of the layer that a module is in."""
    parts = _LAYER.match(path)
    return parts[1] if parts else path
