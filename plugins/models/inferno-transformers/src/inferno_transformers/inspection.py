"""Runs a model's modelling code once, on meta tensors, and records its attention calls, or why it
cannot be hosted.

Suffixes: T tokens, H query heads, K key/value heads, C head dim, N positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from attrs import define, field
from torch import Tensor, nn

from inferno.contracts import AttentionSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import UnsupportedError
from inferno.nn import Dense, Unloaded
from inferno_transformers import skeleton
from inferno_transformers.listed import is_list, keeps
from inferno_transformers.matrices import divides
from inferno_transformers.model import ATTENTION, hidden, logits
from inferno_transformers.refusals import CANNOT, OWN_ATTENTION, OWN_STATE, REMEDY
from inferno_transformers.scores import Mask, Products, Reader, is_of_pairs
from inferno_transformers.states import KEPT, Kept, is_of_tokens
from inferno_transformers.step import running
from inferno_transformers.trace import Decisions, TooManyOperatorsError, Trace, number_of_tokens

HEEDED = {"scaling", "sliding_window", "softcap", "s_aux", "is_causal", "dropout"}
"""Keyword arguments of transformers' attention functions. The window is read from the mask instead;
dropout is for training."""
IGNORED = {
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "cache_position",
    "return_dict",
    "layer_idx",
}
"""Arguments that do not affect attention."""
LONGEST = 1 << 18
"""Context of a model with states whose config does not say one: a state has no longest context."""
FEW = 283
"""Tokens of the step of a model with states, whose code may take one after the other. More than a
block of a matrix's rows has."""
FURTHEST = 1 << 20
"""Positions of a mask that are sampled."""


def inspect(config: str) -> dict[str, Any]:
    """Compute `config.HostedConfig`'s fields from a `config.json`, as plain data. Raises
    UnsupportedError, CheckpointError."""
    fields = json.loads(config)
    plain: set[str] = set()
    while True:
        outline = skeleton.build(fields, plain)
        weights = _give_shapes(outline.model)
        try:
            record, vocab_size = _run(outline)
        except UnsupportedError as error:
            read = {path for path, weight in weights.items() if weight.is_read}
            if read and not isinstance(error, TooManyOperatorsError):
                # Again, with torch's own matrices there and in all layers alike.
                kinds = {_kind(path) for path in read}
                plain |= {path for path in weights if _kind(path) in kinds}
                continue
            cause = f"{skeleton.called(fields)} {CANNOT}: {error.cause}"
            raise UnsupportedError(cause, error.remedy) from error
        break
    states = _states(outline, record)
    paths = {module: path for path, module in outline.model.named_modules()}
    return {
        "vocab_size": vocab_size,
        "max_position_embeddings": record.longest,
        "attention": {
            f"{paths[module]}.{ATTENTION}{call or ''}": attrs.asdict(spec)
            for (module, call), spec in record.specs.items()
        },
        "states": {f"{paths[module]}.{KEPT}": tensors for module, tensors in states.items()},
        "products": [paths[module] for module in record.products],
        "parameters": sorted(outline.parameters),
        "plain": sorted(plain),
        "divides": divides(outline.model),
        "unused_tensors": list(outline.tied),
    }


def _states(found: skeleton.Skeleton, record: _Record) -> dict[nn.Module, dict[str, Any]]:
    """Shape and dtype of what modules keep of a sequence, by name. A run in another compute type
    shows which tensors have it."""
    if not record.states:
        return {}
    found.model.to(torch.bfloat16)
    other, _ = _run(found)
    return {
        module: {
            name: (
                list(tensor.shape[1:]),
                COMPUTE
                if other.states[module].tensors[name].dtype == torch.bfloat16
                else "float32",
            )
            for name, tensor in state.tensors.items()
        }
        for module, state in record.states.items()
    }


