"""The commands of vllm.rs's package, as the commands of inferno that do the same.

    python -m inferno_vllm_rs.server --w FOLDER --port 8000
    python -m inferno_vllm_rs.chat --i --m OWNER/NAME
    python -m inferno_vllm_rs.completion --f FILE.gguf --prompts "One|Two"

Each runs `inferno serve`, `inferno chat` or `inferno generate` in its place. An option is honoured,
or refused by its name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from inferno import InfernoError
from inferno_vllm_rs.config import ISQ, REFUSED, DType, EngineConfig, FieldError

_AS_IT_IS = ("host", "port", "max_num_seqs", "max_model_len", "cpu_mem_fold", "pd_url", "seed")
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "max_tokens")
_FLAGS = ("fp8_kvcache", "context_cache", "prefix_cache", "pd_server", "pd_client", "ui_server")
_NO_EFFECT = ("log", "flash")
_NOT_OFFERED = {
    **{name: REFUSED[name] for name in ("kv_fraction", "mcp_config", "mcp_command", "mcp_args")},
    **dict.fromkeys(
        _SAMPLING,
        "A server's requests say how their tokens are drawn, and else the checkpoint's "
        "generation_config.json.",
    ),
}
"""Options that the server's requests or the plan decide, and what to do instead."""
_QUESTIONS = "How are you?|How to make money?"


def serve(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of inferno that `vllm_rs.server` means. Raises FieldError, and
    SystemExit for an unknown option."""
    given = _parsed("server", arguments)
    for name, remedy in _NOT_OFFERED.items():
        if getattr(given, name) is not None:
            raise FieldError(f"--{name.replace('_', '-')} is not offered", remedy)
    return ["serve", *_model(given), *(["--page"] if given.ui_server else [])]


def chat(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of inferno that `vllm_rs.chat` means."""
    given = _parsed("chat", arguments)
    if given.i:
        return ["chat", *_model(given), *_sampling(given)]
    return _generate(given)


def completion(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of inferno that `vllm_rs.completion` means."""
    return _generate(_parsed("completion", arguments))


def run(command: str) -> NoReturn:
    """Replace this process by inferno."""
    try:
        arguments = {"server": serve, "chat": chat, "completion": completion}[command](sys.argv[1:])
    except InfernoError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    os.execv(sys.executable, [sys.executable, "-m", "inferno", *arguments])


def _parsed(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(f"python -m inferno_vllm_rs.{command}", allow_abbrev=False)
    parser.add_argument("--m", metavar="ID", help="hub id")
    parser.add_argument("--w", metavar="PATH", help="folder with safetensors, or GGUF file")
    parser.add_argument("--f", metavar="FILE", help="GGUF file, or one of --m")
    parser.add_argument("--dtype", default="bf16", choices=[each.value for each in DType])
    parser.add_argument("--d", metavar="0,1", help="devices; each holds a part of every layer")
    parser.add_argument("--num-shards", type=int, help="the same, as a number")
    parser.add_argument("--isq", help="block type to quantize to: q4k")
    parser.add_argument("--prompts", metavar="ONE|TWO")
    parser.add_argument("--batch", type=int, help="repeat the prompts")
    for name in (*_AS_IT_IS, *_SAMPLING, *_NOT_OFFERED.keys() - {*_SAMPLING}):
        parser.add_argument(f"--{name.replace('_', '-')}", f"--{name}", dest=name)
    for name in ("i", *_FLAGS, *_NO_EFFECT):
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", dest=name)
    return parser.parse_args(arguments)


def _generate(given: argparse.Namespace) -> list[str]:
    prompts = given.prompts or _QUESTIONS
    batch = ["--batch", str(given.batch)] if given.batch else []
    return ["generate", *_model(given), "--prompts", prompts, *batch, *_sampling(given)]


def _sampling(given: argparse.Namespace) -> list[str]:
    return _options(given, _SAMPLING)


def _model(given: argparse.Namespace) -> list[str]:
    """The reference and how the model is loaded."""
    config = EngineConfig(model_id=given.m, weight_path=given.w, weight_file=given.f)
    arguments = [config.ref, "--dtype", DType(given.dtype).name_here, *_options(given, _AS_IT_IS)]
    if shards := _shards(given):
        arguments += ["--tp", str(shards)]
    if given.isq:
        arguments += ["--isq", ISQ.get(given.isq, given.isq)]
    if given.fp8_kvcache:
        arguments += ["--kv-cache-dtype", "fp8_e4m3"]
    if given.context_cache or given.prefix_cache:
        arguments += ["--enable-prefix-caching"]
    return arguments + [
        f"--{name.replace('_', '-')}" for name in ("pd_server", "pd_client") if getattr(given, name)
    ]


def _shards(given: argparse.Namespace) -> int | None:
    """Return the number of processes that share each layer. Raises FieldError."""
    devices = [] if given.d is None else given.d.split(",")
    if devices != [str(i) for i in range(len(devices))]:
        raise FieldError(
            f"--d {given.d} does not count the devices from 0",
            "Choose them by CUDA_VISIBLE_DEVICES, and say how many: --num-shards 2.",
        )
    return given.num_shards or (len(devices) if len(devices) > 1 else None)


def _options(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    pairs = [(f"--{name.replace('_', '-')}", getattr(given, name)) for name in names]
    return [text for option, value in pairs if value is not None for text in (option, str(value))]
