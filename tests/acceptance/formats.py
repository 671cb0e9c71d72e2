"""The chat formats that the fake model speaks, each with a short template in a family's own words.
`INFERNO_TEMPLATES` names a folder with the families' own (llama.cpp carries them as
models/templates): then those are served."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from tests.acceptance.checkpoints import write_checkpoint
from tests.server.server_fakes import RESPONSE_TEMPLATE

_FOLDER = Path(__file__).parent / "templates"
_THOUGHTS = {"open": "<think>\n", "close": "\n</think>"}
_LINES = {
    **RESPONSE_TEMPLATE,
    "fields": {**RESPONSE_TEMPLATE["fields"], "reasoning_content": _THOUGHTS},  # type: ignore[dict-item]
}


@frozen(kw_only=True)
class Format:
    """A chat format and what a model of it can do."""

    name: str
    original: str = ""
    """The family's own template in llama.cpp's folder."""
    template: str = ""
    """The name of the short one, if it is not the format's."""
    end: str = "<|im_end|>"
    more_ends: tuple[str, ...] = ()
    bos: str = ""
    thinks: bool = False
    parallel: bool = True
    forces: bool = True
    """Whether a call can be demanded (`tool_choice`)."""
    call_id: str = "call0000{index}"
    response_template: Mapping[str, Any] | None = None

    def write(self, folder: Path) -> Path:
        """Write a checkpoint of this format."""
        return write_checkpoint(
            folder,
            self.source(),
            end=self.end,
            more_ends=self.more_ends,
            bos=self.bos,
            response_template=self.response_template,
        )

    def source(self) -> str:
        folder = os.environ.get("INFERNO_TEMPLATES")
        if folder and self.original:
            path = Path(folder) / f"{self.original}.jinja"
        else:
            path = _FOLDER / f"{self.template or self.name}.jinja"
        return path.read_text(encoding="utf-8")


FORMATS = {
    each.name: each
    for each in (
        Format(
            name="response_template",
            template="hermes",
            thinks=True,
            forces=False,
            response_template=_LINES,
        ),
        Format(name="hermes", original="Qwen-Qwen3-0.6B", thinks=True),
        Format(name="thinks", original="Qwen-QwQ-32B", thinks=True),
        Format(name="qwen3-coder", original="Qwen3-Coder"),
        Format(
            name="llama3",
            original="meta-llama-Llama-3.1-8B-Instruct",
            end="<|eot_id|>",
            bos="<|begin_of_text|>",
            parallel=False,
        ),
        Format(
            name="mistral", original="mistralai-Mistral-Nemo-Instruct-2407", end="</s>", bos="<s>"
        ),
        Format(
            name="mistral-args",
            original="Mistral-Small-3.2-24B-Instruct-2506",
            end="</s>",
            bos="<s>",
        ),
        Format(
            name="deepseek",
            original="deepseek-ai-DeepSeek-V3.1",
            end="<｜end▁of▁sentence｜>",
            bos="<｜begin▁of▁sentence｜>",
        ),
        Format(name="glm", original="GLM-4.6", end="<|user|>", thinks=True),
        Format(
            name="kimi",
            original="moonshotai-Kimi-K2",
            call_id="functions.{name}:{index}",
        ),
        Format(
            name="harmony",
            original="openai-gpt-oss-120b",
            end="<|return|>",
            more_ends=("<|call|>",),
            thinks=True,
            parallel=False,
        ),
    )
}
