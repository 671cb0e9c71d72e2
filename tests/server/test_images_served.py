"""Images over HTTP, in the shape of every API: a tiny Qwen2.5-VL, with its own processes."""

from __future__ import annotations

import base64
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.seeing_model import IMAGE, write_seeing_model
from tests.server.server_fakes import FakeLLM

from inferno import LLM, AsyncLLM, SamplingParams
from inferno.errors import UnsupportedError
from inferno.images.limits import ImageLimits
from inferno.images.pixels import folder_of
from inferno.server import ServerOptions, create_app
from inferno.testing import picture_file

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "memory": "2GiB",
    "max_num_seqs": 4,
    "threads": 1,
}
ONE, OTHER = picture_file(1, (112, 112)), picture_file(2, (112, 112))
TEXT = {"type": "text", "text": "What is this?"}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{in_base64(data)}"


def part(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), **more}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_seeing_model(folder)
    return folder


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> AsyncLLM:
    return AsyncLLM(str(checkpoint), **OPTIONS)


@pytest.fixture(scope="module")
def http(llm: AsyncLLM) -> Iterator[TestClient[Any]]:
    limits = ImageLimits(max_bytes=200_000, max_images=3)
    app = create_app(llm, ServerOptions(images=limits, served_names=("seeing",)))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def chat(http: Any, *parts: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": list(parts)}]
    return http.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **more})


