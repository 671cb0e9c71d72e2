"""SGLang's API is one like any plugin's."""

from __future__ import annotations

from typing import Any

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

    def test_the_document_has_the_answers_of_updates(self, api: Any, server: Any) -> None:
        """Each is 200, and an error is one of the server or `success: false`."""
        document = server.get("/schema/openapi.json", headers={"X-Api-Key": "sesame"}).json()
        paths = {path for handler in api.handlers for path in handler.paths}
        for path in paths & set(document["paths"]):
            for operation in document["paths"][path].values():
                assert [s for s in operation["responses"] if s < "300"] == ["200"], path
        update = document["paths"]["/update_weights_from_distributed"]["post"]["responses"]
        kinds = update["400"]["content"]["application/json"]["schema"]["anyOf"]
        assert [each["$ref"].rpartition("/")[2] for each in kinds] == ["ErrorBody", "UpdateFailure"]
