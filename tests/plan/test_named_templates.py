"""Chat templates of a checkpoint by name, in the three forms that checkpoints have."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError
from inferno.plan.chat_formats import named_templates


@pytest.mark.parametrize(
    ("stored", "templates"),
    [
        (None, {}),
        ("", {}),
        ("a", {"default": "a"}),
        ({"default": "a", "tool_use": "b"}, {"default": "a", "tool_use": "b"}),
        (
            [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
            {"default": "a", "tool_use": "b"},
        ),
    ],
    ids=str,
)
def test_templates_have_names(stored: Any, templates: dict[str, str]) -> None:
    assert named_templates(TextAssets(tokenizer_config={"chat_template": stored})) == templates


@pytest.mark.parametrize("stored", [[{"name": "default"}], ["a"], 5], ids=str)
def test_other_forms_are_refused(stored: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        named_templates(TextAssets(tokenizer_config={"chat_template": stored}))
    assert "--chat-template" in caught.value.remedy
