"""What a user may ask of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import get_args

from attrs import field, frozen

from inferno.contracts import COMPUTE_DTYPES, CacheDType
from inferno.errors import OptionError
from inferno.request.sessions import MOST_TTL

MOST_FOLD = 1000
"""The most that `cpu_mem_fold` may be: more is a slip."""


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)


def _overrides(given: Mapping[str, str] | Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        return tuple(f"{pattern}={ref}" for pattern, ref in given.items())
    return (given,) if isinstance(given, str) else tuple(given)


def _urls(given: str | Iterable[str] | None) -> str | None:
    return given if given is None or isinstance(given, str) else ",".join(given) or None


def _cache_dtype(name: str) -> str:
    return "fp8_e4m3" if name == "fp8" else name  # vLLM's spelling


@frozen(kw_only=True)
class Options:
    """What a user may ask of an engine. Names are vLLM's where the meaning is."""

    dtype: str = "auto"
    """Compute dtype, and the cache's by default; auto takes the checkpoint's."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps or xpu. A number is CUDA's: among the devices that
    `CUDA_VISIBLE_DEVICES` shows. auto: the first CUDA device, else the CPU. Several ranks and
    engines take one device each, from this one on, or those of a list: `cuda:0,cuda:3`."""
    max_model_len: int | None = None
    """Longest context in tokens, output included; None: the model's, or what fits."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_step_time: float | None = None
    """Seconds that a step may take while a stream waits for its next token: prompts are computed in
    parts of so long; 0: no limit. None: 0.2 on a CPU, 0.05 on other devices. An `LLM`, whose
    callers wait for whole answers, has no limit."""
    memory: str | None = None
    """Memory limit for weights, cache and workspace together: `8GiB`, or `60%` of the device's
    total. None: 70% of a CPU's total, or 90% of what is free on another device."""
    gpu_memory_utilization: float | None = None
    """The same limit as a fraction of a GPU's total, as in vLLM."""
    block_size: int | None = None
    attention_backend: str = "auto"
    """A backend's name, or `prompts=NAME,tokens=NAME`: one for steps with prompts, one for steps in
    which every sequence has one token. auto: the compatible one of the highest priority."""
    kv_cache_dtype: str = field(default="auto", converter=_cache_dtype)
    """Dtype of stored keys and values: auto is the compute dtype; fp8 (fp8_e4m3) and int8 take
    half as much or less."""
    cache_policy: str = "auto"
    queue_policy: str = "auto"
    """The order in which requests run. auto: the one of the highest priority."""
    kv_store: str | None = None
    """Folder in which full blocks of the cache are kept, so that a prompt whose beginning was seen
    is not computed again: after a restart, or when the cache was too small."""
    kv_store_size: str = "32GiB"
    """Limit of that folder: the blocks used longest ago make room."""
    cpu_mem_fold: float | None = None
    """Keep blocks that leave the cache in host memory too: at most this many times the cache."""
    kv_events: str | None = None
    """Where to publish which blocks the cache has, for routers: `tcp://*:5557`, or a file's URL."""
    kv_events_replay: str | None = None
    """Where subscribers may ask for events that they have missed: `tcp://*:5558`."""
    kv_events_topic: str | None = None
    """What subscribers choose by; None: the sink's own, with the host's and the model's name."""
    prefill_for: str | None = None
    """Compute prompts for other instances, which connect to this URL: `shm://NAME` on one machine,
    `tcp://HOST:PORT` from others. `AsyncLLM` and servers only."""
    decode_with: str | None = field(default=None, converter=_urls)
    """Have long prompts computed by the instance at this URL, or at one of several (a list, or
    separated by commas): each by the one that will be done with it first. With ranks, it has as
    many."""
    pd_token_file: str | None = None
    """File with the secret that both instances know; tcp needs one."""
    pd_min_tokens: int = 128
    """A prompt is sent out if it has at least this many tokens, and either nothing of it is cached,
    or at least `pd_min_uncached` tokens are not."""
    pd_min_uncached: int = 1024
    pd_timeout: float = 120.0
    """Seconds after which a prompt that was sent out is computed here."""
    pd_buffer: str = "1GiB"
    """Limit of the blocks that are on their way."""
    session_ttl: float | None = None
    """Seconds that a session's blocks are kept after its last use, before those of others, if its
    requests do not say; None: 3600."""
    session_quota: int | None = None
    """The most tokens that are kept of a session; None: those of the longest context."""
    tp: int = 1
    """Tensor parallelism: how many processes share each layer. `memory` is that of all processes on
    a device, `threads` are those of each."""
    pp: int = 1
    """Pipeline parallelism: how many stages, each with some of the layers, a step passes through;
    each stage has `tp` processes. There are as many steps in flight."""
    ep: bool = False
    """Expert parallelism: the `tp` processes deal a mixture's experts out whole, instead of sharing
    each; with `tp` of 1 the `dp` engines do, instead of each having all."""
    experts_on_host: int = 0
    """How many of the routed experts that a process has of each layer stay in the host's memory,
    where the host computes them."""
    fetch_experts_from: str = field(default="auto", converter=str)
    """From how many tokens of a step a device copies the experts that it needs of these to itself,
    and computes them. auto: measured at the start, if the host's memory has room for a second copy
    of them; never; 1: always, without a second copy."""
    dp: int = 1
    """Data parallelism: how many engines answer requests, each with the whole model (with `ep`,
    some of the experts). `memory` is that of all of them, `max_num_seqs` is that of each."""
    nodes: int = 1
    """Machines that these processes are on, as many on each. The others join this one: `inferno
    rank --join`."""
    executor: str | None = None
    """What starts the other machines' processes (`Executor.machines`); None: a person."""
    rank_host: str | None = None
    """This machine's address by which the others reach it, or its network interface; None: that of
    the default route."""
    rank_port: int = 29400
    """The port that they join at."""
    rank_token_file: str | None = None
    """File with the secret that all machines know; None: `inferno/ranks.token` in the user's cache
    folder, which is made if it is missing."""
    numa: str | None = None
    """NUMA nodes that the ranks, or engines, are bound to, one after the other: `0,1`; auto: all
    nodes. None: the system chooses the cores of each."""
    threads: int | None = None
    """CPU threads of a step; None: the cores this process may use, or one if the model is too small
    to profit from more."""
    overrides: tuple[str, ...] = field(default=(), converter=_overrides)
    """Modules to take from other models, each as `PATTERN=REF`, or all as a mapping: where several
    patterns match a module's path, the last one counts."""
    isq: str | None = None
    """What dense matrices are quantized to while loading: a scheme or a mix, and rules for some by
    patterns of their modules' paths, `q4_k_m,model.layers.0.*=q8_0`. The first rule that matches
    counts; `none` leaves matrices as they are."""
    requantize: bool = False
    """Whether in-situ quantization may round matrices that are quantized already."""
    imatrix: str | None = None
    """File with the importance of each matrix's columns, which in-situ quantization weighs errors
    by."""
    packed_cache: str = "auto"
    """Folder in which packed weights are kept, so that the next start need not pack them. auto:
    `inferno/packed` in the user's cache folder; none: nothing is kept."""
    packed_cache_size: str = "32GiB"
    """Limit of that folder: the files used longest ago make room."""
    batch_invariant: bool = False
    """Compute the same bits, tokens and log-probabilities, whatever else is in the batch, however
    prompts are cut into steps, whatever was cached, and with any number of threads. What cannot is
    refused."""
    seed: int | None = None
    """Makes requests without a seed reproducible from run to run."""
    revision: str | None = None
    offline: bool = False
    progress: bool = False
    speculative: str | None = None
    """Speculative decoding: a proposer's name (`ngram`, `mtp`), or a reference to a draft model."""
    num_speculative_tokens: int | None = None
    """The most draft tokens per step and sequence; None: the proposer's."""
    loras: tuple[str, ...] = field(default=(), converter=_overrides)
    """Low-rank adapters that requests may name, each as `NAME=REF`, or all as a mapping."""
    max_loras: int | None = None
    """How many different adapters the running requests may have; None: as many as `loras` has, and
    without any no room for adapters."""
    max_lora_rank: int | None = None
    """The largest rank of an adapter; None: that of `loras`, or 16."""
    lora_targets: str = "auto"
    """What adapters may change. auto: linear layers, and of routed experts, embeddings and output
    heads what those of `loras` change; all: these too."""
    max_image_tokens: int | None = None
    """The most tokens of an image: larger ones are scaled down. None: 4096."""
    max_audio_seconds: int | None = None
    """The longest audio, if the model hears so much. None: 600."""
    mmproj: str = "auto"
    """The file with the encoder of images, of a format that stores it apart from the text model: a
    reference. auto: one beside the model's file; none: images are off."""
    image_cache_size: str = "256MiB"
    """Limit of the embeddings that are kept of images, so that one that comes again, or goes on
    after a preemption, need not be computed again; and of prepared pixels. Of audio as well."""
    chat_format: str = "auto"
    """How the model writes reasoning and tool calls: a format's name; auto: as its chat template
    shows; none: all output is content."""
    sandbox: bool = False
    """Confine the engine's processes: no network, no secrets in the environment, no files but the
    model's. `AsyncLLM` and servers only."""
    sandbox_read: tuple[str, ...] = field(default=(), converter=_overrides)
    """Folders that they may read besides: of adapters and weights that come later."""
    served_model_name: str | None = None
    disable: tuple[str, ...] = field(default=(), converter=_names)
    only: tuple[str, ...] = field(default=(), converter=_names)

    @property
    def ranks(self) -> int:
        """How many processes compute the steps of an engine."""
        return self.tp * self.pp

    @property
    def ranks_here(self) -> int:
        """How many ranks of an engine share this machine."""
        return self.ranks // self.nodes

    @property
    def shared_by(self) -> str:
        """The options that say how many ranks there are, as a user writes them."""
        tp, pp = f"--tp {self.tp}" * (self.tp > 1), f"--pp {self.pp}" * (self.pp > 1)
        return " ".join(filter(None, (tp, pp, "--ep" * (self.ep and self.tp > 1))))

    @property
    def deals(self) -> bool:
        """Whether routed experts are dealt out to engines, and not to the ranks of each."""
        return self.ep and self.dp > 1 and self.tp == 1

    @property
    def exchanges(self) -> bool:
        """Whether processes of this machine exchange tensors within layers."""
        return self.deals or self.tp > 1 == self.nodes

    @property
    def processes_here(self) -> int:
        """How many processes that compute share this machine."""
        return self.dp * self.ranks_here

    def __attrs_post_init__(self) -> None:
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "tp",
            "pp",
            "dp",
            "nodes",
            "rank_port",
            "threads",
            "num_speculative_tokens",
            "max_loras",
            "max_lora_rank",
            "max_image_tokens",
            "max_audio_seconds",
            "pd_min_tokens",
            "pd_min_uncached",
            "session_quota",
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is {value!r}", "It must be an integer of at least 1.")
        if self.experts_on_host < 0:
            raise OptionError(
                f"experts_on_host is {self.experts_on_host}", "Say how many of a layer's; 0: none."
            )
        fetch = self.fetch_experts_from
        if fetch not in ("auto", "never") and not (fetch.isdecimal() and int(fetch) > 0):
            raise OptionError(
                f"fetch_experts_from is {fetch!r}", "Say how many tokens, at least 1; auto; never."
            )
        if self.lora_targets not in ("auto", "all"):
            raise OptionError(f"lora_targets is {self.lora_targets!r}", "Known: auto, all.")
        if self.max_step_time is not None and not 0 <= self.max_step_time < math.inf:
            raise OptionError(
                f"max_step_time is {self.max_step_time!r}", "It is in seconds; 0: no limit."
            )
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise OptionError(
                f"dtype {self.dtype!r} is not known", f"Known: auto, {', '.join(COMPUTE_DTYPES)}."
            )
        if self.kv_cache_dtype not in (known := get_args(CacheDType)):
            names = ", ".join("fp8" if name == _cache_dtype("fp8") else name for name in known)
            raise OptionError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is not known", f"Known: {names}."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise OptionError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
                f"{self.max_num_seqs}",
                "Every running sequence needs a token in each step: raise the former or lower "
                "the latter.",
            )
        if self.cpu_mem_fold is not None and not 0 < self.cpu_mem_fold <= MOST_FOLD:
            raise OptionError(
                f"cpu_mem_fold is {self.cpu_mem_fold!r}",
                f"It is a multiple of the cache's size, above 0 and at most {MOST_FOLD}.",
            )
        if not 0 < self.pd_timeout < float("inf"):
            raise OptionError(
                f"pd_timeout is {self.pd_timeout!r}", "It is a number of seconds above 0."
            )
        if self.session_ttl is not None and not 0 < self.session_ttl <= MOST_TTL:
            raise OptionError(
                f"session_ttl is {self.session_ttl!r}",
                f"It is in seconds, above 0 and at most {MOST_TTL}.",
            )
        if self.sandbox_read and not self.sandbox:
            raise OptionError("sandbox_read is set without sandbox", "Add --sandbox.")
        if self.imatrix is not None and self.isq is None:
            raise OptionError(
                "imatrix is set without isq", "Say what to quantize to: --isq NAME --imatrix FILE."
            )
        if self.requantize and self.isq is None:
            raise OptionError(
                "requantize is set without isq", "Say what to quantize to: --isq NAME --requantize."
            )
        if self.ranks % self.nodes:
            raise OptionError(
                f"{self.ranks} ranks cannot be dealt out evenly to {self.nodes} machines",
                f"Use a multiple: --tp {max(2, self.nodes)} --nodes {self.nodes}.",
            )
        if self.ep and self.tp == self.dp == 1:
            raise OptionError(
                "ep is set without tp or dp",
                "Say how many processes to deal the experts out to: with --tp 2 --ep these also "
                "share all other weights; --dp 2 --ep is for latent attention and many requests.",
            )
        if not 0 < self.rank_port < 1 << 16:
            raise OptionError(f"rank_port is {self.rank_port!r}", "It is from 1 to 65535.")
        if self.numa is not None and self.processes_here == self.nodes == 1:
            raise OptionError(
                "numa is set without tp, pp or dp",
                "Say how many ranks or engines to bind: --tp 2 --numa auto.",
            )
        if self.num_speculative_tokens is not None and self.speculative is None:
            raise OptionError(
                "num_speculative_tokens is set without speculative",
                "Name a proposer: --speculative ngram.",
            )
        if self.memory is not None and self.gpu_memory_utilization is not None:
            raise OptionError(
                "memory and gpu_memory_utilization exclude each other", "Give one of them."
            )
