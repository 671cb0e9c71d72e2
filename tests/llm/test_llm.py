import itertools
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from tests.fake_engine import END, TOKENIZER, FakeEngine, echoes, forever, front, says

from inferno.contracts import TextAssets
from inferno.errors import InfernoError, OptionError, RequestError
from inferno.llm import LLM, Logprob
from inferno.llm.defaults import default_params, interactive_params
from inferno.llm.outputs import OutputBuilder
from inferno.llm.preprocessor import open_for
from inferno.request.requests import EngineOutput, FinishReason, Request
from inferno.request.sampling_params import SamplingParams

LONG = SamplingParams(max_tokens=50)
HI = tuple(TOKENIZER.encode("hi"))


def llm(script: object = echoes, **changes: object) -> tuple[LLM, FakeEngine]:
    engine = FakeEngine(script)  # type: ignore[arg-type]
    return LLM.of(engine, front(**changes)), engine


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    model, _ = llm()
    outputs = model.generate(["a much longer prompt", "b", "medium"], LONG)
    assert [o.outputs[0].text for o in outputs] == ["a much longer prompt", "b", "medium"]
    assert [o.prompt for o in outputs] == ["a much longer prompt", "b", "medium"]


def test_an_output_has_what_vllm_s_has() -> None:
    model, _ = llm(says("yes"))
    (output,) = model.generate("hi", LONG)
    assert output.prompt_token_ids == HI
    assert output.finished
    assert output.num_cached_tokens == 3
    assert (
        output.metrics.arrival_time
        <= output.metrics.first_token_time
        <= output.metrics.finished_time
    )
    (answer,) = output.outputs
    assert (answer.index, answer.text, answer.finish_reason, answer.stop_reason) == (
        0,
        "yes",
        "stop",
        None,
    )
    assert answer.token_ids == (*TOKENIZER.encode("yes"), END)
    assert answer.logprobs is None and answer.cumulative_logprob is None
    assert output.prompt_logprobs is None


@pytest.mark.parametrize(
    "prompt",
    [
        "hi",
        list(HI),
        [list(HI)],
        ["hi"],
        {"prompt": "hi"},
        {"prompt_token_ids": HI},
        [{"prompt_token_ids": HI}],
    ],
    ids=str,
)
def test_prompts_are_text_or_ids_or_objects_with_either(prompt: object) -> None:
    model, engine = llm()
    (output,) = model.generate(prompt, LONG)  # type: ignore[arg-type]
    assert output.outputs[0].text == "hi"
    assert engine.submitted[0].token_ids == HI


def test_no_prompts_give_no_outputs() -> None:
    assert llm()[0].generate([], LONG) == []


def test_each_prompt_may_have_its_own_params() -> None:
    model, _ = llm(says("abcdef"))
    one, other = model.generate(
        ["x", "y"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=4)]
    )
    assert (one.outputs[0].text, other.outputs[0].text) == ("ab", "abcd")
    assert one.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", LONG, "prompt"),
        ([], LONG, "prompt"),
        ("x" * 100, LONG, "prompt"),
        ([0, 260], LONG, "prompt"),
        ([0, -1], LONG, "prompt"),
        (["a", "b"], LONG, "prompt"),
        (3.5, LONG, "prompt"),
        ({"prompt": "x", "multi_modal_data": {}}, LONG, "prompt"),
        ({}, LONG, "prompt"),
        ("x" * 90, SamplingParams(max_tokens=None, min_tokens=11), "min_tokens"),
        ("x", SamplingParams(logit_bias={260: 1.0}), "logit_bias"),
        ("x", SamplingParams(stop_token_ids=(999,)), "stop_token_ids"),
    ],
    ids=str,
)
def test_one_invalid_prompt_refuses_all_before_anything_runs(
    prompt: Any, params: SamplingParams, param: str
) -> None:
    model, engine = llm()
    with pytest.raises(RequestError) as caught:
        model.generate(["fine", prompt], params)
    assert caught.value.param == param
    assert engine.submitted == []


def test_a_prompt_that_leaves_no_room_has_openai_s_code() -> None:
    with pytest.raises(RequestError) as caught:
        llm()[0].preprocessor.encode_prompt([1] * 100)
    assert caught.value.code == "context_length_exceeded"
    assert len(llm()[0].preprocessor.encode_prompt([1] * 99)) == 99


