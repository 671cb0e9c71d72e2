"""How many masks draws need: one where the grammar refuses the tokens that are asked for first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from attrs import define, evolve

from inferno import LLM, SamplingParams
from inferno.constraints import Masks
from inferno.constraints.constraint import GrammarConstraint, Mask, set_bit
from inferno.contracts import GrammarSpec, ReasoningMarkers
from inferno.request.requests import Request
from inferno.sampling import Sampler
from inferno.testing import alike

PROMPT = "def f(x):"
ANY = {"regex": "(?s:.*)"}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["cat", "cow"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=4) as llm:
        yield llm


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows for which masks were computed, whenever some were."""
    counts, whole = list[int](), Masks.fill

    def fill(self: Masks, rows: Collection[int]) -> None:
        before = len(self.known)
        whole(self, rows)
        if len(self.known) > before:
            counts.append(len(self.known) - before)

    monkeypatch.setattr(Masks, "fill", fill)
    return counts


def asking(structured: Any, **changes: Any) -> SamplingParams:
    values = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, **changes}
    return SamplingParams(structured_outputs=structured, **values)


def texts(llm: LLM, params: Sequence[SamplingParams], prompt: str = PROMPT) -> list[str]:
    return [each.outputs[0].text for each in llm.generate([prompt] * len(params), list(params))]


@pytest.mark.parametrize("changes", [{}, {"frequency_penalty": 0.5}, {"logprobs": 2}], ids=str)
def test_a_greedy_answer_that_the_grammar_allows_has_no_mask(
    llm: LLM, computed: list[int], changes: dict[str, Any]
) -> None:
    free, held = asking(None, **changes), asking(ANY, **changes)
    [first, second] = texts(llm, [free, held])
    assert first == second and not computed


@pytest.mark.parametrize("changes", [{}, {"frequency_penalty": 0.5}, {"logprobs": 2}], ids=str)
def test_an_answer_drawn_at_random_that_the_grammar_allows_has_no_mask(
    llm: LLM, computed: list[int], changes: dict[str, Any]
) -> None:
    random: dict[str, Any] = {"temperature": 1.0, "seed": 3, **changes}
    [first, second] = texts(llm, [asking(None, **random), asking(ANY, **random)])
    assert first == second and not computed


def test_a_draw_that_min_p_alone_cuts_has_a_mask(llm: LLM, computed: list[int]) -> None:
    """What it keeps depends on the best allowed token, and is drawn in the order of ids."""
    texts(llm, [asking(ANY, temperature=1.0, seed=1, min_p=0.05), asking(ANY)])
    assert computed == [1] * 24


@pytest.mark.parametrize(
    "cut",
    [{"top_p": 0.9}, {"top_k": 20}, {"temperature": 0.8, "top_k": 40, "top_p": 0.95}, {"top_k": 1}],
    ids=str,
)
def test_most_draws_from_the_best_tokens_have_no_mask(
    llm: LLM, computed: list[int], cut: dict[str, Any]
) -> None:
    cut = {"temperature": 1.0, "seed": 1, "min_p": 0.05, **cut}
    [first, second] = texts(llm, [asking(None, **cut), asking(ANY, **cut)])
    assert first == second and sum(computed) <= 12


