"""llama.cpp's converter for `gguf_families.py`: `python gguf_convert.py LLAMA_CPP`, a checkout of
llama.cpp.

Runs what `convert_hf_to_gguf.py` runs, with the gguf-py beside it, in a process of its own. The
vocabulary, which toy models have none of, is made up, and one slip is mended (`keep_stacks`). One
JSON request a line comes in, one reply a line goes out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(sys.argv[1])
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "gguf-py")]

import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

KINDS = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def add_vocabulary(model: Any) -> None:
    """As many tokens as the embedding has rows; none is ever cut from a text."""
    size = model.find_hparam(["vocab_size", "padded_vocab_size"])
    tokens = ["Ċ", *(f"t{i}" for i in range(1, size))]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["t 1"])


def keep_stacks(model: Any) -> None:
    """StableLM's converter returns its stacked norms from a generator, where they are lost, and
    complains that they are."""
    modify, stack, stacks = model.modify_tensors, model._stack_qk_norm, []

    def stack_qk_norm(
        bid: int, heads: int, norms: dict[str, torch.Tensor], name: str = "q_layernorm"
    ) -> None:
        stacks.extend(stack(bid, heads, norms, name))

    def modify_tensors(
        tensor: torch.Tensor, name: str, bid: int | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        yield from modify(tensor, name, bid)
        yield from stacks
        stacks.clear()

    model._stack_qk_norm, model.modify_tensors = stack_qk_norm, modify_tensors


@torch.inference_mode()
def convert(source: str, kind: str, path: str) -> dict[str, Any]:
    hparams = ModelBase.load_hparams(Path(source), False)
    converter = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model = converter(Path(source), KINDS[kind], Path(path), eager=True, model_name="toy")
    model.set_vocab = lambda: add_vocabulary(model)
    if hasattr(model, "_stack_qk_norm"):
        keep_stacks(model)
    model.write()
    return {"converter": converter.__name__}


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the converter prints is no reply
    for line in sys.stdin:
        request = json.loads(line)
        request.pop("do")
        try:
            reply = convert(**request)
        except Exception as error:  # whatever it raises is what it says of the model
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve()