def test_params_that_do_not_match_the_prompts_are_refused() -> None:
    with pytest.raises(RequestError, match="2 prompts, but 1 sampling params"):
        llm()[0].generate(["a", "b"], [LONG])
    with pytest.raises(RequestError, match="are not SamplingParams"):
        llm()[0].generate("a", {"max_tokens": 3})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="2 prompts, but 1 sessions"):
        llm()[0].generate(["a", "b"], session=["one"])


@pytest.mark.parametrize(("wanted", "given"), [(None, 90), (500, 90), (7, 7)])
def test_max_tokens_stays_within_the_context(wanted: int | None, given: int) -> None:
    model, engine = llm()
    model.generate("x" * 10, SamplingParams(max_tokens=wanted))
    assert engine.submitted[0].params.max_tokens == given


def test_without_params_the_checkpoint_s_sampling_is_used() -> None:
    sampling = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "pad_token_id": 0,
    }
    params = default_params(TextAssets(generation_config=sampling))
    assert params == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1, max_tokens=256
    )
    model, engine = llm(default_params=params)
    model.generate("hi")
    assert engine.submitted[0].params.temperature == 0.6


def test_at_a_terminal_an_answer_ends_by_itself_or_where_the_checkpoint_says() -> None:
    assert interactive_params(TextAssets()).max_tokens is None
    given = TextAssets(generation_config={"max_new_tokens": 77, "temperature": 0.6})
    assert interactive_params(given) == SamplingParams(max_tokens=77, temperature=0.6)