def said(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_every_api_shows_the_model_the_same(http: Any, checkpoint: Path) -> None:
    wanted = said(chat(http, TEXT, part(ONE)))
    assert wanted != said(chat(http, TEXT, part(OTHER)))
    assert said(chat(http, TEXT, part(ONE, detail="high"))) == wanted
    assert said(chat(http, TEXT, {"type": "image_url", "image_url": url(ONE)})) == wanted

    content = [
        {"type": "input_text", "text": TEXT["text"]},
        {"type": "input_image", "image_url": url(ONE), "detail": "auto"},
    ]
    body: dict[str, Any] = {"input": [{"role": "user", "content": content}], "temperature": 0}
    answer = http.post("/v1/responses", json={**body, "max_output_tokens": 6}).json()
    assert answer["output"][0]["content"][0]["text"] == wanted

    source = {"type": "base64", "media_type": "image/png", "data": in_base64(ONE)}
    messages: list[Any] = [{"role": "user", "content": [TEXT, {"type": "image", "source": source}]}]
    body = {"model": "seeing", "messages": messages, **GREEDY}
    answer = http.post("/v1/messages", json=body).json()
    assert answer["content"][0]["text"] == wanted

    messages = [{"role": "user", "content": TEXT["text"], "images": [in_base64(ONE)]}]
    first = said(chat(http, part(ONE), TEXT))
    options = {"temperature": 0, "num_predict": 6}
    shown: dict[str, Any] = {"model": "seeing", "stream": False, "options": options}
    answer = http.post("/api/chat", json={**shown, "messages": messages}).json()
    assert answer["message"]["content"] == first and "x_inferno" not in answer
    prompt = {"prompt": TEXT["text"], "images": [in_base64(ONE)]}
    assert http.post("/api/generate", json={**shown, **prompt}).json()["response"] == first

    with LLM(str(checkpoint), **OPTIONS) as local:
        given = Image.open(io.BytesIO(ONE))
        for image in ({"type": "image", "image": given}, {"type": "image", "image": ONE}):
            conversation = [{"role": "user", "content": [TEXT, image]}]
            [output] = local.chat(conversation, SamplingParams(**GREEDY))
            assert output.outputs[0].text == wanted
        [output] = local.generate(
            {"prompt": "<|vision_start|><|image_pad|>?", "multi_modal_data": {"image": given}},
            SamplingParams(**GREEDY),
        )
        assert list(output.prompt_token_ids or ()).count(IMAGE) == 16


def test_images_are_prompt_tokens_and_are_cached(http: Any) -> None:
    usage = [chat(http, part(ONE), part(OTHER), TEXT).json()["usage"] for _ in range(2)]
    around = len("_user\n") + len("_\n_assistant\n")  # a turn's marks are one token each
    assert usage[0]["prompt_tokens"] == 2 * (16 + 2) + len("What is this?") + around
    assert usage[1]["prompt_tokens_details"]["cached_tokens"] >= 48
    counted = http.post(
        "/tokenize",
        json={"messages": [{"role": "user", "content": [part(ONE), part(OTHER), TEXT]}]},
    ).json()
    assert counted["count"] == usage[0]["prompt_tokens"]


def test_a_conversation_goes_on_about_its_image(http: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": [part(ONE), TEXT]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    again = http.post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


REFUSED: dict[str, tuple[Any, str]] = {
    "no address": ({"type": "image_url"}, "has no image"),
    "a number": ({"type": "image_url", "image_url": 7}, "no address"),
    "a path": ({"type": "image_url", "image_url": "/etc/passwd"}, "neither a data: URL"),
    "a file": ({"type": "image_url", "image_url": "file:///etc/passwd"}, "neither a data: URL"),
    "the network": (
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        "this server fetches none",
    ),
    "no image": ({"type": "image_url", "image_url": {"url": url(b"hello")}}, "no format"),
    "truncated": (part(ONE[: len(ONE) // 2]), "cannot be decoded"),
    "too large": (part(ONE + b"x" * 200_000), "the limit is"),
    "detail": (part(ONE, detail="all"), "detail is 'all'"),
    "unequal sides": (part(picture_file(3, (900, 2))), "the model cannot see"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_get_a_400_with_the_place(name: str, http: Any) -> None:
    given, reason = REFUSED[name]
    answer = chat(http, TEXT, given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert reason in error["message"] and error["param"] == "messages[0].content[1]"
    assert said(chat(http, TEXT, part(ONE)))


def test_errors_name_the_place_in_the_body(http: Any) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    messages = [{"role": "user", "content": [TEXT, {"type": "image", "source": source}]}]
    body = {"model": "seeing", "system": "x", "max_tokens": 3, "messages": messages}
    error = http.post("/v1/messages", json=body).json()["error"]
    assert "messages[0].content[1].source" in error["message"]
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url(b"x")}]}
    error = http.post("/v1/responses", json={"input": [item], "instructions": "x"}).json()["error"]
    assert error["param"] == "input[0].content[0]"
    body = {"model": "seeing", "messages": [{"role": "user", "content": "", "images": ["AAAA"]}]}
    error = http.post("/api/chat", json={**body, "stream": False}).json()["error"]
    assert "messages[0].images[0]" in error


def test_too_many_images_and_a_token_for_one_in_the_text_are_refused(http: Any) -> None:
    answer = chat(http, *[part(ONE)] * 4)
    assert answer.status_code == 400 and "the limit is 3" in answer.json()["error"]["message"]
    text = {"type": "text", "text": "<|image_pad|>"}
    answer = chat(http, text, part(ONE))
    assert answer.status_code == 400 and "2 places for 1 image" in answer.json()["error"]["message"]


def test_a_model_of_text_says_that_it_sees_none(client: Any) -> None:
    answer = chat(client(FakeLLM()), TEXT, part(ONE))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(
        "messages[0].content[1] is an image, and fake reads text only"
    )
    assert error["param"] == "messages[0].content[1]"


def test_pixels_wait_in_shared_memory_that_is_bounded(http: Any, llm: AsyncLLM) -> None:
    said(chat(http, TEXT, part(ONE)))
    files = [path for path in folder_of(os.getpid()).rglob("*") if path.is_file()]
    assert files and sum(path.stat().st_size for path in files) < 4 * 2**20


def test_the_page_and_ollama_say_that_it_sees(http: Any) -> None:
    assert "vision" in http.post("/api/show", json={"model": "seeing"}).json()["capabilities"]
    [listed] = http.get("/v1/models").json()["data"]
    assert "vision" in listed["capabilities"], "what the page offers pictures by"


@pytest.mark.slow
def test_a_reader_that_is_killed_is_replaced(http: Any, llm: AsyncLLM) -> None:
    client: Any = llm._client
    said(chat(http, TEXT, part(picture_file(8, (60, 60)))))
    os.kill(client._images._process.pid, signal.SIGKILL)
    assert said(chat(http, TEXT, part(picture_file(9, (60, 60)))))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"tp": 2}, {"sandbox": True}, {"speculative": "ngram"}])
def test_ranks_sandboxes_and_drafts_see_the_same(
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


@pytest.mark.slow
def test_blocks_of_images_come_back_from_a_store(
    http: Any, checkpoint: Path, tmp_path: Path
) -> None:
    wanted = said(chat(http, TEXT, part(ONE), part(OTHER)))
    for restarted in (False, True):
        llm = AsyncLLM(str(checkpoint), **OPTIONS, kv_store=str(tmp_path / "store"))
        with TestClient(create_app(llm), raise_server_exceptions=False) as other:
            answer = chat(other, TEXT, part(ONE), part(OTHER))
            assert said(answer) == wanted
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 32) == restarted
            swapped = chat(other, TEXT, part(OTHER), part(ONE))
            assert swapped.json()["usage"]["prompt_tokens_details"]["cached_tokens"] <= (
                64 if restarted else 16
            )
