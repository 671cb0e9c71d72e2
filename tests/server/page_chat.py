"""The chat page, as the tests of it use it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.server.conftest import Live

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page's tests need the extra: pip install 'inferno[browser]'"
)
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


class Chat:
    """The page, as a person uses it."""

    def __init__(self, page: Any, live: Live) -> None:
        self.page, self.live = page, live
        self.problems: list[str] = []
        """What the browser complained about."""
        self.requested: set[str] = set()
        page.on("console", self._note)
        page.on("pageerror", lambda e: self.problems.append(str(e)))
        page.on("request", lambda r: self.requested.add(r.url))
        page.goto(live.url)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def send(self, text: str) -> None:
        self.page.get_by_role("textbox", name="Message").fill(text)
        self.page.keyboard.press("Enter")

    def ask(self, text: str) -> None:
        """Send, and wait for the end of the answer."""
        self.send(text)
        self.done()

    def done(self) -> None:
        expect(self.button("Send")).to_be_visible()
        expect(self.page.locator(".assistant.live")).to_have_count(0)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def act(self, article: Any, name: str) -> None:
        article.hover()
        article.get_by_role("button", name=name).click()

    @property
    def answer(self) -> Any:
        return self.page.locator("article.assistant").last

    @property
    def question(self) -> Any:
        return self.page.locator("article.user .bubble").last

    def texts(self) -> list[str]:
        """The shown messages."""
        messages: list[str] = self.page.locator("article :is(.bubble, .prose)").all_inner_texts()
        return messages
