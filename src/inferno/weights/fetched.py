"""Measures, on a model's weights, whether the host computes a step's experts sooner, or the device
fetches and computes them.

Suffixes: T tokens, D hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from attrs import evolve
from torch import Tensor, nn

from inferno.device.staging import fence
from inferno.nn import Router
from inferno.nn.fetching import MOST_KINDS, Fetching
from inferno.nn.host_experts import HostExperts
from inferno.plan import Opened, Plan
from inferno.plan.fetch_use import Timed, fetch_from
from inferno.weights.dtypes import dtype_of

LIMIT = 3.0
"""Seconds after which nothing more is measured."""
_GROWTH = 4
"""From one number of tokens to the next."""
_APART = 0.1
"""What both ways may differ by, of the length of a result: the host's kernels may round inputs to 8
bits."""

Clock = Callable[[], float]
log = logging.getLogger("inferno.weights")


def fetching_of(opened: Opened) -> Fetching | None:
    """Return what layers share to fetch experts; None if the host computes all that it has."""
    use = opened.plan.host_experts
    if use is None or use.fetch is None:
        return None
    return Fetching(opened.plan.device.torch_name)


def with_times(plan: Plan, models: Sequence[nn.Module]) -> Plan:
    """Return the plan with what was measured of the model's experts, if anything was."""
    use = plan.host_experts
    if use is None or use.fetch is None:
        return plan
    for host in (each for model in models for each in model.modules()):
        if isinstance(host, HostExperts) and (found := host.fetching) is not None:
            times = tuple(Timed(*each) for each in found.times)
            if use.fetch.from_tokens is None and not times:  # it does not compute the same
                return evolve(plan, host_experts=evolve(use, fetch=None))
            fetch = evolve(use.fetch, measured=times, copy_rate=found.copy_rate)
            return evolve(plan, host_experts=evolve(use, fetch=fetch))
    return plan


@torch.inference_mode()
def choose_way(
    model: nn.Module, opened: Opened, fetching: Fetching, clock: Clock = time.perf_counter
) -> None:
    """Measure both ways in layers of a loaded model, in turn, and tell all of them from how many
    tokens of a step the device is to fetch. Does nothing where the plan says how many."""
    plan = opened.plan
    assert plan.host_experts is not None and plan.host_experts.fetch is not None, "it is to fetch"
    both = [m for m in model.modules() if isinstance(m, HostExperts) and m.fetched is not None]
    if plan.host_experts.fetch.from_tokens is not None:
        return
    if not fetching.fits:
        log.warning(
            "experts on the host are not fetched: they have more than %d forms (types, shapes), "
            "and each needs buffers on the device; --fetch-experts-from never avoids this warning",
            MOST_KINDS,
        )
        return _stay(both, fetching)
    if not both:
        return
    top_k = next((m.routing.top_k for m in model.modules() if isinstance(m, Router)), 1)
    layers = Layers(both, dtype_of(plan), plan.device.torch_name, top_k, clock)
    fetching.copy_rate = layers.copy_rate()
    fetching.times = tuple(layers.times(plan.max_num_batched_tokens))
    found = fetch_from(tuple(Timed(*each) for each in fetching.times))
    if found is not None and not layers.agree():
        log.warning(
            "experts on the host are not fetched: the device would compute other results. Report "
            "it to the authors of the model's kernels; --fetch-experts-from never avoids this "
            "warning"
        )
        fetching.times, found = (), None
    if found is None:
        _stay(both, fetching)
    else:
        for each in both:
            each.fetch_from = found
    log.info(
        "experts on the host are fetched %s: copies reach %.1f GB/s; milliseconds of a layer "
        "by tokens, computed or fetched: %s",
        f"in steps of {found} tokens and more" if found is not None else "in no step",
        fetching.copy_rate / 1e9,
        ", ".join(f"{n}: {one * 1e3:.2f} or {two * 1e3:.2f}" for n, one, two in fetching.times),
    )


def _stay(both: Sequence[HostExperts], fetching: Fetching) -> None:
    """Let the host compute all steps, and free what the device would have copied."""
    for each in both:
        each.stay()
    fetching.free()


