"""What cannot be hosted is said, and why; and what is not causal attention over a step's tokens is
noticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError, UnsupportedError
from inferno.testing import run_python
from inferno_transformers import inspection, skeleton, trace
from inferno_transformers.adapt import Recipe
from inferno_transformers.config import HostedConfig
from inferno_transformers.inspection import window_of
from inferno_transformers.trace import Trace, number_of_tokens

SMALL: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("name", "kind", "fields", "why"),
    [
        ("RecurrentGemmaForCausalLM", "recurrent_gemma", {}, "state per sequence"),
        ("ZayaForCausalLM", "zaya", {}, "keeps a state, and takes or makes more than tokens"),
        ("BloomForCausalLM", "bloom", {}, "ALiBi"),
        ("RobertaForCausalLM", "roberta", {"is_decoder": True}, "leave out tokens of padding"),
        ("DogeForCausalLM", "doge", {}, "its attention is its own"),
        ("FalconForCausalLM", "falcon", {"alibi": True}, "ALiBi"),
        ("TrOCRForCausalLM", "trocr", {}, "does not read the positions"),
        ("T5ForConditionalGeneration", "t5", {}, "no causal language model"),
        ("BertModel", "bert", {}, "BertModel is an encoder .* generates none"),
        ("DistilBertForMaskedLM", "distilbert", {}, "is an encoder"),
        ("BartForConditionalGeneration", "bart", {}, "is not the causal language model"),
        ("BartForCausalLM", "bart", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("Llama4ForCausalLM", "llama4_text", {}, "chunked_attention"),
        ("AXK2ForCausalLM", "axk2", {}, "indexed_attention"),
        ("Gemma3ForConditionalGeneration", "gemma3", {}, "more than text"),
        ("Mistral4ForConditionalGeneration", "mistral4", {}, "no causal language model"),
        ("DbrxForCausalLM", "dbrx", {}, "has a fault"),
        ("LlamaForRewardModel", "llama", {}, "that is LlamaForCausalLM"),
        ("LlamaBidirectionalModel", "llama", {}, "that is LlamaForCausalLM"),
        ("WaltzForCausalLM", "waltz", {}, "nor does transformers"),
    ],
)
def test_a_model_that_cannot_be_hosted_is_refused_with_the_reason(
    name: str, kind: str, fields: dict[str, Any], why: str
) -> None:
    config = {"architectures": [name], "model_type": kind, **SMALL, **fields}
    with pytest.raises(UnsupportedError, match=why) as refused:
        HostedConfig.from_json(config)
    assert name in refused.value.cause and refused.value.remedy


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("llama4_text", r"and its text part \(llama4_text\) cannot run .* chunked_attention"),
        ("mistral4", r"and its text part \(mistral4\): transformers .* has no causal"),
    ],
)
def test_a_refusal_of_a_text_part_says_that_it_is_one(kind: str, why: str) -> None:
    whole = "LensForConditionalGeneration has an image encoder"
    config = {"model_type": kind, **SMALL, "text_part_of": whole}
    with pytest.raises(UnsupportedError, match=f"{whole}, {why}"):
        HostedConfig.from_json(config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PhiMoEForCausalLM", "phimoe"),
        ("InternLM3ForCausalLM", "internlm3"),
        ("Olmo2Model", "olmo2"),
        ("LLaMAForCausalLM", "llama"),
        (None, "llama"),
    ],
)
def test_a_published_name_is_known_by_its_type(name: str | None, kind: str) -> None:
    config = {"architectures": name and [name], "model_type": kind, **SMALL}
    assert len(HostedConfig.from_json(config).attention) == 2


def test_a_config_transformers_refuses_is_an_error_that_says_what_is_wrong() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **SMALL,
        "num_attention_heads": "four",
    }
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        HostedConfig.from_json(config)


HUGE: list[tuple[str, dict[str, Any], str]] = [
    (
        "MixtralForCausalLM",
        {"vocab_size": 10**9, "hidden_size": 10**6, "num_attention_heads": 10**3},
        "2 layers",
    ),
    ("MixtralForCausalLM", {"max_position_embeddings": 10**12}, "2 layers"),
    ("MixtralForCausalLM", {"num_local_experts": 10**9}, "2 layers"),
    ("MixtralForCausalLM", {"hidden_size": 10**30}, "transformers cannot build MixtralForCausalLM"),
    ("MixtralForCausalLM", {"num_hidden_layers": 10**12}, "num_hidden_layers 1000000000000"),
    ("CTRLLMHeadModel", {"n_layer": 10**12}, "n_layer 1000000000000"),
    ("CTRLLMHeadModel", {"n_layer": 1, "n_positions": 10**9}, "cannot build CTRLLMHeadModel"),
    (
        "DeepseekV3ForCausalLM",
        {"n_routed_experts": 10**9},
        "e_score_correction_bias has more than 67108864 values",
    ),
]


@pytest.mark.slow
def test_absurd_sizes_take_neither_memory_nor_time() -> None:
    """In a process that may take little more memory than torch and transformers do. What only has a
    shape is no trouble: the plan says what it would take."""
    code = (
        "import json, resource, sys, torch\n"
        "from inferno.errors import InfernoError\n"
        "from inferno_transformers.config import HostedConfig\n"
        "def ask(config):\n"
        "    try:\n"
        "        return f'{len(HostedConfig.from_json(config).attention)} layers'\n"
        "    except InfernoError as error:\n"
        "        return ' '.join(error.cause.split())\n"
        "first, *others = json.loads(sys.argv[1])\n"
        "ask(first)  # imports all there is\n"
        "used = 1024 * int(open('/proc/self/status').read().partition('VmSize:')[2].split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))\n"
        "print(*map(ask, others), sep='\\n')\n"
    )
    mixtral = {"model_type": "mixtral", **SMALL, "num_key_value_heads": 2}
    deepseek = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "first_k_dense_replace": 0}
    kinds = {
        "MixtralForCausalLM": mixtral,
        "CTRLLMHeadModel": {"model_type": "ctrl"},
        "DeepseekV3ForCausalLM": deepseek,
    }
    cases = [("MixtralForCausalLM", {}, ""), *HUGE]
    configs = [{"architectures": [name], **kinds[name], **fields} for name, fields, _ in cases]
    done = run_python(code, json.dumps(configs))
    assert done.returncode == 0, done.stderr
    for (_, fields, expected), answer in zip(HUGE, done.stdout.splitlines(), strict=True):
        assert expected in answer, fields


def test_more_modules_than_anyone_publishes_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "MOST_TENSORS", 20)
    with pytest.raises(CheckpointError, match="more than 20 tensors"):
        HostedConfig.from_json(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                **SMALL,
                "num_hidden_layers": 3,
            }
        )


def test_what_one_layer_shows_is_known_of_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is built twice, not once for each of its routers, whose matrices the code reads."""
    built: list[int] = []

    def build(fields: Mapping[str, Any], plain: Collection[str] = ()) -> skeleton.Skeleton:
        built.append(len(plain))
        return skeleton.build(fields, plain)

    monkeypatch.setattr(inspection, "skeleton", SimpleNamespace(build=build))
    longcat = {
        "architectures": ["LongcatFlashForCausalLM"],
        "model_type": "longcat_flash",
        "num_layers": 3,
        "num_hidden_layers": 6,
    }
    report = inspection.inspect(json.dumps(longcat))
    assert built == [0, 3] and len(report["plain"]) == 3 and len(report["attention"]) == 6


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("recurrent_gemma", {}, "state per sequence"),
        ("olmo2", {"num_hidden_layers": 30}, "more than 400 operators for [0-9]+ tokens"),
    ],
)
def test_code_that_runs_operators_without_end_is_refused_after_some(
    kind: str, fields: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose states are its own says so."""
    monkeypatch.setattr(trace, "MOST_OPERATORS", 400)
    seen: list[Trace] = []

    def made(*args: Any) -> Trace:
        seen.append(Trace(*args))
        return seen[-1]

    monkeypatch.setattr(inspection, "Trace", made)
    with pytest.raises(UnsupportedError, match=why):
        HostedConfig.from_json({"model_type": kind, **SMALL, **fields})
    assert [each.operators for each in seen if each.operators > 400] == [401], "and not again"


TOKENS = 127


@pytest.mark.parametrize(
    ("mixes", "code"),
    [
        (False, lambda x: F.linear(F.layer_norm(x, x.shape[-1:]), x.new_empty(24, 64)).softmax(-1)),
        (False, lambda x: x.view(1, TOKENS, 4, 16).transpose(1, 2).flatten(2)),
        (True, lambda x: x @ x.transpose(1, 2)),
        (True, lambda x: F.scaled_dot_product_attention(x, x, x)),
        (True, lambda x: F.conv1d(x.transpose(1, 2), x.new_empty(64, 1, 4), padding=3, groups=64)),
        (True, lambda x: F.pad(x, (0, 0, 1, -1))),
        (True, lambda x: x[:, 1:] - x[:, :-1]),
        (True, lambda x: x.cumsum(1)),
        (True, lambda x: x.transpose(1, 2) @ x),
        (True, lambda x: x.roll(1, 1)),
    ],
)
def test_tokens_that_see_each_other_are_noticed(
    mixes: bool, code: Callable[[Tensor], Tensor]
) -> None:
    trace = Trace(TOKENS, torch.zeros(0))
    with torch.no_grad(), trace:
        code(torch.empty(1, TOKENS, 64, device="meta"))
    assert bool(trace.mixed) is mixes, trace.mixed


def test_a_stored_table_is_loaded_exact_one_of_whole_numbers_is_refused() -> None:
    module = torch.nn.Module()
    module.register_buffer("computed", torch.zeros(3), persistent=False)
    module.register_buffer("stored", torch.zeros(3))
    assert skeleton._store_buffers(module) == {"stored"}
    assert dict(module.named_parameters()).keys() == {"stored"}
    module.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match="counts"):
        skeleton._store_buffers(module)


def test_whether_positions_are_read_is_noticed() -> None:
    positions_T, x_TD = (
        torch.empty(TOKENS, dtype=torch.int64, device="meta"),
        torch.empty(TOKENS, 64, device="meta"),
    )
    trace = Trace(TOKENS, positions_T)
    with torch.no_grad(), trace:
        x_TD * torch.arange(TOKENS, device="meta")[:, None]
        assert not trace.read_positions
        x_TD * positions_T[:, None]
        assert trace.read_positions


def test_the_number_of_tokens_is_a_prime_that_no_size_is_near() -> None:
    assert number_of_tokens(1 << 17, set()) == 1009
    assert number_of_tokens(256, {64, 160, 250}) == 241
    assert number_of_tokens(1 << 17, {2018, 1000}) == 991


CAUSAL = [
    (None, lambda b, h, q, kv: kv <= q),
    (24, lambda b, h, q, kv: (kv <= q) & (kv > q - 24)),
    (1, lambda b, h, q, kv: kv == q),
    (None, lambda b, h, q, kv: (kv <= q) & (kv > q - 1000)),
]
OTHER = [
    lambda b, h, q, kv: kv >= 0,
    lambda b, h, q, kv: (kv <= q) & (kv // 32 == q // 32),
    lambda b, h, q, kv: (kv <= q) | (kv < 8),
    lambda b, h, q, kv: (kv <= q) & ((kv > q - 24) | (kv < 4)),
]


@pytest.mark.parametrize(("window", "allows"), CAUSAL)
def test_the_window_of_a_mask_is_found(window: int | None, allows: Callable[..., Tensor]) -> None:
    assert window_of(allows, 256) == window


@pytest.mark.parametrize("allows", OTHER)
def test_any_other_mask_is_refused(allows: Callable[..., Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="mask"):
        window_of(allows, 256)


class Stored:
    """A checkpoint of four small matrices."""

    def read(self, name: str) -> Tensor:
        return torch.full((2, 3), float(name[1:]))


def test_headers_of_merged_experts_are_those_of_what_is_read() -> None:
    recipe = Recipe(
        [["a0", "a1", "a2"], ["b10", "b11", "b12"]], [("MergeModulelist", 0), ("Concatenate", 1)]
    )
    stored = {name: TensorInfo("float32", (2, 3), 24) for names in recipe.sources for name in names}
    info, tensor = recipe.info(stored), recipe.read(Stored())  # type: ignore[arg-type]  # it reads, and no more
    assert (info.dtype, info.shape, info.nbytes) == (
        "float32",
        tuple(tensor.shape),
        tensor.nbytes,
    ) and info.shape == (3, 4, 3)
    assert tensor[:, 0, 0].tolist() == [0, 1, 2] and tensor[:, 2, 0].tolist() == [10, 11, 12]
    with pytest.raises(CheckpointError, match="a0 and b12"):
        recipe.info({**stored, "a1": TensorInfo("float32", (2, 4), 32)})


def test_a_part_of_a_tensor_is_read_only_if_all_parts_are_all_of_it() -> None:
    """Else rows of one would be taken for those of another, as where heads have other sizes."""
    recipe = Recipe([["a7"]], [("Narrow", 0, 1, 1, 2)])
    info = TensorInfo("float32", (2, 3), 24)
    assert recipe.info({"a7": info}).shape == tuple(recipe.read(Stored()).shape) == (1, 3)  # type: ignore[arg-type]  # it reads, and no more
    for rows in (1, 3):
        with pytest.raises(CheckpointError, match=f"a7 has {rows} rows, and the model's parts"):
            recipe.info({"a7": TensorInfo("float32", (rows, 3), 12 * rows)})


@pytest.mark.parametrize(
    ("shapes", "operations"),
    [
        ([(2, 3), (2, 4)], [("Concatenate", 0)]),
        ([(), ()], [("Concatenate", 0)]),
        ([(2, 3), (2, 3)], [("Transpose", 0, 2)]),
        ([(2, 3), (2, 3)], [("Transpose", 0, 1)]),
    ],
)
def test_tensors_that_cannot_be_joined_are_errors_of_the_checkpoint(
    shapes: list[tuple[int, ...]], operations: list[Any]
) -> None:
    stored = {f"a{n}": TensorInfo("float32", shape, 4) for n, shape in enumerate(shapes)}
    with pytest.raises(CheckpointError, match="a0 and a1 do not fit together"):
        Recipe([[name] for name in stored], operations).info(stored)