def _kind(path: str) -> str:
    """The path of a module in whichever layer: with `*` for each number."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def _give_shapes(model: Any) -> dict[str, _Watched]:
    """Move the whole model to meta, and return its hosted matrices by path."""
    tables = {name: table for name, table in model.named_buffers() if is_of_pairs(table)}
    model.to("meta")
    for name, table in tables.items():  # which token sees which, perhaps: that is read
        path, _, name = name.rpartition(".")
        model.get_submodule(path)._buffers[name] = table
    weights = {}
    for path, module in model.named_modules():
        if isinstance(weight := getattr(module, "weight", None), Unloaded):
            module.weight = weights[path] = _Watched(torch.empty(weight.shape, device="meta"))
            weights[path].is_read = False  # set by registering its buffer
    return weights


class _Watched(Dense):
    """A weight that notices when code uses it as a tensor."""

    is_read = False

    def __getattr__(self, name: str) -> Any:
        if name in dir(Tensor) and name not in self.__dict__.get("_buffers", ()):
            self.is_read = True
        return super().__getattr__(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for weight in (*args, *(kwargs or {}).values()):
            if isinstance(weight, cls):
                weight.is_read = True
        return NotImplemented


def _run(found: skeleton.Skeleton) -> tuple[_Record, int]:
    """Record the code's attention calls, and the width of its logits."""
    model = found.model
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is None and found.is_stateful:
        longest = LONGEST
    if not isinstance(longest, int) or longest < 1:
        raise UnsupportedError("its config does not say how long a context may be", REMEDY)
    sizes = {size for tensor in (*model.parameters(), *model.buffers()) for size in tensor.shape}
    tokens = number_of_tokens(min(longest, FEW) if found.is_stateful else longest, sizes)
    ids_1T, positions_1T = (
        torch.zeros(1, tokens, dtype=torch.int64, device="meta") for _ in range(2)
    )
    record, trace = _Record(longest, tokens), Trace(tokens, positions_1T)
    trace.is_paused = record.is_stateful
    products = Products(
        Reader(attend=record.attend, mask=record.table), record.owner, record.is_stateful
    )
    try:
        with (
            torch.no_grad(),
            running(record),
            Decisions(),
            trace,
            products,
            record.following(model),
        ):
            logits_TV = logits(model, hidden(model, ids_1T, positions_1T))
    except TooManyOperatorsError as error:
        if found.is_stateful and not record.states:
            raise TooManyOperatorsError(OWN_STATE, REMEDY) from error
        raise
    except UnsupportedError:
        raise
    except Exception as error:  # arbitrary code may raise anything
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedError(
            f"its code does not run as one packed step: {line}", REMEDY
        ) from error
    if found.is_stateful and not record.states:
        raise UnsupportedError(OWN_STATE, REMEDY)
    if not record.specs and not record.states:
        raise UnsupportedError(OWN_ATTENTION, REMEDY)
    if trace.mixed:
        raise UnsupportedError(f"it mixes tokens outside attention ({trace.mixed})", REMEDY)
    if record.specs and not trace.read_positions and not record.states:
        raise UnsupportedError("it does not read the positions it is given", REMEDY)
    return record, logits_TV.shape[-1]