class Layers:
    """Layers of a model whose experts on the host can be computed both ways."""

    def __init__(
        self,
        hosts: Sequence[HostExperts],
        dtype: torch.dtype,
        device: str,
        top_k: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._hosts = [host for host in hosts if _hidden(host) == _hidden(hosts[0])]
        self._turns = itertools.cycle(self._hosts)
        self._dtype, self._device, self._clock = dtype, device, clock
        self._top_k, self._random = top_k, torch.Generator().manual_seed(0)

    def copy_rate(self) -> float:
        """Return the bytes that are copied to the device in a second, an expert at a time."""
        fetched, best = self._hosts[0].fetched, 0.0
        assert fetched is not None, "they can be fetched"
        for expert in fetched.each[:8]:
            buffer, queue = expert.buffers.next(), fetched.fetching.queue
            pairs = list(zip(buffer.tensors, expert.tensors, strict=True))
            seconds = self._seconds(lambda: queue.wait(queue.copy(pairs, buffer.free)))  # noqa: B023
            buffer.free = queue.mark()
            best = max(best, sum(t.nbytes for t in expert.tensors) / max(seconds, 1e-9))
        return best

    def times(self, most: int) -> Iterator[tuple[int, float, float]]:
        """Yield numbers of tokens, at most `most`, and a layer's seconds for them: computed on the
        host, and fetched. Stops once fetching is clearly faster."""
        until, faster = self._clock() + LIMIT, 0
        for count in [*_powers(most), most]:
            step = self._step(count)
            computed = self._best(lambda: self._computed(next(self._turns), *step))  # noqa: B023
            fetched = self._best(lambda: self._fetched(next(self._turns), *step))  # noqa: B023
            yield count, computed, fetched
            faster = faster + 1 if fetched < computed / 1.2 else 0
            if faster == 2 or self._clock() > until:
                return

    def agree(self) -> bool:
        """Whether the device computes from its copies what the host computes."""
        step, ways = self._step(16), (self._computed, self._fetched)
        for host in (self._hosts[0], self._hosts[-1]):
            ours, theirs = (way(host, *step) for way in ways)
            if ours is None or theirs is None:
                continue
            apart = (ours.float() - theirs.float()).norm()
            if not apart <= _APART * ours.float().norm():
                return False
        return True

    def _step(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Make a step of random tokens, each of which picks different experts."""
        group = self._hosts[0].group
        assert group is not None, "the host can compute them"
        num_experts = len(group.own if group.local_E is None else group.local_E)
        scores_TE = torch.rand(count, num_experts, generator=self._random)
        experts_TK = scores_TE.topk(min(self._top_k, num_experts), dim=-1).indices
        x_TD = torch.randn(count, _hidden(self._hosts[0]), generator=self._random).to(self._dtype)
        weights_TK = torch.full(experts_TK.shape, 1 / experts_TK.shape[1])
        return x_TD.to(self._device), experts_TK.to(self._device), weights_TK.to(self._device)

    @staticmethod
    def _computed(
        host: HostExperts, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Tensor | None:
        return host.computed(x_TD, experts_TK, weights_TK, fitted=True)()

    @staticmethod
    def _fetched(
        host: HostExperts, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Tensor | None:
        assert host.fetched is not None, "they can be fetched"
        return host.fetched.start(x_TD, experts_TK, weights_TK)()

    def _best(self, compute: Callable[[], object]) -> float:
        """Return the shortest of some times, after a first call, which compiles kernels."""
        times = [self._seconds(compute)]
        while len(times) < 4 and sum(times) < 0.3:
            times.append(self._seconds(compute))
        return min(times[1:] or times)

    def _seconds(self, compute: Callable[[], object]) -> float:
        self._reached()
        begin = self._clock()
        compute()
        self._reached()
        return self._clock() - begin

    def _reached(self) -> None:
        """Wait until the device has done what it was given."""
        now = fence(self._device)
        now.record()
        now.synchronize()


def _powers(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= _GROWTH


def _hidden(host: HostExperts) -> int:
    assert host.group is not None, "the host can compute them"
    return host.group.down.weight.shape[0] // len(host.group.own)
