"""The plan's values, which can be serialised. Nothing here decides."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import cattrs
from attrs import field, frozen
from cattrs.preconf.msgspec import make_converter

from inferno.catalog import Refusal
from inferno.contracts import AttentionNeed, CacheTensor, Device, Origin
from inferno.errors import OptionError
from inferno.plan.adapter_use import AdapterRoom
from inferno.plan.audio_use import AudioUse
from inferno.plan.cache_groups import CacheGroupPlan, StateUse
from inferno.plan.capture_use import CaptureUse
from inferno.plan.dealt_use import DealtUse
from inferno.plan.engine_use import EnginesUse
from inferno.plan.event_use import EventUse
from inferno.plan.host_use import HostExpertsUse
from inferno.plan.image_use import ImageUse
from inferno.plan.kernel_use import KernelUse
from inferno.plan.measured_use import Measured
from inferno.plan.rank_use import RankUse
from inferno.plan.sandbox_use import SandboxUse
from inferno.plan.session_use import SessionUse
from inferno.plan.store_use import StoreUse


@frozen(kw_only=True)
class SchemeUse:
    """The matrices that one scheme holds."""

    name: str
    distribution: str
    layout: str
    """Layout of its weights in memory, by which kernels are chosen."""
    classes: tuple[str, ...]
    """Last path components: q_proj, embed_tokens."""
    stored: tuple[str, ...]
    """Dtypes they are stored in."""
    count: int
    stored_nbytes: int
    """Bytes in the checkpoint."""
    nbytes: int
    """Bytes once loaded."""
    in_situ: bool = False
    """Whether they are quantized to it while loading."""


@frozen(kw_only=True)
class InSituUse:
    """Matrices that are quantized to one scheme for one reason."""

    scheme: str
    why: str
    modules: str
    """Their names and layers: `v_proj 0-1 4, lm_head`."""
    count: int


@frozen(kw_only=True)
class InSitu:
    """What dense matrices are quantized to while loading."""

    asked: str
    """As the user wrote it."""
    modules: Mapping[str, str]
    """Module path -> scheme, or an empty string for those that stay. As in `Plan.modules`."""
    uses: tuple[InSituUse, ...]
    importance: str | None = None
    """The file with the importance of columns."""
    importance_format: str | None = None
    """The checkpoint format that reads it."""
    importance_sha256: str | None = None
    requantized: bool = False
    """Whether matrices that are stored quantized are among them, to be rounded a second time."""

    def scheme_of(self, path: str) -> str | None:
        """Return the scheme that the matrix is quantized to; None if it stays as it is."""
        scheme = self.modules.get(path)
        return (self.modules.get(pattern_of(path)) if scheme is None else scheme) or None


@frozen(kw_only=True)
class OverrideUse:
    """The modules that are taken from another checkpoint."""

    pattern: str
    """Of their paths. Where the patterns of several overrides match, the last one counts."""
    ref: str
    path: str
    format: str
    count: int = 0
    """Number of modules."""
    schemes: Mapping[str, str] = field(factory=dict)
    """Module path -> scheme of its matrix, as `Plan.modules`: of these modules only."""
    tokens: bool = False
    """Whether one of the matrices has a row for each token."""
    origin: Origin | None = None
    """As `Plan.origin`."""


@frozen
class BackendUse:
    """An attention backend."""

    name: str
    distribution: str


@frozen(kw_only=True)
class AttentionUse:
    """The layers with one need, and the attention backend that serves them."""

    name: str
    distribution: str
    tokens: BackendUse | None = None
    """The backend of steps in which every sequence has one token, if it is another one."""
    need: AttentionNeed
    layers: tuple[int, ...]
    cache: Mapping[str, CacheTensor]
    """Tensors that each layer keeps per block."""
    captures_prompts: bool = False
    """Whether its steps with prompts can be captured."""


@frozen(kw_only=True)
class Speculation:
    """Speculative decoding: where drafts come from, and what they cost."""

    proposer: str
    distribution: str
    num_drafts: int
    """The most drafts per step and sequence."""
    propose_cost: float
    """Time to propose one draft, as a share of a step of the model."""
    draft: Plan | None = None
    """The draft model. Its cache is in this plan's groups, its layers after the model's."""


@frozen
class GrammarUse:
    """A kind of grammar, and the provider that compiles it."""

    kind: str
    name: str
    distribution: str


@frozen(kw_only=True)
class ChatFormatUse:
    """How the model's output is split into content, reasoning and tool calls."""

    name: str = "none"
    """`none`: all output is content."""
    distribution: str = ""
    why: str = ""
    """Why it was chosen, as a sentence."""
    asked: bool = False
    """Whether the user named it. If not, a caller's chat template leads to another choice."""


