"""Pictures in the chat page: chosen, dropped and pasted, where the model sees them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.seeing_model import write_seeing_model
from tests.server.page_chat import Chat, expect

from inferno import AsyncLLM
from inferno.testing import picture_file

pillow = pytest.importorskip("PIL.Image")
pytest.importorskip("inferno_qwen2", reason="needs inferno-qwen2")

GIVE = """([kind, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], "given.png", { type }));
  const event = { bubbles: true, cancelable: true, dataTransfer: given, clipboardData: given };
  const target = document.getElementById("input");
  if (kind === "paste") return target.dispatchEvent(new ClipboardEvent("paste", event));
  target.dispatchEvent(new DragEvent("dragover", event));
  return target.dispatchEvent(new DragEvent("drop", event));
}"""
"""Drops or pastes a file. Returns whether the browser would do as it does by itself."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees images."""
    write_seeing_model(folder := tmp_path_factory.mktemp("seeing"))
    return folder


@pytest.fixture
def sighted(checkpoint: Path) -> AsyncLLM:
    return AsyncLLM(str(checkpoint), dtype="float32", max_model_len=256, memory="2GiB", threads=1)


def give(it: Chat, kind: str, data: bytes) -> bool:
    sent = [kind, "image/png", base64.b64encode(data).decode()]
    return bool(it.page.evaluate(GIVE, sent))


def answered(it: Chat) -> None:
    """Wait for the end of the answer: the first image waits for the process that reads images."""
    expect(it.button("Send")).to_be_visible(timeout=60_000)
    it.done()


def asked(it: Chat) -> list[Any]:
    """What the page asks the server from now on."""
    requests: list[Any] = []
    it.page.on("request", lambda r: requests.append(r) if r.url.endswith("/completions") else None)
    return requests


def choose(it: Chat, data: bytes, name: str = "cat.png", kind: str = "image/png") -> None:
    file = {"name": name, "mimeType": kind, "buffer": data}
    it.page.locator("#files").set_input_files(file)


def test_pictures_are_added_shown_removed_and_sent(
    chat: Callable[..., Chat], sighted: AsyncLLM
) -> None:
    it = chat(sighted)
    requests, data = asked(it), [picture_file(seed, (56, 56)) for seed in range(3)]
    added = it.page.locator("#pictures img")
    expect(it.button("Add pictures")).to_be_visible()
    choose(it, data[0])
    expect(added).to_have_count(1)
    assert not give(it, "drop", data[1])
    expect(added).to_have_count(2)
    assert not give(it, "paste", data[2])
    expect(added).to_have_count(3)
    it.button("Remove cat.png").click()
    expect(added).to_have_count(2)
    it.button("New conversation").click()
    expect(added).to_have_count(0)
    choose(it, data[0])
    it.send("What is it?")
    answered(it)
    expect(added).to_have_count(0)
    [request] = requests
    [message] = request.post_data_json["messages"]
    url = f"data:image/png;base64,{base64.b64encode(data[0]).decode()}"
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]
    it.page.reload()
    shown = it.page.locator("article.user .pictures img")
    expect(shown).to_have_attribute("src", url)
    assert shown.evaluate("each => each.naturalWidth") == 56, "the policy lets it be shown"
    expect(it.question).to_have_text("What is it?")
    assert it.problems == []


def test_a_picture_needs_no_text_and_stays_when_the_text_is_changed(
    chat: Callable[..., Chat], sighted: AsyncLLM
) -> None:
    it = chat(sighted)
    requests = asked(it)
    choose(it, picture_file(0, (56, 56)))
    expect(it.page.locator("#pictures img")).to_have_count(1)
    it.button("Send").click()
    answered(it)
    expect(it.page.locator("#title")).to_have_text("cat.png")
    it.act(it.page.locator("article.user").last, "Edit message")
    it.page.get_by_role("textbox", name="Change the message").fill("changed")
    it.page.keyboard.press("Enter")
    answered(it)
    kinds = [
        [part["type"] for part in r.post_data_json["messages"][0]["content"]] for r in requests
    ]
    assert kinds == [["image_url"], ["image_url", "text"]]


def test_a_large_picture_is_sent_smaller_and_what_is_none_is_refused(
    chat: Callable[..., Chat], sighted: AsyncLLM
) -> None:
    it = chat(sighted)
    requests, added = asked(it), it.page.locator("#pictures img")
    choose(it, picture_file(0, (3000, 1500), "BMP"), "large.bmp", "image/bmp")
    expect(added).to_have_count(1)
    choose(it, b"no picture", "fake.png")
    expect(it.page.locator("#toast")).to_contain_text("fake.png is no picture")
    expect(added).to_have_count(1)
    it.send("How large?")
    answered(it)
    [request] = requests
    url = request.post_data_json["messages"][0]["content"][0]["image_url"]["url"]
    kind, _, data = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    assert pillow.open(io.BytesIO(base64.b64decode(data))).size == (2048, 1024)


def test_a_model_of_text_is_offered_none(chat: Callable[..., Chat]) -> None:
    it = chat()
    expect(it.page.locator("#empty-title")).not_to_have_text("inferno")
    expect(it.button("Add pictures")).to_be_hidden()
    data = picture_file(0, (56, 56))
    assert not give(it, "drop", data), "the browser must not leave the page for the file"
    assert give(it, "paste", data)
    expect(it.page.locator("#pictures")).to_be_hidden()
