"""Logits processors, bad words, allowed tokens and truncated prompts, on the demo model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, evolve, frozen
from torch import Tensor

from inferno import LLM, SamplingParams
from inferno.builtin import inferno_logits_processors
from inferno.contracts import LogitsProcessor, ProcessorContext
from inferno.errors import InfernoError, RequestError
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Options, open_model

PROMPT = "def f(x):"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@define
class Only:
    """Allows one token at every position, counted from its argument."""

    start: int

    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        logits_V[self.start + len(token_ids)] = 1e9
        return logits_V


@frozen
class Fails:
    after: int

    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        if len(token_ids) == self.after:
            raise ZeroDivisionError("on purpose")
        return logits_V


def check(args: Mapping[str, Any]) -> None:
    if not isinstance(args.get("start"), int):
        raise ValueError("start must be a number")


def build(args: Mapping[str, Any], context: ProcessorContext) -> Only:
    assert context.vocab_size == 4096 and context.eos_token_ids and context.prompt_token_ids
    return Only(args["start"])


PROCESSORS = {
    each.name: each
    for each in (
        *inferno_logits_processors(),
        LogitsProcessor(name="only", build=build, check=check, help="Takes `start`."),
        LogitsProcessor(name="fails", build=lambda args, context: Fails(args.get("after", 0))),
        LogitsProcessor(name="unbuilt", build=lambda args, context: 1 / 0),
        LogitsProcessor(name="misshapen", build=lambda args, context: Misshapen()),
    )
}


class Misshapen:
    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        return logits_V[:5]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=8, speculative="ngram") as llm:
        engine: Any = llm._engine
        engine._runner._sampler._processors = PROCESSORS
        llm._preprocessor = evolve(llm._preprocessor, logits_processors=PROCESSORS)
        yield llm


def ids(llm: LLM, params: SamplingParams, prompt: Any = PROMPT) -> tuple[int, ...]:
    return llm.generate(prompt, params)[0].outputs[0].token_ids


def processed(*calls: Mapping[str, Any], **changes: Any) -> SamplingParams:
    return evolve(GREEDY, logits_processors=calls, **changes)


def test_a_processor_sees_the_output_and_changes_the_logits(llm: LLM) -> None:
    params = processed({"name": "only", "args": {"start": 100}})
    assert ids(llm, params) == tuple(range(100, 112))


def test_bias_and_grammar_come_after_processors(llm: LLM) -> None:
    call = {"name": "only", "args": {"start": 100}}
    banned = processed(call, logit_bias={103: -100.0})
    assert ids(llm, banned)[:3] == (100, 101, 102) and 103 not in ids(llm, banned)
    params = processed(call, structured_outputs={"regex": "[0-9]{5}"})
    [output] = llm.generate(PROMPT, params)
    assert output.outputs[0].text.isdigit()


def test_rows_without_processors_are_as_they_were(llm: LLM) -> None:
    free = ids(llm, GREEDY)
    params = [GREEDY, processed({"name": "only", "args": {"start": 7}}), GREEDY]
    answers = [o.outputs[0].token_ids for o in llm.generate([PROMPT] * 3, params)]
    assert answers == [free, tuple(range(7, 19)), free]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"name": "fails", "args": {"after": 2}}, "ZeroDivisionError: on purpose"),
        ({"name": "fails"}, "ZeroDivisionError"),
        ({"name": "unbuilt"}, "unbuilt failed: ZeroDivisionError"),
        ({"name": "misshapen"}, "shape"),
    ],
)
def test_an_error_ends_its_request_and_no_other(llm: LLM, call: Any, error: str) -> None:
    free = ids(llm, GREEDY)
    other, failing = llm.stream(PROMPT, GREEDY), llm.stream(PROMPT, processed(call))
    got = list(next(other).token_ids)
    with pytest.raises(InfernoError, match=error):
        list(failing)
    got += [i for delta in other for i in delta.token_ids]
    assert tuple(got) == free


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([{"name": "none"}], "logits_processors[0].name"),
        ([{"name": "only", "args": {"start": "x"}}], "logits_processors[0].args"),
        ([{"name": "only", "args": 5}], "logits_processors[0]"),
        ([{"name": "fails"}, {}], "logits_processors[1]"),
        ([{"name": "fails", "kwargs": {}}], "logits_processors[0]"),
        (["fails"], "logits_processors[0]"),
    ],
)
def test_only_installed_processors_with_right_arguments_are_accepted(
    llm: LLM, given: Any, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(PROMPT, SamplingParams(logits_processors=given))
    assert caught.value.param == param and caught.value.remedy


def test_no_sequence_is_repeated(llm: LLM) -> None:
    params = evolve(GREEDY, max_tokens=60, ignore_eos=True)
    assert repeated(ids(llm, params), 3), "the model repeats itself"
    for size in (1, 2, 3):
        call = {"name": "no_repeat_ngram", "args": {"size": size}}
        [output] = llm.generate(PROMPT, evolve(params, logits_processors=[call]))
        known = (*output.prompt_token_ids, *output.outputs[0].token_ids)
        assert not repeated(known, size) or repeated(output.prompt_token_ids, size)


def repeated(token_ids: Sequence[int], size: int) -> bool:
    windows = [tuple(token_ids[i : i + size]) for i in range(len(token_ids) - size + 1)]
    return len(set(windows)) < len(windows)


def test_only_allowed_tokens_are_drawn(llm: LLM) -> None:
    for params in (GREEDY, evolve(GREEDY, temperature=3.0, seed=1, top_p=0.9)):
        tokens = ids(llm, evolve(params, allowed_token_ids=(50, 60, 70)))
        assert set(tokens) <= {50, 60, 70} and len(tokens) == 12
    with pytest.raises(RequestError, match="invalid token id"):
        ids(llm, evolve(GREEDY, allowed_token_ids=(5000,)))
    with pytest.raises(RequestError, match="empty"):
        SamplingParams(allowed_token_ids=())


def test_a_bad_word_that_the_model_has_no_tokens_for_is_refused(llm: LLM) -> None:
    """A tokenizer may have more tokens than the model."""
    [last] = llm.preprocessor.tokenizer.encode("~", False)  # type: ignore[union-attr]
    fewer = evolve(llm.preprocessor, vocab_size=last)
    with pytest.raises(RequestError, match="invalid token id") as caught:
        fewer.prepare([1, 2], evolve(GREEDY, bad_words="~"))
    assert caught.value.param == "bad_words"


def test_the_preprocessor_knows_the_plans_vocabulary() -> None:
    with open_model("demo", Options(device="cpu")) as opened:
        plan = evolve(opened.plan, vocab_size=99)
        assert Preprocessor.open(evolve(opened, plan=plan)).vocab_size == 99


def test_bad_words_do_not_appear(llm: LLM) -> None:
    tokenizer = llm.preprocessor.tokenizer
    assert tokenizer is not None
    prompt = "The list of functions in this module"
    text = llm.generate(prompt, GREEDY)[0].outputs[0].text
    words = [word for word in text.split() if word.isalpha()]
    assert words, text
    params = evolve(GREEDY, bad_words=words, max_tokens=40)
    answer = llm.generate(prompt, params)[0].outputs[0]
    for word in words:
        for spelt in (word, f" {word}"):
            spelling = tokenizer.encode(spelt, False)
            windows = zip(*(answer.token_ids[i:] for i in range(len(spelling))), strict=False)
            assert tuple(spelling) not in set(windows)
    # the first tokens of a word of several stay possible
    several = next(i for i in range(4096) if len(tokenizer.encode(f"q{i}", False)) > 2)
    assert llm.generate(prompt, evolve(GREEDY, bad_words=f"q{several}"))[0].outputs[0].text == text


def test_a_truncated_prompt_keeps_its_last_tokens(llm: LLM) -> None:
    prompt = list(range(100, 140))
    whole = ids(llm, GREEDY, prompt[-7:])
    [output] = llm.generate([prompt], evolve(GREEDY, truncate_prompt_tokens=7))
    assert output.outputs[0].token_ids == whole
    assert output.prompt_token_ids == tuple(prompt[-7:])
    longest = llm.preprocessor.max_model_len
    params = evolve(GREEDY, truncate_prompt_tokens=-1, ignore_eos=True)
    [output] = llm.generate([[5] * (longest + 50)], params)
    assert len(output.prompt_token_ids) == longest - 12 and len(output.outputs[0].token_ids) == 12
    with pytest.raises(RequestError, match="truncate_prompt_tokens"):
        SamplingParams(truncate_prompt_tokens=0)
