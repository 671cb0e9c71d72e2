"""What a plan says of the ranks that compute each step together."""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import LayerSpan, Shard


@frozen
class WholeUse:
    """Matrices that every rank holds whole."""

    modules: str
    """Their paths: `model.layers.*.self_attn.q_proj`, or several."""
    why: str
    nbytes: int
    """Of each rank."""


@frozen
class ExpertUse:
    """Routed experts that are dealt out whole."""

    modules: str
    """Their paths: `model.layers.*.mlp.experts`."""
    counts: tuple[int, ...]
    """How many of a layer's each rank has."""
    nbytes: int
    """Of the largest rank, in all layers."""


@frozen(kw_only=True)
class JoinUse:
    """How ranks of other processes than the engine's join it: over TCP, guarded by a token."""

    nodes: int
    """How many machines there are."""
    each: int
    """How many ranks each process brings that joins."""
    host: str
    """The first machine's address, by which the others reach it, or its network interface."""
    port: int
    token_file: str
    """The file with the secret that all machines know."""
    executor: str = ""
    """What starts the other machines' processes; empty: whoever reads the command to run there."""
    distribution: str = ""


@frozen(kw_only=True)
class StageUse:
    """A pipeline stage: the layers that its ranks have."""

    span: LayerSpan
    caches: tuple[int, ...]
    """Ids of those of its layers that keep something (`ModelConfig.cache_specs`)."""
    weight_bytes: int
    """Of one rank."""


@frozen(kw_only=True)
class RankUse:
    """How many processes share a model, and what each of them has: a part of each layer (tensor
    parallelism), some of the layers (pipeline parallelism), or a part of each of these. Sizes in
    the plan, of weights, attention, cache and memory, are those of one rank: of the largest."""

    count: int = 1
    executor: str
    """What starts the ranks but the first."""
    distribution: str
    shard: Shard = Shard()
    """How the first rank shares matrices; those of the others differ in their number."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Those that each rank is bound to, by rank; none: the system chooses. Another machine binds
    its ranks to its own."""
    devices: tuple[int, ...] = ()
    """The numbers of a machine's devices, by rank; none: all compute on the CPU."""
    exchange: str = "gloo"
    """How torch.distributed exchanges tensors where no kernels do: `gloo`, or between GPUs
    `nccl`."""
    numa: str = ""
    """The NUMA nodes that were asked for, as the user wrote them."""
    divided: tuple[str, ...] = ()
    """Module paths of matrices of which a rank has a part, with `*` for numbers."""
    whole: tuple[WholeUse, ...] = ()
    experts: tuple[ExpertUse, ...] = ()
    copied: tuple[str, ...] = ()
    """What several ranks keep of the cache, beside each other."""
    weight_bytes: int
    """Of all weights, once."""
    weights: tuple[int, ...] = ()
    """Bytes of the weights of each rank."""
    num_sums: int = 0
    """Sums over the ranks in a step, in all stages."""
    num_gathers: int = 0
    """Matrices of which each rank gathers the results of all, in a step."""
    wire_bytes: int = 0
    """Bytes that a rank receives from the others of its stage for each token that it draws, in all
    stages."""
    pipeline: tuple[StageUse, ...] = ()
    """The stages that a step passes through; none: every rank has all layers. The first ranks have
    the last stage, which draws."""
    passed_bytes: int = 0
    """Bytes that a rank passes on to the next stage for each token that is computed."""
    join: JoinUse | None = None
    """How ranks of other machines join; None: all are on this one."""

    @property
    def stages(self) -> int:
        """How many pipeline stages there are."""
        return max(1, len(self.pipeline))

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank, from 0: the last one has the first ranks."""
        return self.stages - 1 - rank // self.shard.ranks

    def device_of(self, rank: int) -> int | None:
        """Return the number of a rank's device on its machine; None: it computes on the CPU."""
        return self.devices[rank % len(self.devices)] if self.devices else None

    @property
    def here(self) -> int:
        """How many ranks a machine has."""
        return self.count if self.join is None else self.count // self.join.nodes

    @property
    def started(self) -> int:
        """How many ranks the engine's own process has and starts: the first ones."""
        return self.count if self.join is None else self.join.each
