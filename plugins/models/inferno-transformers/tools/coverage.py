"""Tries every causal language model of the installed transformers: is it hosted, and does it
compute what it should?

    python tools/coverage.py [--markdown] [model_type ...]
    python tools/coverage.py --architectures

Each is a tiny config with random weights. A hosted one computes prompts packed into one step, then
single tokens, all at once; its logits are compared with those of transformers' own attention on
each sequence alone. It takes about five minutes.

With --architectures it tries those of `architectures.json` instead, and writes there what it finds:
"runs", or why not. They are the text architectures of vLLM's model registry, by class name;
`docs/generate.py` makes a table of it. A new name begins with an empty string.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import signal
import sys
import tempfile
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from inferno.errors import CheckpointError, InfernoError, UnsupportedError
from inferno.testing import Toy, generate, load_toy, ragged_prompts, randomize
from inferno_transformers.config import HostedConfig
from inferno_transformers.spellings import FALCON

auto: Any = transformers  # it is not typed
ARCHITECTURES = Path(__file__).with_name("architectures.json")
LAYERS, LARGEST = 4, 20_000_000
SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rotary_dim": 8,
    "sliding_window": 24,
    "window_size": 24,
    "attention_types": [[["global", "local"], LAYERS // 2]],
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "encoder_layers": 2,
    "is_decoder": True,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "mlp_layer_types": None,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 3,
    "vocab_size_per_layer_input": 160,
    "hidden_size_per_layer_input": 16,
}
"""Sizes by the names that configs give them; a config takes those it has."""


PATTERNS = {"attn_layer_period": 2, "attn_layer_offset": 1, "attn_layer_indices": [1, 3]}
"""Fields that say which layers attend, where none lists the types of layers."""
EXPLICIT: dict[str, dict[str, Any]] = {
    # transformers' own default has no base, without which it builds no model.
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": LAYERS,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500_000},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
}
"""Fields of types whose defaults are none of a model, as published checkpoints have them."""
PUBLISHED = {
    "internlm3": "InternLM3ForCausalLM",
    "iquestcoder": "IQuestCoderForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
}
"""The class that published checkpoints of a type name, where it is not transformers' own."""


DECAY = re.compile("decay|slope")
"""Names of tables that follow from the sizes: of random ones, states grow without end."""


def shrunken(model_type: str) -> Iterator[dict[str, Any]]:
    """The model type's own defaults, made small: first with a layer of each kind that it has, then
    with its own pattern."""
    config: Any = CONFIG_MAPPING[model_type]()
    sizes = _sizes(config)
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            sizes[name] = {"model_type": part.model_type, **_sizes(part)}
    if hasattr(config, "qk_rope_head_dim"):  # latent attention: of the heads, only that part turns
        sizes |= {
            "head_dim": SMALL["qk_rope_head_dim"],
            "num_key_value_heads": SMALL["num_attention_heads"],
        }
    sizes |= EXPLICIT.get(model_type, {})
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    if kinds:
        yield {**sizes, "layer_types": (kinds * LAYERS)[:LAYERS]}
    yield {**sizes, "layer_types": None} if kinds else sizes
    yield sizes | {name: value for name, value in PATTERNS.items() if hasattr(config, name)}


def _sizes(config: Any) -> dict[str, Any]:
    fields = {*config.to_dict(), *config.attribute_map, *vars(config)}
    return {name: size for name, size in SMALL.items() if name in fields}


def built(model_type: str) -> Any:
    """transformers' model, or the last reason why it cannot be made."""
    trouble: Exception | None = None
    for sizes in shrunken(model_type):
        try:
            config = CONFIG_MAPPING[model_type](**sizes)
            with torch.device("meta"):
                size = sum(
                    p.numel() for p in auto.AutoModelForCausalLM.from_config(config).parameters()
                )
            if size > LARGEST:
                raise ValueError(f"{size} parameters are left")
            reference: Any = auto.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32
            ).eval()
            fixed = {n: b.clone() for n, b in reference.named_buffers() if DECAY.search(n)}
            randomize(reference)
            for name, value in fixed.items():
                reference.get_buffer(name).copy_(value)
            reference(torch.arange(3, 8)[None], use_cache=False)
            return reference
        except Exception as error:
            trouble = error
    return trouble


