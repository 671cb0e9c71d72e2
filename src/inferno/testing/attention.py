"""Tests of every attention backend: it equals naive float64 attention, or refuses with a reason.

Suffixes: H query heads, K key/value heads, C head dim, L tokens of a sequence, T packed tokens of a
step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from inferno.catalog import Catalog, Offer
from inferno.contracts import DTYPE_BYTES, AttentionBackend, AttentionNeed, Device, IndexSpec
from inferno.errors import UnsupportedError
from inferno.plan import find_device
from inferno.testing.alike import alike
from inferno.testing.devices import STRANGE, UNKNOWN
from inferno.testing.installed import Installed
from inferno.testing.naive_attention import LONGEST
from inferno.testing.paged_steps import STEPS, run_steps
from inferno.testing.tiny import run_python
from inferno.testing.trained import trained_heads

HEADS = [(4, 4, 16), (6, 2, 32), (8, 1, 64)]
WINDOWS = [None, 1, 5, 16]
CAPS = [None, 3.0]
SPECIAL: Sequence[dict[str, Any]] = [
    {"num_heads": 6, "num_kv_heads": 2, "head_dim": 32, "sinks": True},
    {"num_heads": 6, "num_kv_heads": 3, "head_dim": 16, "sinks": True, "sliding_window": 5},
    {"num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "value_dim": 16},
    {
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "sliding_window": 40,
        "index": IndexSpec(num_heads=3, head_dim=8, top_k=5),
    },
    {
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 40,
        "latent_dim": 32,
        "index": IndexSpec(num_heads=4, head_dim=16, top_k=11),
    },
    {"num_heads": 4, "num_kv_heads": 1, "head_dim": 40, "latent_dim": 32},
]
"""Needs with rarer features."""
EIGHT_BITS = {"int8": 0.03, "fp8_e4m3": 0.12}
"""How far results may be from those of an exact cache, by dtype of the cache."""

TRAINED = {"float32": 3e-5, "float16": 8e-4, "bfloat16": 6e-3}
TRAINED_8_BITS = {"float32": 1e-3, "float16": 8e-3, "bfloat16": 0.04}
"""How far a row's result may be from that of `trained_heads` in float64, with keys and values as
the cache has them, by dtype: the norm of the difference, as a share of the row's norm and a tenth
of a value's. Where the cache has 8 bits, an element between two codes may be stored as either."""
TRAINED_NEEDS: Sequence[dict[str, Any]] = [
    {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
    {"num_heads": 4, "num_kv_heads": 1, "head_dim": 128, "soft_cap": 30.0},
    {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "sliding_window": 150},
    {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "sinks": True},
    {"num_heads": 4, "num_kv_heads": 1, "head_dim": 96, "latent_dim": 64},
]

_SENTENCE_WORDS = 3


class AttentionBackendTests(Installed):
    """Set `backend` to its registered name. For another device than the CPU, set `device`; for
    other dtypes or block sizes, `dtypes` and `block_sizes`. Set `runs_anywhere` if it is written in
    torch and runs on any device that torch has; `sparse` if it is slow, because it is interpreted;
    `same_bits` if a row's result follows from its position alone, bit for bit. Contexts have up to
    `longest` tokens.

    A need of the grid may be refused, with a sentence; plain attention over the first of `dtypes`
    may not.
    """

    backend: ClassVar[str]
    device: ClassVar[str] = "cpu"
    """As in `--device`."""
    runs_anywhere: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    """Test each pair of values of two of the grid's axes once, with one block size, not all."""
    same_bits: ClassVar[bool] = False
    """Whole prompts, chunks and single tokens, alone or beside others, add up keys in one order."""
    longest: ClassVar[int] = 8000
    """Tokens of the longest context that is tested; at most 230 if `sparse`."""
    dtypes: ClassVar[Sequence[str]] = ("float32", "bfloat16")
    block_sizes: ClassVar[Sequence[int]] = (4, 16)
    tolerance: ClassVar[dict[str, float]] = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> AttentionBackend:
        return catalog.named(AttentionBackend, cls.backend).item

    def asked_device(self) -> Device:
        """The device that `device` names on this machine."""
        return find_device(self.device)

    def grid(self) -> Iterator[AttentionNeed]:
        """The needs to test: override for more."""
        device = self.asked_device()
        combinations = list(itertools.product(self.dtypes, HEADS, WINDOWS, CAPS))
        for dtype, (heads, kv_heads, dim), window, cap in (
            _pairwise(combinations) if self.sparse else combinations
        ):
            yield AttentionNeed(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=dim,
                scale=dim**-0.5,
                dtype=dtype,
                device=device,
                sliding_window=window,
                soft_cap=cap,
            )
        for special in SPECIAL:
            yield AttentionNeed(scale=0.2, dtype=self.dtypes[0], device=device, **special)  # type: ignore[arg-type]

    def test_plain_attention_is_not_refused(self, catalog: Catalog) -> None:
        need = next(self.grid())
        assert catalog.attention(need, self.backend).item.name == self.backend

    def test_equals_naive_attention(self, item: AttentionBackend, catalog: Catalog) -> None:
        """Ragged lengths, chunked prompts beside single tokens, scattered blocks; for every need
        that is not refused."""
        needs, sizes = list(self.grid()), itertools.cycle(self.block_sizes)
        cases = (
            zip(needs, sizes, strict=False)
            if self.sparse
            else itertools.product(needs, self.block_sizes)
        )
        for need, block_size in cases:
            if self._refusal(catalog, need) is None:
                for ours_THC, theirs_THC in run_steps(item, need, block_size, STEPS):
                    error_THC = (ours_THC.double().cpu() - theirs_THC).abs() / (
                        1 + theirs_THC.abs()
                    )
                    assert error_THC.max() <= self.tolerance[need.dtype], (
                        f"{need}, blocks of {block_size}"
                    )

    @alike
    def test_8_bit_caches_lose_little(self, item: AttentionBackend, catalog: Catalog) -> None:
        """Of plain, of latent and of indexed attention, of waves, with a window and a soft cap too:
        whichever is not refused."""
        plain = next(self.grid())
        indexed, latent = (attrs.evolve(plain, scale=0.2, **special) for special in SPECIAL[-2:])
        waves = attrs.evolve(plain, waves=True)
        windowed = attrs.evolve(waves, sliding_window=16, soft_cap=20.0)
        needs = plain, latent, waves, windowed, indexed
        cases = itertools.product(needs, EIGHT_BITS.items())
        for need, (kind, tolerance) in itertools.islice(cases, 0, None, 1 + 2 * self.sparse):
            need = attrs.evolve(need, cache_dtype=kind)  # type: ignore[arg-type]
            if self._refusal(catalog, need) is None:
                for ours_THC, theirs_THC in run_steps(item, need, self.block_sizes[-1], STEPS):
                    error_THC = (ours_THC.double().cpu() - theirs_THC).abs()
                    assert (error_THC / (1 + theirs_THC.abs())).max() <= tolerance, f"{need}"

    @alike
    def test_inputs_of_a_trained_model_are_as_exact(
        self, item: AttentionBackend, catalog: Catalog
    ) -> None:
        """A chunk of a prompt and single tokens at the end of `longest` tokens, beside others; with
        every cache, for what is not refused."""
        n, dtypes = self.longest, self.dtypes
        if self.sparse:
            n, dtypes = min(n, 230), dtypes[-1:]
        steps = [(n - 24, 50), (20, 7), (1, 1), (1, 1)]
        for number, fields in enumerate(TRAINED_NEEDS):
            cases = [(dtype, "auto") for dtype in dtypes]
            kinds = list(EIGHT_BITS)[number:][:1] if self.sparse else list(EIGHT_BITS)
            for dtype, kind in [*cases, *((self.dtypes[-1], kind) for kind in kinds)]:
                need = AttentionNeed(
                    scale=fields["head_dim"] ** -0.5,
                    dtype=dtype,  # type: ignore[arg-type]
                    device=self.asked_device(),
                    cache_dtype=kind,  # type: ignore[arg-type]
                    **fields,
                )
                if self._refusal(catalog, need) is not None:
                    continue
                for ours_THC, theirs_THC in run_steps(
                    item,
                    need,
                    self.block_sizes[-1],
                    steps,
                    longest=n,
                    compared=6,
                    draw=trained_heads,
                    filled=True,
                ):
                    error_TH = (ours_THC.double() - theirs_THC).norm(dim=-1)
                    size_TH = theirs_THC.norm(dim=-1) + 0.1 * need.output_dim**0.5
                    bound = (TRAINED if kind == "auto" else TRAINED_8_BITS)[dtype]
                    assert (error_TH / size_TH).max() <= bound, f"{need}"

    def test_neighbours_change_nothing(self, item: AttentionBackend) -> None:
        need, block_size = next(self.grid()), self.block_sizes[-1]
        alone = [[(count if i == 3 else 0) for i, count in enumerate(step)] for step in STEPS]
        together = [
            ours[-step[3] :]
            for step, (ours, _) in zip(STEPS, run_steps(item, need, block_size, STEPS), strict=True)
        ]
        for ours_THC, (theirs_THC, _) in zip(
            together, run_steps(item, need, block_size, alone), strict=True
        ):
            torch.testing.assert_close(ours_THC, theirs_THC, rtol=1e-4, atol=1e-4)

    @pytest.mark.slow
    def test_a_rows_bits_follow_from_positions(
        self, item: AttentionBackend, catalog: Catalog
    ) -> None:
        """Alone and whole, in chunks, as after a cached prefix, token by token and in a batch: for
        what is not refused, where `same_bits` says so, or for needs that are `batch_invariant`."""
        promised = "batch_invariant" in item.features
        if not (self.same_bits or promised):
            pytest.skip("it does not promise them")
        n = LONGEST if self.sparse else 700  # tokens of the sequence that is compared
        every = list(self.grid())
        first, *_, latent = needs = list(dict.fromkeys([every[0], *every[-len(SPECIAL) :]]))
        for need, kind in itertools.product((first, latent), EIGHT_BITS):
            needs.append(attrs.evolve(need, cache_dtype=kind))  # type: ignore[arg-type]
        if not self.sparse:
            needs += [attrs.evolve(first, dtype=each) for each in self.dtypes[1:]]  # type: ignore[arg-type]
        for need in needs:
            if promised:
                need = attrs.evolve(need, batch_invariant=True)
            if self._refusal(catalog, need) is not None:
                continue
            results = {}
            for name, steps in _histories(n).items():
                outputs = run_steps(item, need, self.block_sizes[-1], steps, longest=n, compared=n)
                rows = [ours[-step[3] :] for step, (ours, _) in zip(steps, outputs, strict=True)]
                results[name] = torch.cat(rows)
            whole = results.pop("whole")
            other = [name for name, result in results.items() if not torch.equal(result, whole)]
            assert other == [], f"{need}: rows differ from those of the whole prompt"

    @alike
    def test_slot_minus_1_of_length_0_changes_nothing(
        self, item: AttentionBackend, catalog: Catalog
    ) -> None:
        """Padding rows before, between and behind a step's sequences, and steps of nothing else:
        not a bit of the cache, nor another row's output. The same if the step is captured."""
        steps, block_size = [*STEPS, (0, 0, 0, 0)], self.block_sizes[-1]
        every = list(self.grid())
        needs = dict.fromkeys([every[0], *every[-2:]]) if self.sparse else every
        for need in needs:
            if self._refusal(catalog, need) is not None:
                continue
            cache: dict[str, Tensor] = {}
            plain = [
                (ours_THC, {name: tensor.clone() for name, tensor in cache.items()})
                for ours_THC, _ in run_steps(item, need, block_size, STEPS, cache=cache)
            ]
            both = need == every[0] or not self.sparse
            for captured in (False, True) if both else (True,):
                cache = {}
                padded = run_steps(
                    item, need, block_size, steps, cache=cache, padding=True, captured=captured
                )
                for (theirs_THC, before), (ours_THC, _) in zip(plain, padded, strict=False):
                    error_THC = (ours_THC - theirs_THC).abs() / (1 + theirs_THC.abs())
                    assert error_THC.max() <= self.tolerance[need.dtype], f"{need}"
                    _assert_same_bits(before, cache)
                before = {name: tensor.clone() for name, tensor in cache.items()}
                assert len(list(padded)) == 1, "the step of padding rows only"
                _assert_same_bits(before, cache)

    def test_a_refusal_is_a_sentence(self, catalog: Catalog) -> None:
        odd = AttentionNeed(
            num_heads=5,
            num_kv_heads=3,
            head_dim=7,
            scale=1.0,
            dtype="float32",
            device=self.asked_device(),
        )
        reasons = [self._refusal(catalog, need) for need in (*self.grid(), odd)]
        assert reasons[-1] is not None, "5 query heads cannot share 3 key/value heads"
        for reason in filter(None, reasons):
            assert len(reason.split()) >= _SENTENCE_WORDS, f"{reason!r} is too short to help a user"

    def test_a_device_it_does_not_know_is_refused_with_a_sentence(
        self, item: AttentionBackend
    ) -> None:
        """Only the kind of a device is always known: its capability may be None."""
        plain = next(self.grid())
        for device in STRANGE:
            reason = item.refuses(attrs.evolve(plain, device=device))
            assert reason is None or len(reason.split()) >= _SENTENCE_WORDS, f"{device}: {reason}"
            assert device is not UNKNOWN or self.runs_anywhere or reason is not None, (
                f"it takes a device of a kind it cannot know, {device.kind!r}"
            )

    def test_features_it_does_not_list_are_refused_for_it(
        self, catalog: Catalog, item: AttentionBackend
    ) -> None:
        bare = attrs.evolve(item, features=frozenset(), refuses=lambda need: None)
        offers = {"inferno_attention_backends": (Offer(bare, "stripped"),)}
        plain = next(self.grid())
        for feature in sorted(attrs.evolve(plain, sliding_window=8, soft_cap=9.0).features):
            with pytest.raises(UnsupportedError, match=feature):
                using: dict[str, Any] = {feature: 8}
                Catalog(catalog.plugins, offers).attention(
                    attrs.evolve(plain, **using), self.backend
                )

    def test_the_features_it_lists_exist(self, item: AttentionBackend) -> None:
        assert item.features <= {a.name for a in attrs.fields(AttentionNeed)}

    @alike
    def test_its_cache_is_stated_without_torch(self, item: AttentionBackend) -> None:
        for need in self.grid():
            for tensor in item.cache(need, 16).values():
                assert tensor.dtype in DTYPE_BYTES and all(size > 0 for size in tensor.shape)
        code = (
            "import sys; from inferno.catalog import load_catalog\n"
            "from inferno.contracts import AttentionBackend, AttentionNeed, Device\n"
            "need = AttentionNeed(num_heads=2, num_kv_heads=1, head_dim=64, scale=1.0,"
            " dtype='float32', device=Device('cpu'))\n"
            "item = load_catalog().named(AttentionBackend, sys.argv[1]).item\n"
            "item.refuses(need); item.cache(need, 16)\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, self.backend)
        assert done.returncode == 0, done.stderr

    def _refusal(self, catalog: Catalog, need: AttentionNeed) -> str | None:
        try:
            catalog.attention(need, self.backend)
        except UnsupportedError as error:
            [reason] = [r for r in error.remedy.split("; ") if r.startswith(f"{self.backend} (")]
            return reason.partition("): ")[2]
        return None


def _pairwise(combinations: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Some of the combinations, the first one first, in which each pair of values of two axes
    occurs that occurs in any."""

    def pairs(each: tuple[Any, ...]) -> set[tuple[Any, ...]]:
        return set(itertools.combinations(enumerate(each), 2))

    missing = set().union(*map(pairs, combinations))
    while missing:
        chosen = max(combinations, key=lambda each: len(pairs(each) & missing))
        missing -= pairs(chosen)
        yield chosen


def _histories(n: int) -> Mapping[str, Sequence[Sequence[int]]]:
    """Steps by which the last of four sequences comes to `n` tokens."""
    return {
        "whole": [(0, 0, 0, n)],
        "in chunks": [(0, 0, 0, each) for each in (n // 2, 3, n // 5, n - n // 2 - n // 5 - 4, 1)],
        "after a block": [(0, 0, 0, 16), (0, 0, 0, n - 16)],
        "token by token": [(0, 0, 0, n - 6), *[(0, 0, 0, 1)] * 6],
        "in a batch": [(33, 1, 5, n - 20), (9, 1, 0, 1), (1, 0, 4, 17), (0, 7, 1, 1), (1, 1, 1, 1)],
    }


def _assert_same_bits(cache: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    for name, tensor in cache.items():
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name