@alike
@pytest.mark.parametrize("share", [0.03, 0.4, 0.9])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_tokens_that_are_asked_for_are_those_of_a_mask(share: float, spread: float) -> None:
    """Whatever part of the vocabulary is allowed, how sharp its logits are, and how many tie."""
    generator = np.random.default_rng(5)
    cuts = [
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 5},
        {"top_k": 300, "top_p": 0.5},
        {"top_p": 0.9},
        {"top_p": 0.7, "min_p": 0.2},
        {"top_k": 1},
    ]
    rows, size = 20 * len(cuts), 700
    logits_SV = (generator.standard_normal((rows, size)) * spread).astype(np.float32)
    logits_SV[::2] = np.round(logits_SV[::2])  # many are equal
    bits = generator.random((rows, size)) < share
    bits[:, 17] = True
    padded = np.pad(bits, ((0, 0), (0, -size % 32)))
    words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    known = {row: words[row : row + 1] for row in range(rows)}

    def drawn(asking: Collection[int]) -> list[int]:
        sampler = Sampler(rows, size)
        for row in range(rows):
            cut: Any = cuts[row % len(cuts)]
            params = SamplingParams(temperature=0.8, seed=row, **cut)
            request = Request(id=str(row), token_ids=(1,), params=params, eos_token_ids=())
            sampler.admit(row, request, (1,))
        masks = Masks(known=known, asking=asking)
        logits = torch.from_numpy(logits_SV)
        steps = [sampler.sample(logits, range(rows), masks).token_ids for _ in range(10)]
        return [token_id for step in steps for token_id in step]

    tokens = drawn(range(rows))
    assert tokens == drawn(())
    assert all(bits[i % rows, token_id] for i, token_id in enumerate(tokens))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_an_allowed_token_without_probability_is_left_to_a_mask(cut: dict[str, Any]) -> None:
    """The best tokens are refused, and the next ones have a logit of minus infinity."""
    size = 40
    logits_SV = torch.full((2, size), float("-inf"))
    logits_SV[:, :3] = torch.tensor([3.0, 2.0, 1.0])
    allowed = [{0, 7}, {7, 8}]
    words = np.zeros((2, 2), np.int32)
    for row, ids in enumerate(allowed):
        for token_id in ids:
            set_bit(words[row], token_id)
    known = {row: words[row : row + 1] for row in range(2)}

    def drawn(asking: Collection[int]) -> list[int]:
        sampler = Sampler(2, size)
        for row in range(2):
            params = SamplingParams(temperature=1.0, seed=row, **cut)
            request = Request(id=str(row), token_ids=(1,), params=params, eos_token_ids=())
            sampler.admit(row, request, (1,))
        return sampler.sample(logits_SV, range(2), Masks(known=known, asking=asking)).token_ids

    assert drawn(range(2)) == drawn(())
    assert drawn(range(2))[0] == 0


RANDOM = [
    asking({"regex": "[a-z ]{30}"}, temperature=1.0, seed=1),
    asking({"json": SCHEMA}, temperature=1.5, seed=2),
    asking(None, temperature=1.0, seed=3),
    asking({"choice": ["red", "green"]}, temperature=1.0, seed=4),
    asking({"regex": "[0-9]{3}[a-z]{20}"}, temperature=0.8, top_k=30, seed=5),
    asking({"json": SCHEMA}, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=6),
    asking({"regex": "[a-z ]{30}"}, temperature=1.0, top_p=0.8, seed=7),
    asking({"regex": "[a-z ]{30}"}, temperature=1.0, min_p=0.1, seed=8),
    asking({"json_object": True}),
]


def test_answers_drawn_at_random_are_the_same_alone_in_a_batch_and_with_drafts(llm: LLM) -> None:
    alone = [texts(llm, [params])[0] for params in RANDOM]
    assert texts(llm, RANDOM) == alone
    with LLM("demo", device="cpu", max_num_seqs=16, speculative="ngram") as drafting:
        assert texts(drafting, RANDOM) == alone


def test_a_token_that_is_refused_is_drawn_again_with_the_probabilities_of_the_allowed() -> None:
    """Of five tokens two are allowed: the less likely ones. The same number would not do: those
    that lead to a refused token are not spread evenly."""
    rows, steps = 256, 100
    logits_V = torch.tensor([0.05, 0.2, 0.3, 0.1, 0.35]).log()
    mask_NW = np.zeros((1, 1), np.int32)
    for token_id in (1, 3):
        set_bit(mask_NW[0], token_id)
    sampler = Sampler(rows, 5)
    for row in range(rows):
        params = SamplingParams(temperature=1.0, seed=row)
        request = Request(id=str(row), token_ids=(1,), params=params, eos_token_ids=())
        sampler.admit(row, request, (1,))
    masks = Masks(known=dict.fromkeys(range(rows), mask_NW), asking=range(rows))
    counts = np.zeros(5)
    for _ in range(steps):
        drawn = sampler.sample(logits_V.expand(rows, 5), range(rows), masks).token_ids
        counts += np.bincount(drawn, minlength=5)
    shares = counts / (rows * steps)
    assert shares[[0, 2, 4]].sum() == 0
    assert abs(shares[1] - 2 / 3) < 4 * (2 / 9 / (rows * steps)) ** 0.5


