"""Audio over HTTP, in the shape of every API that has it: a tiny Qwen2-Audio, with its own
processes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.hearing_model import AUDIO, write_hearing_model
from tests.seeing_model import write_seeing_model
from tests.server.server_fakes import FakeLLM

from inferno import LLM, AsyncLLM, SamplingParams
from inferno.cli.images import audio_rows
from inferno.errors import RequestError, UnsupportedError
from inferno.images.limits import ImageLimits
from inferno.images.sound import wav_of
from inferno.plan import Options, Plan, plan_from_json, plan_to_json, resolve
from inferno.server import ServerOptions, create_app
from inferno.testing import picture_file, sound

soundfile: Any = pytest.importorskip("soundfile")
pytest.importorskip("soxr")
pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "memory": "2GiB",
    "max_num_seqs": 4,
    "threads": 1,
}
SAMPLES = sound(1, 1.0)
ONE, OTHER = wav_of(SAMPLES, 16_000), wav_of(sound(2, 1.0), 16_000)
TEXT = {"type": "text", "text": "What is this?"}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:audio/wav;base64,{in_base64(data)}"


def part(data: bytes, format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": in_base64(data), "format": format}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hearing")
    write_hearing_model(folder)
    return folder


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> AsyncLLM:
    return AsyncLLM(str(checkpoint), **OPTIONS)


@pytest.fixture(scope="module")
def http(llm: AsyncLLM) -> Iterator[TestClient[Any]]:
    limits = ImageLimits(max_audio_bytes=300_000, max_images=3)
    app = create_app(llm, ServerOptions(images=limits, served_names=("hearing",)))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def plan_json_again(plan: Plan) -> Plan:
    return plan_from_json(plan_to_json(plan))


def chat(http: Any, *parts: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": list(parts)}]
    return http.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **more})


def said(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_every_api_and_python_let_the_model_hear_the_same(http: Any, checkpoint: Path) -> None:
    wanted = said(chat(http, TEXT, part(ONE)))
    assert wanted != said(chat(http, TEXT, part(OTHER)))
    for given in (url(ONE), {"url": url(ONE)}):
        assert said(chat(http, TEXT, {"type": "audio_url", "audio_url": given})) == wanted
    content = [
        {"type": "input_text", "text": TEXT["text"]},
        {"type": "input_audio", "input_audio": {"data": in_base64(ONE), "format": "wav"}},
    ]
    body: dict[str, Any] = {"input": [{"role": "user", "content": content}], "temperature": 0}
    answer = http.post("/v1/responses", json={**body, "max_output_tokens": 6}).json()
    assert answer["output"][0]["content"][0]["text"] == wanted

    (path := checkpoint / "one.wav").write_bytes(ONE)
    with LLM(str(checkpoint), **OPTIONS) as local:
        for audio in (ONE, path, str(path), url(ONE), SAMPLES, (SAMPLES, 16_000)):
            conversation = [{"role": "user", "content": [TEXT, {"type": "audio", "audio": audio}]}]
            [output] = local.chat(conversation, SamplingParams(**GREEDY))
            assert output.outputs[0].text == wanted
        prompt = {
            "prompt": "<|audio_bos|><|AUDIO|><|audio_eos|>?",
            "multi_modal_data": {"audio": (SAMPLES, 16_000)},
        }
        [output] = local.generate(prompt, SamplingParams(**GREEDY))
        assert list(output.prompt_token_ids or ()).count(AUDIO) == 25
        prompt["multi_modal_data"] = {"image": picture_file(1, (60, 60))}
        with pytest.raises(RequestError, match="sees no images: no image encoder is loaded"):
            local.generate(prompt)


@pytest.mark.slow
def test_an_asynchronous_model_takes_what_the_other_takes(http: Any, checkpoint: Path) -> None:
    wanted = said(chat(http, TEXT, part(ONE)))

    async def run() -> None:
        async with AsyncLLM(str(checkpoint), **OPTIONS) as llm:
            for audio in (ONE, (SAMPLES, 16_000)):
                content = [TEXT, {"type": "audio", "audio": audio}]
                messages = [{"role": "user", "content": content}]
                output = await llm.chat(messages, SamplingParams(**GREEDY))
                assert output.outputs[0].text == wanted
            with pytest.raises(RequestError, match="an array of int64"):
                await llm.chat([{"role": "user", "content": [{"type": "audio", "audio": [1, 2]}]}])

    asyncio.run(run())


def test_audio_is_prompt_tokens_and_is_cached(http: Any) -> None:
    first, second = (chat(http, part(ONE), part(OTHER), TEXT).json()["usage"] for _ in range(2))
    body = {"messages": [{"role": "user", "content": [part(ONE), part(OTHER), TEXT]}]}
    assert http.post("/tokenize", json=body).json()["count"] == first["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - 17
    swapped = chat(http, part(OTHER), part(ONE), TEXT).json()["usage"]
    before = len("_system\nYou are a helpful assistant._\n_user\nAudio 1: _")
    assert swapped["prompt_tokens_details"]["cached_tokens"] <= before


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ({"type": "input_audio"}, "has no audio"),
    "no data": ({"type": "input_audio", "input_audio": {"format": "wav"}}, "has no data"),
    "a format": (part(ONE, "aac"), "format is 'aac'"),
    "a path": ({"type": "audio_url", "audio_url": "/etc/passwd"}, "neither a data: URL"),
    "a number": ({"type": "audio", "audio": 7}, "has no address of audio"),
    "a picture's address": (
        {"type": "audio_url", "audio_url": "data:image/png;base64,AAAA"},
        "image/png, which is no audio",
    ),
    "the network": (
        {"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}},
        "this server fetches none",
    ),
    "no audio": (part(b"hello"), "cannot be decoded"),
    "too large": (part(ONE + b"x" * 300_000), "the limit is"),
    "too long": (part(wav_of(SAMPLES, 4_000)), "4 seconds long, the limit is 2"),
    "too short": (part(wav_of(SAMPLES[:200], 16_000)), "the model cannot hear"),
    "an image": (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        "sees no images: no image encoder is loaded",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_get_a_400_with_the_place(name: str, http: Any) -> None:
    given, reason = REFUSED[name]
    answer = chat(http, TEXT, given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert reason in error["message"] and error["param"] == "messages[0].content[1]"
    assert said(chat(http, TEXT, part(ONE)))


def test_too_much_audio_and_a_token_for_it_in_the_text_are_refused(http: Any) -> None:
    answer = chat(http, *[part(ONE)] * 4)
    assert answer.status_code == 400 and "the limit is 3" in answer.json()["error"]["message"]
    answer = chat(http, {"type": "text", "text": "<|AUDIO|>"}, part(ONE))
    assert "2 places for 1 pieces of audio" in answer.json()["error"]["message"]
    item = {"role": "user", "content": [{"type": "input_audio"}]}
    error = http.post("/v1/responses", json={"input": [item]}).json()["error"]
    assert error["param"] == "input[0].content[0]" and "has no input_audio" in error["message"]


def test_a_model_of_text_and_one_of_images_say_that_they_hear_none(
    client: Any, tmp_path: Path
) -> None:
    error = chat(client(FakeLLM()), TEXT, part(ONE)).json()["error"]
    assert "is audio, and fake reads text only: it has no audio encoder" in error["message"]
    pytest.importorskip("PIL")
    write_seeing_model(tmp_path)
    conversation = [{"role": "user", "content": [{"type": "audio", "audio": ONE}]}]
    with LLM(str(tmp_path), **OPTIONS) as local:
        with pytest.raises(RequestError, match="hears no audio: no audio encoder is loaded"):
            local.chat(conversation)


def test_the_plan_and_the_list_of_models_say_that_it_hears(http: Any, checkpoint: Path) -> None:
    [listed] = http.get("/v1/models").json()["data"]
    assert "audio" in listed["capabilities"] and "vision" not in listed["capabilities"]
    plan = resolve(str(checkpoint), Options(**OPTIONS))
    assert plan.audio is not None and plan.audio.most_seconds == 2.0
    assert plan.audio.chunk == (2.0, 50) and plan.audio.most_tokens == 50
    assert plan_json_again(plan) == plan
    [whole, length, cache] = audio_rows(plan, "by this test")
    assert whole[0] == "audio" and whole[1].startswith("hearing: 0.0M parameters")
    assert length[1] == "50 tokens for 2 s, at most 2 s" and "256.0 MiB" in cache[1]
    plan = resolve(str(checkpoint), Options(**OPTIONS, max_audio_seconds=1))
    assert plan.audio is not None and plan.audio.most_seconds == 1.0


def test_without_the_plugin_the_plan_says_that_audio_is_off(checkpoint: Path) -> None:
    pytest.importorskip("inferno_transformers", reason="needs inferno-transformers")
    plan = resolve(str(checkpoint), Options(**OPTIONS, disable=("inferno-qwen2",)))
    [note] = [note for note in plan.notes if note.startswith("text only")]
    assert note.startswith("text only: audio is off. Qwen2AudioForConditionalGeneration has an")
    assert plan.audio is None


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"tp": 2}, {"sandbox": True}, {"speculative": "ngram"}])
def test_ranks_sandboxes_and_drafts_hear_the_same(
    options: dict[str, Any], http: Any, checkpoint: Path
) -> None:
    wanted = said(chat(http, TEXT, part(ONE), part(OTHER)))
    try:
        llm = AsyncLLM(str(checkpoint), **{**OPTIONS, **options})
    except UnsupportedError as error:
        pytest.skip(f"not here: {error.cause}")
    with TestClient(create_app(llm), raise_server_exceptions=False) as other:
        for _ in range(2):
            assert said(chat(other, TEXT, part(ONE), part(OTHER))) == wanted
