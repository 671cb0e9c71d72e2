from __future__ import annotations

from inferno.testing import EndpointsTests


class TestParrot(EndpointsTests):
    endpoints = "parrot"
    smallest = {"/parrot/generate": {"inputs": "hi"}}
