"""What is encoded where a chat template writes something else for an image than its token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from inferno.llm.images import PromptImages, pictures_beside, written
from inferno.llm.preprocessor import Preprocessor
from inferno.text import ChatTemplate

TEMPLATE = "{% for m in messages %}user\n{{ m.content }}{% endfor %}"


def images(**fields: Any) -> Any:
    opened: Any = SimpleNamespace(config=SimpleNamespace(**fields))
    return PromptImages(opened)


GEMMA = images(image_text=("<boi>", "\n\n<boi><image><eoi>\n\n"))


def test_a_rendered_conversation_has_the_text_that_the_model_was_trained_with() -> None:
    """Before it is encoded: line breaks may become one token with those of the template."""
    reader = Preprocessor(
        tokenizer=None,
        template=ChatTemplate({"default": TEMPLATE}),
        max_model_len=64,
        images=GEMMA,
    )
    text = reader.render_chat([{"role": "user", "content": "<boi>what?<boi>"}])
    assert text == "user\n\n\n<boi><image><eoi>\n\nwhat?\n\n<boi><image><eoi>\n\n"


def test_other_models_encode_what_the_template_writes() -> None:
    assert written("a<boi>b", images(image_token_id=7)) == written("a<boi>b", None) == "a<boi>b"


def test_a_prompt_without_images_is_encoded_as_it_is() -> None:
    for prompt in ("a<boi>b", {"prompt": "a<boi>b"}):
        assert pictures_beside(prompt, GEMMA) == ("a<boi>b", [])
    assert pictures_beside({"prompt_token_ids": [1, 2]}, None) == ([1, 2], [])
