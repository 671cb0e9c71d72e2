"""The API of vllm.rs: shapes by a stand-in for the model, and one answer of the demo model."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from inferno import LLM, InfernoError
from inferno import SamplingParams as Params
from inferno_vllm_rs import (
    DType,
    Engine,
    EngineConfig,
    FieldError,
    GenerationConfig,
    Message,
    PdConfig,
    PdMethod,
    PdRole,
    SamplingParams,
    commands,
)
from inferno_vllm_rs.config import REFUSED


class FakeLLM:
    """Echoes each prompt, a character at a time. `fails` is raised after the first."""

    default_params = Params(temperature=0.6, top_k=20, max_tokens=256)

    def __init__(self, fails: InfernoError | None = None) -> None:
        self.fails = fails
        self.asked: list[Params] = []
        self.sessions: list[str | None] = []
        self.open = 0

    @property
    def preprocessor(self) -> FakeLLM:
        return self

    def encode_prompt(self, prompt: str) -> tuple[int, ...]:
        return tuple(map(ord, prompt))

    def render_chat(self, messages: Any, add_generation_prompt: bool = True) -> str:
        turns = "".join(f"{m['role']}:{m['content']};" for m in messages)
        return turns + ">" * add_generation_prompt

    def encode_chat(self, messages: Any) -> tuple[int, ...]:
        return self.encode_prompt(self.render_chat(messages))

    def generate(
        self, prompts: list[tuple[int, ...]], params: list[Params], session: list[str | None]
    ) -> list[Any]:
        self.asked, self.sessions = params, session
        times = SimpleNamespace(arrival_time=1.0, first_token_time=2.0, finished_time=3.0)
        return [
            SimpleNamespace(
                prompt_token_ids=ids,
                outputs=[SimpleNamespace(text="".join(map(chr, ids)), token_ids=(*ids, 0))],
                metrics=times,
            )
            for ids in prompts
        ]

    def stream(self, prompt: tuple[int, ...], params: Params, session: str | None) -> Iterator[Any]:
        self.asked, self.sessions = [params], [session]
        self.open += 1
        try:
            for token_id in itertools.chain(prompt, [0]):
                yield SimpleNamespace(text=chr(token_id) if token_id else "", token_ids=(token_id,))
                if self.fails:
                    raise self.fails
        finally:
            self.open -= 1


def engine(
    config: EngineConfig | None = None, fails: InfernoError | None = None
) -> tuple[Engine, FakeLLM]:
    fake = FakeLLM(fails)
    return Engine.of(cast(LLM, fake), config), fake


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
    assert (outputs[0].prompt_start_time, outputs[0].decode_start_time) == (1000, 2000)
    assert outputs[0].decode_finish_time == 3000


def test_lists_of_messages_are_prompts_too_and_one_params_serves_all() -> None:
    model, _ = engine()
    prompts = [[Message("user", "a")], [Message("user", "b")]]
    outputs = model.generate_sync(SamplingParams(), prompts)
    assert [o.decode_output for o in outputs] == ["user:a;>", "user:b;>"]


def test_a_stream_ends_with_done() -> None:
    model, _ = engine()
    seq_id, prompt_length, stream = model.generate_stream(SamplingParams(), "hello")
    items = list(stream)
    assert (stream.seq_id, prompt_length) == (seq_id, 5)
    assert "".join(str(i.data) for i in items if i.datatype == "TOKEN") == "hello"
    assert items[-1].datatype == "DONE" and items[-1].data[-1] == 6
    assert stream.finished


def test_a_cancelled_stream_ends_and_aborts() -> None:
    model, fake = engine()
    _, _, stream = model.generate_stream(SamplingParams(), "hello")
    next(stream)
    assert fake.open == 1
    stream.cancel()
    assert [item.datatype for item in stream] == ["DONE"]
    assert fake.open == 0


def test_an_error_in_a_stream_is_its_last_item() -> None:
    model, _ = engine(fails=InfernoError("the device is gone", "Look for it."))
    _, _, stream = model.generate_stream(SamplingParams(), "hello")
    next(stream)
    items = list(stream)
    assert [item.datatype for item in items] == ["ERROR"]
    assert "the device is gone" in str(items[0].data)


# --- fields ---------------------------------------------------------------------------------------


def asked(params: SamplingParams | Params, config: EngineConfig | None = None) -> Params:
    model, fake = engine(config)
    model.generate_sync(params, ["x"])
    return fake.asked[0]


def test_a_request_says_more_than_the_config_and_the_config_more_than_the_checkpoint() -> None:
    config = EngineConfig(generation_cfg=GenerationConfig(temperature=0.2, top_p=0.5))
    got = asked(SamplingParams(temperature=0.0, ignore_eos=True), config)
    assert (got.temperature, got.top_p, got.top_k, got.ignore_eos) == (0.0, 0.5, 20, True)


@pytest.mark.parametrize(
    ("wanted", "most", "got"),
    [(None, None, 4096), (9000, None, 9000), (None, 100, 100), (50, 100, 50), (500, 100, 100)],
)
def test_max_tokens_of_the_config_is_the_most_that_a_request_gets(
    wanted: int | None, most: int | None, got: int
) -> None:
    config = EngineConfig(max_tokens=most)
    assert asked(SamplingParams(max_tokens=wanted), config).max_tokens == got


def test_infernos_own_params_are_taken_as_they_are() -> None:
    assert asked(Params(min_p=0.5)) == Params(min_p=0.5)


def test_a_session_is_assigned_as_in_the_readme_of_vllm_rs() -> None:
    model, fake = engine()
    params = SamplingParams(temperature=0.6, max_tokens=256)
    model.generate_sync([params, Params()], ["a", "b"])
    assert fake.sessions == [None, None]
    params.session_id = "conversation"
    model.generate_sync([params, Params()], ["a", "b"])
    assert fake.sessions == ["conversation", None]
    list(model.generate_stream(params, [Message("user", "a")])[2])
    assert fake.sessions == ["conversation"]


def test_every_field_of_every_class_can_be_assigned() -> None:
    for made in (
        SamplingParams(),
        GenerationConfig(0.5, 0.9, 20, 0.1, 0.2),
        EngineConfig(),
        Message("user", "hi"),
        PdConfig(PdRole.Client),
    ):
        for name in attrs.fields_dict(type(made)):
            setattr(made, name, getattr(made, name))
    config = EngineConfig(model_id="a/b")
    config.max_model_len = 4096
    assert config.options() == {"max_model_len": 4096}
    config.weight_file = "c.gguf"
    assert config.ref == "a/b/c.gguf"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_field_that_is_not_offered_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(FieldError, match=f"EngineConfig.{name} is not offered") as caught:
        EngineConfig(**cast(Any, {name: 1}))
    assert caught.value.remedy
    config = EngineConfig(**cast(Any, {name: False}))
    with pytest.raises(FieldError, match=f"EngineConfig.{name} is not offered"):
        setattr(config, name, 1)


def test_every_field_of_the_config_is_honoured_or_refused() -> None:
    honoured = {"model_id", "weight_path", "weight_file", "max_tokens", "generation_cfg"}
    config = EngineConfig(
        model_id="x",
        max_model_len=4096,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        num_shards=2,
        isq="q4k",
        seed=3,
        prefix_cache=False,
        fp8_kvcache=True,
        cpu_mem_fold=0.5,
        pd_config=PdConfig(PdRole.Client, PdMethod.RemoteTcp, "tcp://there:7000"),
    )
    assert config.options() == {
        "max_model_len": 4096,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "tp": 2,
        "isq": "q4_k",
        "seed": 3,
        "cache_policy": "none",
        "kv_cache_dtype": "fp8_e4m3",
        "cpu_mem_fold": 0.5,
        "decode_with": "tcp://there:7000",
    }
    set_here = {a.name for a in attrs.fields(EngineConfig) if getattr(config, a.name) is not None}
    assert {a.name for a in attrs.fields(EngineConfig)} == honoured | set_here | set(REFUSED)


def test_a_client_finds_the_server_of_its_machine_without_a_url() -> None:
    config = EngineConfig(pd_config=PdConfig(PdRole.Client))
    assert config.options() == {"decode_with": "shm://pd"}


@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        (PdConfig(PdRole.PDServer), "--pd-server"),
        (PdConfig(PdRole.Client, PdMethod.RemoteTcp), "tcp://HOST:PORT"),
    ],
)
def test_a_pd_config_that_no_engine_can_have_says_what_to_do(
    refused: PdConfig, remedy: str
) -> None:
    with pytest.raises(FieldError, match="PdConfig") as caught:
        EngineConfig(pd_config=refused)
    assert remedy in caught.value.remedy


def test_the_config_names_one_model() -> None:
    assert EngineConfig(weight_path="/models/x").ref == "/models/x"
    assert EngineConfig(weight_file="/models/x.gguf").ref == "/models/x.gguf"
    for config in (EngineConfig(), EngineConfig(weight_path="a", model_id="b")):
        with pytest.raises(FieldError, match="names [02] models"):
            assert config.ref


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(FieldError, match="int3"):
        Engine(EngineConfig(weight_path="x"), "int3")


@pytest.mark.parametrize(
    "name", ["start_server", "get_num_cached_tokens", "get_available_kv_tokens"]
)
def test_a_method_that_is_not_offered_says_what_to_do(name: str) -> None:
    model, _ = engine()
    with pytest.raises(FieldError, match=f"Engine.{name} is not offered") as caught:
        getattr(model, name)()
    assert "inferno serve" in caught.value.remedy


@pytest.mark.parametrize("dtype", ["bf16", DType.BF16])
def test_a_dtype_is_a_member_or_its_name(dtype: DType | str) -> None:
    assert DType.of(dtype) is DType.BF16 and DType.of(dtype).name_here == "bfloat16"


# --- commands -------------------------------------------------------------------------------------

COMMANDS = {
    "server --w /m --host 0.0.0.0 --port 8001 --d 0,1 --fp8-kvcache --context-cache": "serve /m "
    "--dtype bfloat16 --host 0.0.0.0 --port 8001 --tp 2 --kv-cache-dtype fp8_e4m3 "
    "--enable-prefix-caching",
    "server --m a/b --f c.gguf --isq q4k --max-num-seqs 8 --cpu-mem-fold 0.5 --ui-server": "serve "
    "a/b/c.gguf --dtype bfloat16 --max-num-seqs 8 --cpu-mem-fold 0.5 --isq q4_k --page",
    "server --w /m --d 0 --pd-client --pd-url tcp://there:7000": "serve /m --dtype bfloat16 "
    "--pd-url tcp://there:7000 --pd-client",
    "chat --i --m a/b --dtype f32 --max-tokens 9 --log --flash": "chat a/b --dtype float32 "
    "--max-tokens 9",
    "chat --w /m --prompts one|two": "generate /m --dtype bfloat16 --prompts one|two",
    "completion --f c.gguf --batch 256 --max_tokens 9 --top-p 0.9": "generate c.gguf --dtype "
    "bfloat16 --prompts How are you?|How to make money? --batch 256 --top-p 0.9 --max-tokens 9",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_the_command_of_inferno_that_does_the_same(line: str) -> None:
    name, *arguments = line.split(" ")
    assert (
        " ".join(getattr(commands, {"server": "serve"}.get(name, name))(arguments))
        == (COMMANDS[line])
    )


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("--temperature 0.5", "generation_config.json"), ("--kv-fraction 0.5", "plan")],
)
def test_an_option_that_a_server_cannot_have_says_what_to_do(option: str, remedy: str) -> None:
    with pytest.raises(FieldError, match=f"{option.split()[0]} is not offered") as caught:
        commands.serve(["--w", "/m", *option.split()])
    assert remedy in caught.value.remedy


def test_devices_are_counted_from_0() -> None:
    with pytest.raises(FieldError, match="--d 1,3") as caught:
        commands.serve(["--w", "/m", "--d", "1,3"])
    assert "CUDA_VISIBLE_DEVICES" in caught.value.remedy


@pytest.mark.slow
def test_a_module_runs_infernos_command() -> None:
    pytest.importorskip("inferno_demo")
    line = "completion --w demo --dtype f32 --prompts import|import --max-tokens 4 --temperature 0"
    module, *arguments = line.split()
    ran = subprocess.run(
        [sys.executable, "-m", f"inferno_vllm_rs.{module}", *arguments],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and ran.stdout.count("--- import") == 2, ran.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "inferno_vllm_rs.server", "--w", "demo", "--mcp-config", "x"],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2 and "--mcp-config is not offered" in refused.stderr


# --- a model --------------------------------------------------------------------------------------


def test_the_demo_model_answers_whole_and_as_a_stream() -> None:
    pytest.importorskip("inferno_demo")
    model = Engine(EngineConfig(model_id="demo", max_num_seqs=2), "f32")
    try:
        params = SamplingParams(temperature=0.0, max_tokens=12)
        [whole] = model.generate_sync(params, ["import math"])
        _, prompt_length, stream = model.generate_stream(params, "import math")
        text = "".join(str(item.data) for item in stream if item.datatype == "TOKEN")
    finally:
        model.close()
    assert whole.decode_output == text and text
    assert whole.prompt_length == prompt_length and whole.decoded_length == 12
