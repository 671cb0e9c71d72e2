"""One conversation in several tabs of the chat page."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.conftest import wait_until
from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import FakeLLM


def _open(it: Chat, title: str) -> Chat:
    """The same conversation in another tab."""
    other = Chat(it.page.context.new_page(), it.live)
    other.button(title).click()
    expect(other.question).to_have_text(title)
    return other


def test_no_turn_is_lost_between_two_tabs(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="One.")
    it = chat(llm)
    it.ask("first")
    other = _open(it, "first")
    llm.reply = "Two."
    other.ask("second, in the other tab")
    expect(it.question).to_have_text("second, in the other tab")
    llm.reply = "Three."
    it.ask("third")
    whole = ["first", "One.", "second, in the other tab", "Two.", "third", "Three."]
    for tab in (it, other):
        wait_until(lambda tab=tab: tab.texts() == whole)  # type: ignore[misc]
        tab.page.reload()
        expect(tab.question).to_have_text("third")
        assert tab.texts() == whole
        assert tab.problems == []


def test_turns_made_at_once_stand_beside_each_other(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="One.")
    it = chat(llm)
    it.ask("first")
    other = _open(it, "first")
    other.page.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
    other.ask("theirs")  # as if nothing was heard of it
    it.ask("mine")
    it.page.reload()
    expect(it.page.get_by_role("group", name="Versions")).to_have_text("2 / 2")
    assert it.texts() == ["first", "One.", "mine", "One."]
    it.button("Older version").click()
    assert it.texts() == ["first", "One.", "theirs", "One."]


def test_an_answer_is_seen_and_stopped_in_the_other_tab(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="One.")
    it = chat(llm)
    it.ask("first")
    other = _open(it, "first")
    llm.reply, llm.endless, llm.delay = "word ", True, 0.01
    it.send("go on")
    expect(other.answer).to_contain_text("word word")
    expect(other.page.locator("#list .busy")).to_have_count(1)
    before = len(other.answer.inner_text())
    wait_until(lambda: len(other.answer.inner_text()) > before + 20)
    other.button("Stop the answer").click()
    it.done()
    other.done()
    assert len(llm.aborted) == 1
    expect(other.answer.locator(".stats")).to_contain_text("stopped")
    assert other.texts() == it.texts()


def test_the_lists_of_all_tabs_are_alike(chat: Callable[..., Chat]) -> None:
    it = chat()
    other = Chat(it.page.context.new_page(), it.live)
    it.ask("made here")
    expect(other.button("made here")).to_be_visible()
    other.button("made here").click()
    field = other.page.get_by_role("textbox", name="Message")
    field.focus()
    it.page.get_by_role("button", name="Delete made here").click()
    expect(other.button("made here")).to_have_count(0)
    expect(other.page.locator("article")).to_have_count(0)
    it.button("Undo").click()
    expect(other.button("made here")).to_be_visible()


def test_a_message_that_was_deleted_elsewhere_stays_deleted(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="One.")
    it = chat(llm)
    it.ask("first")
    other = _open(it, "first")
    llm.reply, llm.endless, llm.delay = "word ", True, 0.01
    it.send("go on")
    expect(other.answer).to_contain_text("word word")
    other.act(other.page.locator("article.user").last, "Delete message")
    wait_until(lambda: len(it.page.locator("article.user").all()) == 1)
    other.button("Stop the answer").click()
    it.done()
    it.page.reload()
    expect(it.answer).to_contain_text("word word")
    assert it.page.locator("article.user .bubble").all_inner_texts() == ["first"]


MAKE_OLD = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("inferno", 1);
  opening.onupgradeneeded = () =>
    opening.result.createObjectStore("conversations", { keyPath: "id" });
  opening.onsuccess = () => {
    const put = opening.result.transaction("conversations", "readwrite")
      .objectStore("conversations").put({
        id: "old", title: "from before", created: 1000, updated: 2000,
        messages: [
          { role: "user", content: "from before" },
          { role: "assistant", content: "Old answer.", reasoning: "", calls: [], stats: {} },
          { role: "user", content: "and more" },
        ],
      });
    put.onsuccess = () => (opening.result.close(), resolve());
    put.onerror = reject;
  };
})"""


def test_conversations_of_the_older_page_are_kept(chat: Callable[..., Chat]) -> None:
    it = chat()
    context = it.page.context.browser.new_context()
    page = context.new_page()
    page.goto(f"{it.live.url}/page/flame.svg")  # the same origin, without the page
    page.evaluate(MAKE_OLD)
    moved = Chat(page, it.live)
    for _ in range(2):
        moved.button("from before").click()
        expect(moved.question).to_have_text("and more")
        assert moved.texts() == ["from before", "Old answer.", "and more"]
        page.reload()
    context.close()
