"""SGLang's API is one like any plugin's."""

from __future__ import annotations

from inferno.testing import EndpointsTests


class TestSGLang(EndpointsTests):
    endpoints = "sglang"
    smallest = {
        "/generate": {"input_ids": [5, 6]},
        "/generate#sampling_params": {},
        "/abort_request": {},
        "/pause_generation": {},
        "/release_memory_occupation": {},
        "/update_weights_from_disk": {"model_path": "/nowhere"},
    }