TORCH = "torch"
"""What multiplies matrices that no kernel provider takes."""


@frozen
class Chosen:
    """One choice of the plan, and the installed distribution it comes from."""

    kind: str
    """What it is: "architecture", "scheme", "kernels"."""
    name: str
    distribution: str
    version: str


@frozen
class MemoryItem:
    """One line of the memory plan."""

    name: str
    nbytes: int
    why: str


@frozen(kw_only=True)
class Plan:
    """Everything decided before the first token."""

    ref: str
    path: str
    model_id: str
    """The name for clients: `served_model_name`, else the file's, the folder's or the hub id."""
    source: str
    origin: Origin | None = None
    """What the reference stands for, if the source says so: what runs must be the same."""
    architecture: str
    format: str
    config: Mapping[str, Any]
    """The checkpoint's config."""
    schemes: tuple[SchemeUse, ...]
    modules: Mapping[str, str]
    """Module path -> scheme of its matrix. `*` in a path matches any index: paths not listed follow
    their pattern (`scheme_of`)."""
    overrides: tuple[OverrideUse, ...] = ()
    """Modules that come from other checkpoints."""
    isq: InSitu | None
    packed_cache: str | None = None
    """Folder of the packed weights; None: none are kept."""
    packed_cache_limit: int = 0
    """Bytes of all files in it."""
    ranks: RankUse | None = None
    """The processes that share each layer; None: one process computes all."""
    engines: EnginesUse | None = None
    """Several engines, each with the whole model, or what `dealt` says, and this plan's sizes;
    None: there is one."""
    dealt: DealtUse | None = None
    """The routed experts that are dealt out to engines; None: each engine has all."""
    cores: tuple[int, ...] = ()
    """Those that an engine without ranks is bound to; none: the system chooses."""
    kernels: tuple[KernelUse, ...]
    """Torch computes the ops that are not listed."""
    products: Mapping[str, str]
    """Module path -> the kernel provider that multiplies its matrix, or `TORCH`. As in
    `modules`."""
    host_experts: HostExpertsUse | None = None
    """Experts in the host's memory; None: the device has all."""
    capture: CaptureUse | None = None
    """None: Python calls every operator of every step."""
    batch_invariant: bool = False
    """Whether results are the same bits in every batch."""
    onednn: bool = False
    """Whether torch multiplies dense bfloat16 matrices in oneDNN's layout."""
    overlap: bool = False
    """Whether a step is launched before the results of the one before it are known, and its draws
    stay on the device: where the host is not the device, and no drafts need the last token."""
    attention: tuple[AttentionUse, ...]
    states: tuple[StateUse, ...] = ()
    """Layers with a recurrent state."""
    speculation: Speculation | None = None
    adapters: AdapterRoom | None = None
    """None: requests may name no adapter."""
    images: ImageUse | None = None
    """How prompts' images are seen; None: the model sees none."""
    audio: AudioUse | None = None
    """How prompts' audio is heard; None: the model hears none."""
    chat_format: ChatFormatUse = ChatFormatUse()
    grammars: tuple[GrammarUse, ...] = ()
    """For structured output: kinds that are not listed cannot be compiled."""
    cache_policy: str
    queue_policy: str
    """The order in which requests run."""
    store: StoreUse | None = None
    """Where blocks are kept beside the cache's memory; None: nowhere."""
    events: EventUse | None = None
    """Where events of the cache are published; None: nowhere."""
    sessions: SessionUse | None = None
    """What keeps the blocks of sessions, and how long; None: nothing."""
    sandbox: SandboxUse | None = None
    """What confines the processes; None: nothing."""
    dtype: str
    device: Device
    threads: int
    seed: int | None
    vocab_size: int
    num_parameters: int = 0
    """Elements of all tensors, as far as headers tell; 0 if they do not."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_step_time: float = 0.0
    """Seconds that a step may take while a stream waits for its next token; 0: no limit."""
    block_size: int
    groups: tuple[CacheGroupPlan, ...]
    """Layers by what they cache. The first is the full group."""
    memory_limit: int
    memory: tuple[MemoryItem, ...]
    """What is planned for each purpose; the last is the cache."""
    measured: Measured | None = None
    """In the plan of a loaded engine, if its device can be measured: the cache is sized by it."""
    chosen: tuple[Chosen, ...]
    """Everything that was chosen, and its distribution."""
    considered: tuple[Refusal, ...]
    """Candidates that were not chosen, and why."""
    notes: tuple[str, ...]
    """Notes for the user, such as limits lowered to fit."""
    disable: tuple[str, ...]
    only: tuple[str, ...]

    def scheme_of(self, path: str) -> str | None:
        """Return the scheme of this module's matrix, or None if it has none."""
        return self.modules.get(path) or self.modules.get(pattern_of(path))

    def kernel_of(self, path: str) -> str | None:
        """Return the kernel provider that multiplies this module's matrix, or `TORCH`; None if it
        has none."""
        products = self.products
        hosted = self.host_experts
        if hosted is not None and hosted.computes and hosted.holds(path):
            products = hosted.products
        return products.get(path) or products.get(pattern_of(path))

    @property
    def num_blocks(self) -> int:
        """Number of blocks that sequences and the prefix cache refer to: the full group's."""
        return self.groups[0].num_blocks

    @property
    def whole_prompts(self) -> bool:
        """Whether it is an encoder: a prompt is one step, and nothing is cached or generated."""
        return any(use.need.bidirectional for use in self.attention)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is planned, of all ranks and engines on this machine."""
        count = 1 if self.ranks is None else self.ranks.here
        count *= 1 if self.engines is None else self.engines.count
        return count * sum(item.nbytes for item in self.memory)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that are planned for all but the cache."""
        return sum(item.nbytes for item in self.memory[:-1])

    @property
    def kv_tokens(self) -> int:
        """Number of tokens that fit into the cache, over all sequences."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes_per_token(self) -> float:
        """Cache bytes per token of context, window groups excepted."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole cache."""
        return sum(group.nbytes for group in self.groups)

    @property
    def media(self) -> tuple[ImageUse | AudioUse, ...]:
        """What the model reads besides text."""
        return tuple(use for use in (self.images, self.audio) if use is not None)

    def fitting(self, tokens: int) -> int:
        """Return how many sequences of this length fit into the cache at once, while each computes
        its share of a step."""
        step = -(-self.max_num_batched_tokens // self.block_size)
        limits = [self.max_num_seqs]
        for group in self.groups:
            if (blocks := group.blocks_of(tokens)) > 0:
                spare = group.num_blocks - (step if group.window is not None else 0)
                limits.append(spare // blocks)
        return min(limits)


def pattern_of(path: str) -> str:
    """Return a module path with `*` for its numbers: `layers.3.mlp` as `layers.*.mlp`."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def by_pattern(schemes: Mapping[str, str]) -> dict[str, str]:
    """Name the most common scheme of each pattern once, and the exceptions by their whole path."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path, name in schemes.items():
        counts[pattern_of(path)][name] += 1
    usual = {pattern: count.most_common(1)[0][0] for pattern, count in counts.items()}
    return usual | {p: name for p, name in schemes.items() if usual[pattern_of(p)] != name}


_converter = make_converter()


def plan_to_json(plan: Plan) -> str:
    """Return the plan as an indented JSON document."""
    return json.dumps(_converter.unstructure(plan), indent=2)


def plan_from_json(text: str | bytes) -> Plan:
    """Parse a plan. Raises OptionError if the document is not one."""
    try:
        # By json: msgspec reads no infinite numbers, and the config of Mamba-2 may have them.
        return _converter.structure(json.loads(text), Plan)
    except (cattrs.BaseValidationError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"this is not a plan: {error}", "Write a new one with `inferno explain REF --lock`."
        ) from error