@define(eq=False)
class Every:
    """Allows every token but those in `refused`, or in every third place `only` one."""

    refused: Collection[int] = ()
    only: int | None = None
    asked: int = 0
    """How often it refused a token."""
    filled: int = 0
    position: int = 0
    is_done: bool = False
    error: str = ""
    compiler: Any = None
    time: Any = None

    def ends(self, token_id: int | None) -> bool:
        return False

    def fail(self, error: str) -> None:
        self.error = error

    def may_follow(self, token_id: int) -> bool:
        if self.only is not None and self.position % 3 == 2:
            return token_id == self.only
        return token_id not in self.refused

    def accept(self, token_id: int) -> bool:
        assert self.may_follow(token_id)
        self.position += 1
        return True

    def allows(self, token_id: int) -> bool | None:
        self.asked += not self.may_follow(token_id)
        return self.may_follow(token_id)

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def forced(self) -> Sequence[int]:
        return ()

    def fill(self, drafts: Sequence[int], mask_NW: Mask) -> None:
        self.filled += len(mask_NW)
        for token_id in range(32 * mask_NW.shape[1]):
            if self.may_follow(token_id):
                set_bit(mask_NW[0], token_id)

    def finish_fill(self, mask_NW: Mask) -> None:
        return None


def drawn_under(llm: LLM, constraint: Every, **changes: Any) -> tuple[int, ...]:
    engine: Any = llm._engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_constrain", lambda request: constraint)
        [output] = llm.generate(PROMPT, asking(None, **changes))
    return tuple(output.outputs[0].token_ids)


def test_the_next_best_token_is_drawn_without_a_mask(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = llm._engine
    [free] = llm.generate(PROMPT, asking(None))
    refused = set(free.outputs[0].token_ids[:2])
    asked, masked = Every(refused), Every(refused)
    tokens = drawn_under(llm, asked)
    assert asked.asked > 0 == asked.filled
    monkeypatch.setattr(engine._constraints, "looks", False)
    assert tokens == drawn_under(llm, masked)
    assert (masked.asked, masked.filled) == (0, 24)


def test_a_mask_is_computed_if_the_best_tokens_are_refused(llm: LLM) -> None:
    constraint = Every(only=65)
    token_ids = drawn_under(llm, constraint)
    assert len(token_ids) == 24 and set(token_ids[2::3]) == {65}
    assert 1 <= constraint.filled <= 8 and constraint.asked >= 4 * constraint.filled
    random = Every(only=65)
    drawn_under(llm, random, temperature=1.0, seed=1)
    assert random.asked == random.filled == 8, "one token is asked for, then the mask"


THINK = ReasoningMarkers(open="<think>", close="</think>", is_open=True)
AFTER_REASONING = GrammarSpec(kind="regex", text="[0-9]{2} [a-z ]{9}", reasoning=THINK)
HELD = [
    asking({"json": SCHEMA}),
    asking({"json_object": True}, max_tokens=40),
    asking({"regex": "[a-z ]{30}"}, logit_bias={97: 5.0}),
    asking({"choice": ["red", "green"]}, logprobs=1),
    asking({"grammar": 'root ::= item+ "."\nitem ::= [0-9] ","'}),
    asking(AFTER_REASONING, thinking_token_budget=5, reasoning=THINK, max_tokens=60),
    asking(evolve(AFTER_REASONING, reasoning=evolve(THINK, is_open=False))),
    asking(None, thinking_token_budget=3, reasoning=THINK),
    asking({"json": SCHEMA}, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=6),
]


@pytest.mark.parametrize("options", [{}, {"speculative": "ngram"}], ids=str)
def test_answers_are_those_of_draws_that_have_all_their_masks(
    computed: list[int], options: dict[str, Any]
) -> None:
    """With forced text as drafts, and drafts of a proposer."""
    with LLM("demo", device="cpu", max_num_seqs=16, **options) as llm:
        engine: Any = llm._engine
        assert engine._constraints.looks
        answers = texts(llm, HELD, "<think>")
        few = sum(computed)
        engine._constraints.looks = False
        assert answers == texts(llm, HELD, "<think>")
        assert 0 < few < (sum(computed) - few) / 2


def test_forced_text_is_written_in_the_tokens_of_its_mask() -> None:
    """Another way to write it may be valid too."""

    class Forced:
        def forced(self) -> Sequence[int]:
            return (7, 8)

        def count_valid(self, token_ids: Sequence[int]) -> int:
            return len(token_ids)

    constraint = GrammarConstraint(cast(Any, Forced()), cast(Any, None))
    masks = Masks({3: constraint}, words=1)
    assert masks.allows(3, 7) and masks.allows(3, 9) is None
    assert masks.allows(3, 7, at=1) is None, "after drafts only a mask can tell"
    assert masks.allows(4, 9), "a row without a constraint"
    mask_NW = np.zeros((1, 1), np.int32)
    set_bit(mask_NW[0], 9)
    known = Masks({3: constraint}, words=1, known={3: mask_NW})
    assert known.allows(3, 9) and known.allows(3, 7) is False is known.allows(3, 32)