@define
class _Record:
    """A step that records attention calls."""

    longest: int
    tokens: int
    specs: dict[tuple[nn.Module, int], AttentionSpec] = field(factory=dict)
    """By module, and which of its calls it is."""
    products: dict[nn.Module, None] = field(factory=dict)
    """Modules that write attention out."""
    running: list[nn.Module] = field(factory=list)
    states: dict[nn.Module, Kept] = field(factory=dict)
    """What modules ask the cache for."""
    alike: list[nn.Module] = field(factory=list)
    """Modules that are not run: one like them was."""

    def is_stateful(self) -> bool:
        """Whether a module with states runs, which gets one sequence at a time."""
        return any(module in self.states for module in self.running)

    def kept(self) -> Kept:
        return self.states.setdefault(self.running[-1], Kept())

    def know_alike(self, model: nn.Module, shown: nn.Module, found: Any) -> None:
        """Take what a module with a state makes for what all alike make: some loop over tokens."""

        def known(module: nn.Module) -> Callable[..., Any]:
            def forward(*_: Any, **__: Any) -> Any:
                self.states[module] = self.states[shown]
                return found

            return forward

        shapes = [each.shape for each in shown.parameters()]
        for module in model.modules():
            if type(module) is type(shown) and module not in {*self.states, *self.alike}:
                if [each.shape for each in module.parameters()] == shapes:
                    self.alike.append(module)
                    vars(module)["forward"] = known(module)

    def check_stateful(self, module: nn.Module, given: Iterable[Any], found: Any) -> None:
        """Raise UnsupportedError unless such a module makes one tensor of some of each token."""
        tensors = [x for x in given if isinstance(x, Tensor)]
        made = found if isinstance(found, tuple) else (found,)
        kept = self.states[module]
        makes = [x for x in made if not (x is None or kept.holds(x) or is_list(x))]
        if any(not is_of_tokens(x, self.tokens) for x in (*tensors, *makes)) or len(makes) != 1:
            raise UnsupportedError(
                f"{type(module).__name__} keeps a state, and takes or makes more than tokens",
                REMEDY,
            )

    def owner(self, query: Tensor) -> nn.Module | None:
        """The module that is running, if this is its product of queries and keys."""
        if query.shape[-2] != self.tokens or self.is_stateful():
            return None
        self.products[self.running[-1]] = None
        return self.running[-1]

    def table(self, allowed: Tensor) -> Mask:
        """The mask of a table that has a value for each query and key."""
        table = allowed[(0,) * (allowed.ndim - 2)]
        longest = min(self.longest, *table.shape)
        return self.mask(lambda _, __, query, key: table[query, key], table.shape, longest)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Context in which `running` has the modules whose code runs, the innermost last."""

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.running.append(module)
            if keeps(module, (*args, *kwargs.values())):
                self.kept()

        def leave(module: nn.Module, args: Any, kwargs: Any, found: Any) -> None:
            self.running.pop()
            if module in self.states:
                self.check_stateful(module, (*args, *kwargs.values()), found)
                self.know_alike(model, module, found)

        hooks = [
            hook
            for module in model.modules()
            for hook in (
                module.register_forward_pre_hook(enter, with_kwargs=True),
                module.register_forward_hook(leave, with_kwargs=True),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module in self.alike:
                del module.forward

    def attend(
        self,
        module: nn.Module,
        q_1HTC: Tensor,
        k_1KTC: Tensor,
        v_1KTC: Tensor,
        mask: object,
        asked: dict[str, Any],
    ) -> Tensor:
        if self.is_stateful():
            raise UnsupportedError(f"{type(module).__name__} attends and keeps a state", REMEDY)
        if unknown := sorted(
            k for k, v in asked.items() if v is not None and k not in HEEDED | IGNORED
        ):
            raise UnsupportedError(f"its attention takes {', '.join(unknown)}", REMEDY)
        if not isinstance(mask, Mask):
            raise UnsupportedError(
                f"{type(module).__name__} attends without a causal mask made by transformers",
                REMEDY,
            )
        if asked.get("is_causal") is False:
            raise UnsupportedError(f"{type(module).__name__} is not causal", REMEDY)
        (_, heads, tokens, dim), kv_heads, value_dim = (
            q_1HTC.shape,
            k_1KTC.shape[1],
            v_1KTC.shape[-1],
        )
        scale = asked.get("scaling")
        call = sum(of is module for of, _ in self.specs)
        self.specs[module, call] = AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            scale=dim**-0.5 if scale is None else float(scale),
            sliding_window=mask.window,
            soft_cap=asked.get("softcap"),
            sinks=asked.get("s_aux") is not None,
            value_dim=None if value_dim == dim else value_dim,
        )
        return q_1HTC.new_empty(1, tokens, heads, value_dim)

    def mask(
        self, allows: Callable[..., Tensor], shape: torch.Size, longest: int = FURTHEST
    ) -> Mask:
        return Mask(window_of(allows, min(self.longest, longest)), shape)


def window_of(allows: Callable[..., Tensor], longest: int) -> int | None:
    """Return the sliding window of a mask, by sampling it; None: plain causal. Raises
    UnsupportedError for any other mask."""
    positions_N = torch.arange(longest)
    seen = int(_allowed(allows, longest - 1, positions_N).sum())
    for query in {0, 1, seen - 1, seen, seen + 1, longest // 2, longest - 1} & set(range(longest)):
        expected_N = (positions_N <= query) & (positions_N > query - seen)
        if not torch.equal(_allowed(allows, query, positions_N), expected_N):
            raise UnsupportedError("its mask is neither causal nor a sliding window", REMEDY)
    return None if seen == longest else seen


def _allowed(allows: Callable[..., Tensor], query: int, positions_N: Tensor) -> Tensor:
    zero = torch.zeros((), dtype=torch.int64)
    return allows(zero, zero, torch.tensor(query), positions_N).expand(len(positions_N))
