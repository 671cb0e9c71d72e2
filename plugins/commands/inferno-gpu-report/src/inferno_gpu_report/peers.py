"""Other programs on the same device and shapes, where they can be imported: transformers' generate,
vLLM, and a plain loop in torch that is one CUDA graph per step.

Suffixes: T tokens, D hidden, H query heads, K key/value heads, C head dim, L tokens of the context.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field
from torch import Tensor

from inferno.cli.ragged import Load, ragged_load
from inferno_gpu_report.job import Job
from inferno_gpu_report.random_model import size_of
from inferno_gpu_report.serving import LARGE_SIZE, SMALL_SIZE
from inferno_gpu_report.timing import timed

_CONTEXT = 128
_EPS = 1e-6


def measure(job: Job) -> None:
    """Report the speed of each program. One that is not installed becomes a note."""
    large, small = size_of(job, LARGE_SIZE), size_of(job, SMALL_SIZE)
    job.attempt("plain torch", partial(_plain_torch, job, *large))
    for program, run in (("transformers", _transformers), ("vllm", _vllm)):
        job.check_time(program)
        if find_spec(program) is None:
            job.note(f"{program} is not installed: `pip install {program}`")
        else:
            job.attempt(program, partial(run, job, *small))


@define
class _PlainDecoder:
    """A decoder's matrices and dense caches, and one step of one sequence: the speed of torch
    without an engine. It leaves out rotary embeddings and has a fixed context: neither changes the
    time by much."""

    config: Mapping[str, Any]
    device: str
    layers: list[dict[str, Tensor]] = field(init=False)
    head_VD: Tensor = field(init=False)
    x_1D: Tensor = field(init=False)
    norm_D: Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        hidden, inner, dim = (
            config["hidden_size"], config["intermediate_size"], config["head_dim"]
        )  # fmt: skip
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        shapes = {
            "qkv": ((heads + 2 * kv_heads) * dim, hidden),
            "out": (hidden, heads * dim),
            "up": (2 * inner, hidden),
            "down": (hidden, inner),
            "k": (1, kv_heads, _CONTEXT, dim),
            "v": (1, kv_heads, _CONTEXT, dim),
        }
        self.layers = [
            {name: self._random(*shape) for name, shape in shapes.items()}
            for _ in range(config["num_hidden_layers"])
        ]
        self.head_VD = self._random(config["vocab_size"], hidden)
        self.x_1D, self.norm_D = self._random(1, hidden), self._random(hidden)

    def _random(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, device=self.device, dtype=torch.bfloat16)
        return drawn.mul_(shape[-1] ** -0.5)

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads."""
        weights = [tensor for layer in self.layers for tensor in layer.values()]
        return sum(tensor.nbytes for tensor in [*weights, self.head_VD])

    @torch.inference_mode()
    def step(self) -> Tensor:
        """Return the next token."""
        config, x_1D = self.config, self.x_1D
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        dim, inner = config["head_dim"], config["intermediate_size"]
        for layer in self.layers:
            qkv = F.linear(F.rms_norm(x_1D, x_1D.shape[-1:], self.norm_D, _EPS), layer["qkv"])
            q, k, v = qkv.view(1, heads + 2 * kv_heads, 1, dim).split(
                [heads, kv_heads, kv_heads], 1
            )
            layer["k"][:, :, -1:], layer["v"][:, :, -1:] = k, v
            out = F.scaled_dot_product_attention(q, layer["k"], layer["v"], enable_gqa=True)
            x_1D = x_1D + F.linear(out.reshape(1, -1), layer["out"])
            up = F.linear(F.rms_norm(x_1D, x_1D.shape[-1:], self.norm_D, _EPS), layer["up"])
            x_1D = x_1D + F.linear(F.silu(up[:, :inner]) * up[:, inner:], layer["down"])
        logits_1V = F.linear(x_1D, self.head_VD)
        return logits_1V.argmax(-1)


def _plain_torch(job: Job, name: str, config: Mapping[str, Any]) -> None:
    decoder = _PlainDecoder(config, job.device.torch_name)
    took = timed(decoder.step, job.device)
    least = job.limits.seconds(decoder.nbytes)
    job.figure(
        f"plain torch, {name} bfloat16, one stream",
        1 / took.seconds,
        "tok/s",
        None if least is None else 1 / least,
        detail=took.detail or "one CUDA graph" * (job.device.kind == "cuda"),
    )


def _load(job: Job, config: Mapping[str, Any], count: int) -> Load:
    if job.small:
        return ragged_load(2, 50, config["vocab_size"])
    whole = ragged_load()
    return Load(whole.prompts[:count], whole.output_lens[:count])


def _transformers(job: Job, name: str, config: Mapping[str, Any]) -> None:
    """Generate one stream, and 32 streams of the same length."""
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key != "architectures"}
    parsed = AutoConfig.for_model(**given)
    with torch.device(job.device.torch_name):
        model = AutoModelForCausalLM.from_config(parsed, dtype=torch.bfloat16).eval()
    output = 4 if job.small else 64
    for count in (1, 2) if job.small else (1, 32):
        ids = torch.randint(0, config["vocab_size"], (count, 64), device=job.device.torch_name)

        def generate(ids: Tensor = ids, length: int = output) -> float:
            begin = time.perf_counter()
            tokens = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                pad_token_id=0,
            )
            assert tokens.shape[1] == ids.shape[1] + length
            tokens.cpu()
            return time.perf_counter() - begin

        generate(length=2)
        job.check_time("transformers")
        job.figure(
            f"transformers generate, {name}, {count} streams",
            count * output / generate(),
            "tok/s",
            detail=f"64 tokens in, {output} out",
        )


def _vllm(job: Job, name: str, config: Mapping[str, Any]) -> None:
    """Run the ragged workload."""
    from vllm import LLM, SamplingParams

    folder = job.folder / "vllm"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    load = _load(job, config, 256)
    llm = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2304,
        max_num_seqs=256,
        enable_prefix_caching=False,
    )
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in load.prompts]

    def params(length: int) -> Any:
        return SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=length, detokenize=False)

    llm.generate(prompts, [params(2)] * len(prompts), use_tqdm=False)
    begin = time.perf_counter()
    llm.generate(prompts, [params(length) for length in load.output_lens], use_tqdm=False)
    seconds = time.perf_counter() - begin
    job.figure(f"vLLM, {name}, ragged", load.output_tokens / seconds, "tok/s")
