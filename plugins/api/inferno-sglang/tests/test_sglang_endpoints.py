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
        "/init_weights_update_group": {
            "master_address": "127.0.0.1",
            "master_port": 1,
            "rank_offset": 1,
            "world_size": 1,
        },
        "/update_weights_from_distributed": {"names": [], "dtypes": [], "shapes": []},
        "/destroy_weights_update_group": {},
    }
