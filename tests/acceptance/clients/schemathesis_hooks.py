"""Makes most generated requests name the model that is served: an unknown one is a 404 at once."""

from __future__ import annotations

from typing import Any

import schemathesis
from words import MODEL


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = MODEL
    return body
