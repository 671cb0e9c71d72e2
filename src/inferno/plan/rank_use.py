"""What a plan says of the ranks that compute each step together."""

from __future__ import annotations

from attrs import frozen

from inferno.contracts import Shard


@frozen
class WholeUse:
    """Matrices that every rank holds whole."""

    modules: str
    """Their paths: `model.layers.*.self_attn.q_proj`, or several."""
    why: str
    nbytes: int
    """Of each rank."""


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
class RankUse:
    """Tensor parallelism: how many processes share each layer, and what each of them has. Sizes in
    the plan, of weights, attention, cache and memory, are those of one rank: of the largest."""

    count: int
    executor: str
    """What starts the ranks but the first."""
    distribution: str
    shard: Shard
    """How the first rank shares matrices; those of the others differ in their number."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Those that each rank is bound to, by rank; none: the system chooses. Another machine binds
    its ranks to its own."""
    numa: str = ""
    """The NUMA nodes that were asked for, as the user wrote them."""
    divided: tuple[str, ...]
    """Module paths of matrices of which a rank has a part, with `*` for numbers."""
    whole: tuple[WholeUse, ...]
    copied: tuple[str, ...] = ()
    """What several ranks keep of the cache, beside each other."""
    weight_bytes: int
    """Of all weights, once."""
    num_sums: int
    """Sums over the ranks in a step."""
    num_gathers: int = 0
    """Matrices of which each rank gathers the results of all, in a step."""
    wire_bytes: int
    """Bytes that a rank receives from the others for each token that it draws."""
    join: JoinUse | None = None
    """How ranks of other machines join; None: all are on this one."""

    @property
    def here(self) -> int:
        """How many ranks a machine has."""
        return self.count if self.join is None else self.count // self.join.nodes

    @property
    def started(self) -> int:
        """How many ranks the engine's own process has and starts: the first ones."""
        return self.count if self.join is None else self.join.each
