import pytest
from tests.fake_engine import FakeEngine, Script, echoes, forever, front, says

from inferno.compat import Engine, EngineConfig, Message, SamplingParams
from inferno.errors import InfernoError, OptionError
from inferno.llm import LLM


def engine(script: Script = echoes) -> tuple[Engine, FakeEngine]:
    fake = FakeEngine(script)
    return Engine.of(LLM.of(fake, front())), fake


def test_templated_prompts_are_answered_in_order() -> None:
    model, _ = engine()
    params = SamplingParams(temperature=0.5, max_tokens=50)
    prompts = [model.apply_chat_template([Message("user", text)], True) for text in ("one", "two")]
    assert prompts == ["user:one;>", "user:two;>"]
    outputs = model.generate_sync([params, params], prompts)
    assert [o.decode_output for o in outputs] == prompts
    assert [o.prompt_length for o in outputs] == [len(p) for p in prompts]
    assert [o.decoded_length for o in outputs] == [len(p) + 1 for p in prompts]
    assert outputs[0].seq_id != outputs[1].seq_id
    assert (
        outputs[0].prompt_start_time
        <= outputs[0].decode_start_time
        <= outputs[0].decode_finish_time
    )


def test_lists_of_messages_are_prompts_too_and_one_params_serves_all() -> None:
    model, _ = engine()
    outputs = model.generate_sync(
        SamplingParams(session_id="s"), [[Message("user", "a")], [Message("user", "b")]]
    )
    assert [o.decode_output for o in outputs] == ["user:a;>", "user:b;>"]


def test_a_stream_ends_with_done() -> None:
    model, _ = engine(says("yes"))
    seq_id, prompt_length, stream = model.generate_stream(SamplingParams(), "hello")
    items = list(stream)
    assert (stream.seq_id, prompt_length) == (seq_id, 5)
    assert "".join(str(i.data) for i in items if i.datatype == "TOKEN") == "yes"
    assert items[-1].datatype == "DONE"
    assert items[-1].data[-1] == 4
    assert stream.finished


def test_a_cancelled_stream_ends_and_aborts() -> None:
    model, fake = engine(forever)
    _, _, stream = model.generate_stream(SamplingParams(), "hello")
    next(stream)
    stream.cancel()
    assert [item.datatype for item in stream] == ["DONE"]
    assert not fake.busy


def test_an_error_in_a_stream_is_its_last_item() -> None:
    model, fake = engine(forever)
    _, _, stream = model.generate_stream(SamplingParams(), "hello")
    next(stream)
    fake.fails = InfernoError("the device is gone", "Look for it.")
    items = list(stream)
    assert [item.datatype for item in items] == ["ERROR"]
    assert "the device is gone" in str(items[0].data)


def test_the_config_names_one_model() -> None:
    assert EngineConfig(weight_path="/models/x").ref() == "/models/x"
    for config in (EngineConfig(), EngineConfig(weight_path="a", model_id="b")):
        with pytest.raises(OptionError, match="Give one of"):
            config.ref()


def test_limits_become_options_and_the_rest_is_left_to_the_plan() -> None:
    assert EngineConfig(model_id="x", max_model_len=4096, num_shards=2).options() == {
        "max_model_len": 4096,
        "tensor_parallel_size": 2,
    }


def test_an_unknown_dtype_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="bf16"):
        Engine(EngineConfig(weight_path="x"), "int3")