def attempt(model_type: str, name: str) -> tuple[str, str]:
    """("runs" | "WRONG" | "refused" | "not tried", what is to say)"""
    reference = built(model_type)
    if isinstance(reference, Exception):  # its full size is refused all the same, if it is
        fields = {**CONFIG_MAPPING[model_type]().to_dict(), "architectures": [name]}
        try:
            HostedConfig.from_json(json.loads(json.dumps(fields, default=str)))
        except UnsupportedError as error:
            return "refused", error.cause
        except CheckpointError:
            pass  # neither is there a large one
        return "not tried", f"no small config: {reference}"
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [name]}))
        try:
            toy = load_toy(folder, only=("inferno-transformers",))
        except InfernoError as error:
            return "refused", error.cause
        return compare(toy, reference)


def compare(toy: Toy, reference: Any) -> tuple[str, str]:
    """The largest difference of any logit, in standard deviations of the reference's."""
    prompts = ragged_prompts(toy.plan.vocab_size)
    worst = 0.0
    for prompt, outcome in zip(prompts, generate(toy, prompts, 8), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *outcome.token_ids]])
            theirs = reference(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        worst = max(worst, float((outcome.logits_NV - theirs).abs().max() / theirs.std()))
    return ("runs" if worst < 1e-3 else "WRONG"), f"{worst:.1e}"


def _late(*_: object) -> None:
    raise TimeoutError("its defaults cannot be made small enough for a minute or two")


def limited(model_type: str, name: str) -> tuple[str, str]:
    """`attempt`, for two minutes at most. The reason is on one line, without the model's name."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(120)
    try:
        result, cause = attempt(model_type, name)
    except Exception as error:
        result, cause = "not tried", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return result, shortened(cause)


SHORT = 120
"""Characters of a reason in the table of architectures."""


def shortened(reason: str) -> str:
    line = " ".join(reason.split())[:300]
    return line.partition(" here: ")[2] or line


def state(name: str, ask: Callable[[str, str], tuple[str, str]] = attempt) -> str:
    """Return "runs", or why the fallback does not run the architecture."""
    published = {**dict(reversed(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())), **PUBLISHED}
    types = {class_.lower(): model_type for model_type, class_ in published.items()}
    types[FALCON.name.lower()] = "falcon"
    if name.lower() not in types:
        return "transformers has no such class"
    result, reason = ask(types[name.lower()], name)
    return "runs" if result == "runs" else textwrap.shorten(shortened(reason), SHORT)


def write_states() -> None:
    table = json.loads(ARCHITECTURES.read_text(encoding="utf-8"))
    states = {}
    for name in sorted(table["fallback"], key=str.lower):
        states[name] = state(name, limited)
        print(f"{name:36} {states[name]}", flush=True)
    text = json.dumps({"transformers": transformers.__version__, "fallback": states}, indent=1)
    ARCHITECTURES.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument(
        "--markdown", action="store_true", help="the README's lists, after the lines"
    )
    parser.add_argument(
        "--architectures", action="store_true", help="write the states of architectures.json"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    auto.logging.set_verbosity_error()
    auto.logging.disable_progress_bar()
    if options.architectures:
        return write_states()
    outcomes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if options.models and model_type not in options.models:
            continue
        result, line = limited(model_type, PUBLISHED.get(model_type, name))
        outcomes[result].append((model_type, line))
        print(f"{result:9} {model_type:24} {line}", flush=True)
    print({result: len(names) for result, names in outcomes.items()}, file=sys.stderr)
    if options.markdown:
        print("\nruns:", ", ".join(name for name, _ in outcomes["runs"]))
        for result in sorted(outcomes.keys() - {"runs"}):
            reasons: dict[str, list[str]] = defaultdict(list)
            for name, reason in outcomes[result]:
                reasons[reason].append(name)
            for reason, names in reasons.items():
                print(f"| {', '.join(names)} | {result}: {reason} |")


if __name__ == "__main__":
    main()
