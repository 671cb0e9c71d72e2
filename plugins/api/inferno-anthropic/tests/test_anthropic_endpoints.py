"""Anthropic's API is one like any plugin's."""

from __future__ import annotations

from inferno.testing import EndpointsTests

MESSAGES = [{"role": "user", "content": "hi"}]


class TestAnthropic(EndpointsTests):
    endpoints = "anthropic"
    smallest = {
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": MESSAGES},
    }
