"""llama.cpp's API is one like any plugin's."""

from __future__ import annotations

from inferno.testing import EndpointsTests


class TestLlamacpp(EndpointsTests):
    endpoints = "llamacpp"
    smallest = {
        "/completion": {"prompt": "hi"},
        "/infill": {},
        "/apply-template": {"messages": [{"role": "user", "content": "hi"}]},
    }