@pytest.mark.parametrize("said", [{}, {"eos_token_id": 2}, {"do_sample": True}])
def test_at_a_terminal_the_tail_is_cut_where_the_checkpoint_says_nothing(
    said: dict[str, Any],
) -> None:
    assets = TextAssets(generation_config=said)
    usual = SamplingParams(max_tokens=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    assert interactive_params(assets) == usual
    assert default_params(assets).temperature == 1, "the API's are OpenAI's"


@pytest.mark.parametrize("said", [{"top_p": 0.9}, {"do_sample": False}, {"temperature": 1.0}])
def test_at_a_terminal_what_the_checkpoint_says_is_not_mixed_with_other_values(
    said: dict[str, Any],
) -> None:
    assets = TextAssets(generation_config=said)
    assert interactive_params(assets) == attrs.evolve(default_params(assets), max_tokens=None)


def test_a_checkpoint_that_does_not_sample_is_greedy() -> None:
    assert default_params(
        TextAssets(generation_config={"do_sample": False, "temperature": 0.6})
    ).greedy


def test_end_tokens_are_the_engine_s_unless_ignored() -> None:
    model, engine = llm(says("a"))
    model.generate(["x", "y"], [LONG, SamplingParams(max_tokens=1, ignore_eos=True)])
    assert [r.eos_token_ids for r in engine.submitted] == [(END,), ()]


def test_n_outputs_draw_with_seeds_of_their_own_and_score_the_prompt_once() -> None:
    model, engine = llm(lambda r: [*TOKENIZER.encode(f"{r.params.seed}"), END])
    (output,) = model.generate("hi", SamplingParams(n=3, seed=7, prompt_logprobs=1, max_tokens=9))
    assert [(o.index, o.text) for o in output.outputs] == [(0, "7"), (1, "8"), (2, "9")]
    assert [r.params.prompt_logprobs for r in engine.submitted] == [1, None, None]
    assert output.prompt_logprobs is not None
    assert [r.params.n for r in engine.submitted] == [1, 1, 1]


def test_n_outputs_without_a_seed_stay_without() -> None:
    model, engine = llm()
    model.generate("hi", SamplingParams(n=2))
    assert [r.params.seed for r in engine.submitted] == [None, None]


def test_logprobs_have_vllm_s_shape() -> None:
    model, _ = llm(says("b"))
    (output,) = model.generate("hi", SamplingParams(logprobs=2, prompt_logprobs=0))
    drawn, end = output.outputs[0].logprobs or []
    b = TOKENIZER.encode("b")[0]
    assert list(drawn) == [b, 0, 1]
    assert drawn[b] == Logprob(-0.5, 2, "b")
    assert drawn[1] == Logprob(-0.5, 2, TOKENIZER.token_text(1))
    assert next(iter(end)) == END
    assert output.outputs[0].cumulative_logprob == -1.0
    assert output.prompt_logprobs == [None, {HI[1]: Logprob(-0.5, 2, "i")}]


def test_tokens_that_the_caller_named_have_no_rank() -> None:
    model, _ = llm(says("b"))
    b = TOKENIZER.encode("b")[0]
    (output,) = model.generate("hi", SamplingParams(logprobs=2, logprob_token_ids=(0, 1)))
    drawn = (output.outputs[0].logprobs or [])[0]
    assert {i: entry.rank for i, entry in drawn.items()} == {b: 2, 0: None, 1: None}


def test_a_stop_string_ends_the_output_and_the_engine_s_request() -> None:
    model, engine = llm(forever)
    (output,) = model.generate("hi", SamplingParams(stop=["ba"], max_tokens=90))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("a", "stop", "ba")
    assert len(answer.token_ids) == 3
    assert engine.aborted == [engine.submitted[0].id]
    assert not engine.busy


def test_tokens_that_come_after_the_end_are_dropped() -> None:
    request = Request(id="x", token_ids=(1,), params=SamplingParams(stop="b", max_tokens=90))
    builder = OutputBuilder(request, 0, TOKENIZER)
    for token_id in TOKENIZER.encode("abc"):
        builder.push(EngineOutput("x", token_id))
    delta = builder.take()
    assert delta is not None
    assert (delta.text, delta.token_ids, delta.stop_reason) == (
        "a",
        tuple(TOKENIZER.encode("ab")),
        "b",
    )
    builder.push(EngineOutput("x", -1, FinishReason.ABORT))
    assert builder.ended
    assert builder.take() is None


def test_an_abort_gives_up_what_was_held_back() -> None:
    request = Request(id="x", token_ids=(1,), params=SamplingParams(stop="abc", max_tokens=90))
    builder = OutputBuilder(request, 0, TOKENIZER)
    for token_id in TOKENIZER.encode("ab"):
        builder.push(EngineOutput("x", token_id))
    builder.push(EngineOutput("x", None, FinishReason.ABORT))
    delta = builder.take()
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("ab", "abort")


def test_a_stop_token_ends_the_text_without_being_part_of_it() -> None:
    stop = TOKENIZER.encode("c")[0]
    model, _ = llm(says("abcd"))
    params = SamplingParams(stop_token_ids=[stop], max_tokens=9)
    (plain,), (shown,) = (
        model.generate("x", p)[0].outputs
        for p in (
            params,
            SamplingParams(stop_token_ids=[stop], max_tokens=9, include_stop_str_in_output=True),
        )
    )
    assert (plain.text, plain.stop_reason, plain.token_ids[-1]) == ("ab", stop, stop)
    assert shown.text == "abc"


def test_an_end_token_is_not_text_even_when_special_tokens_are() -> None:
    model, _ = llm(says("a<|end|>"), eos_token_ids=())
    (output,) = model.generate("x", SamplingParams(skip_special_tokens=False, max_tokens=2))
    assert output.outputs[0].text == "a<|end|>"
    model, _ = llm(says("a"))
    (output,) = model.generate("x", SamplingParams(skip_special_tokens=False))
    assert output.outputs[0].text == "a"


def test_an_answer_cut_within_a_character_ends_in_one_replacement() -> None:
    model, _ = llm(says("a😀"))
    (output,) = model.generate("x", SamplingParams(max_tokens=3))
    assert output.outputs[0].text == "a\ufffd"


def test_without_a_tokenizer_a_model_runs_on_token_ids() -> None:
    model, _ = llm(tokenizer=None)
    (output,) = model.generate([1, 2, 3], SamplingParams(logprobs=0))
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", (1, 2, 3, END))
    assert (output.outputs[0].logprobs or [])[0] == {1: Logprob(-0.5, 2, None)}
    with pytest.raises(RequestError, match="no tokenizer"):
        model.generate("text")
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        model.generate([1], SamplingParams(stop="x"))


def test_chat_writes_conversations_with_the_template() -> None:
    model, _ = llm()
    talk = [{"role": "user", "content": "hi"}]
    (one,) = model.chat(talk, LONG)
    assert one.outputs[0].text == "user:hi;>"
    assert one.prompt is None
    two = model.chat(
        [talk, [*talk, {"role": "assistant", "content": "yo"}]], LONG, add_generation_prompt=False
    )
    assert [o.outputs[0].text for o in two] == ["user:hi;", "user:hi;assistant:yo;"]


def test_a_stream_s_deltas_join_to_the_whole_answer() -> None:
    model, _ = llm(says("grüß 😀"))
    deltas = list(model.stream("hi", LONG))
    assert "".join(d.text for d in deltas) == "grüß 😀"
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert sum(len(d.token_ids) for d in deltas) == len("grüß 😀".encode()) + 1


def test_a_stream_refuses_a_bad_prompt_before_it_is_read() -> None:
    with pytest.raises(RequestError):
        llm()[0].stream("")


def test_leaving_a_stream_aborts_its_request() -> None:
    model, engine = llm(forever)
    for _ in model.stream("hi", SamplingParams(n=2, max_tokens=90)):
        break
    assert sorted(engine.aborted) == sorted(r.id for r in engine.submitted)
    assert not engine.busy


def test_streams_and_generate_may_interleave() -> None:
    model, _ = llm()
    first, second = model.stream("abc", LONG), model.stream("xyz", LONG)
    texts = [next(first).text, next(second).text]
    assert model.generate("whole", LONG)[0].outputs[0].text == "whole"
    assert texts[0] + "".join(d.text for d in first) == "abc"
    assert texts[1] + "".join(d.text for d in second) == "xyz"


def test_ctrl_c_aborts_all_that_was_begun() -> None:
    model, engine = llm(forever)
    engine.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model.generate(["a", "b"], LONG)
    assert engine.aborted == [r.id for r in engine.submitted]
    engine.fails = None
    assert model.generate("a", LONG)[0].outputs[0].finish_reason == "length"


class FailingEngine(FakeEngine):
    def _next(self, request: Request, script: Iterable[int], count: int) -> EngineOutput:
        if request.token_ids == HI:
            del self._running[request.id]
            return EngineOutput(request.id, None, FinishReason.ERROR, error="no room")
        return super()._next(request, script, count)


def test_a_request_the_engine_fails_on_raises_for_its_caller_only() -> None:
    model = LLM.of(FailingEngine(echoes), front())
    stream = model.stream("fine", LONG)
    begun = next(stream).text
    with pytest.raises(InfernoError, match="no room"):
        model.generate(["ho", "hi"], LONG)
    assert begun + "".join(d.text for d in stream) == "fine"


def test_request_ids_are_never_used_twice() -> None:
    model, engine = llm()
    for _, _ in itertools.product(range(3), range(3)):
        model.generate(["a", "b"], SamplingParams(n=2))
    assert len({r.id for r in engine.submitted}) == 36


def test_closing_frees_the_engine() -> None:
    model, engine = llm()
    with model:
        assert not engine.closed
    assert engine.closed


def test_an_unknown_option_names_those_like_it() -> None:
    with pytest.raises(OptionError, match="max_model_len"):
        open_for("demo", {"max_modellen": 5})


def test_an_option_like_no_other_lists_what_there_is() -> None:
    with pytest.raises(OptionError, match="Options: dtype"):
        open_for("demo", {"zzz": 5})


def test_a_model_must_be_named() -> None:
    with pytest.raises(OptionError, match="no model is named"):
        LLM()


def test_there_is_no_progress_bar_to_ask_for() -> None:
    with pytest.raises(RequestError, match="use_tqdm is not supported"):
        llm()[0].generate("x", use_tqdm=True)


def test_a_prompt_with_several_answers_is_counted_once() -> None:
    with LLM("demo", device="cpu", max_num_seqs=4) as llm:
        llm.generate("def f(x):", SamplingParams(n=3, max_tokens=2, ignore_eos=True))
        engine: Any = llm._engine
        stats = engine.stats()
        [prompt] = llm.generate("def f(x):", SamplingParams(n=1, max_tokens=1))
        assert stats.prompt_tokens == 2 * len(prompt.prompt_token_ids)
        assert stats.cached_tokens <= stats.prompt_tokens
