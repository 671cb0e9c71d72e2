"""The plan decides everything before the first token, from headers alone, or says what stands in
the way."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import attrs
import pytest

from inferno import host
from inferno.builtin.torch_cache import layout
from inferno.catalog import ANY, Catalog, Offer, load_catalog
from inferno.cli.render import explained
from inferno.contracts import (
    LINEAR,
    OPS,
    AttentionNeed,
    AttentionSpec,
    Checkpoint,
    CheckpointFormat,
    CheckpointView,
    Device,
    DeviceKind,
    DType,
    HeldMatrix,
    KernelProvider,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
)
from inferno.errors import (
    CheckpointError,
    InfernoError,
    ModelNotFoundError,
    OptionError,
    OutOfMemoryError,
    PluginError,
    UnsupportedError,
)
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import (
    CUDA_GRAPHS,
    CaptureUse,
    Chosen,
    KernelUse,
    Machine,
    Options,
    Plan,
    device_sizes,
    open_model,
    plan_from_json,
    plan_to_json,
    reopen,
    resolve,
)
from inferno.plan import opened as opened_module
from inferno.plan.backends import choose_capture
from inferno.plan.cache_size import CacheSizes
from inferno.plan.decided import Decided
from inferno.plan.plan import AttentionUse, by_pattern

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}
TENSORS: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (64, 32),
    "model.layers.0.self_attn.q_proj.weight": (64, 32),
    "model.layers.0.self_attn.q_proj.bias": (64,),
    "model.norm.weight": (32,),
}
KV_BYTES = 3 * 2 * (2 * 16) * 2  # layers, keys and values, heads, bfloat16
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a checkpoint of these tensors, in bfloat16; returns its reference."""

    def write(
        tensors: dict[str, tuple[int, ...]] = TENSORS, stored: str = "BF16", **config: Any
    ) -> str:
        header, end = {}, 0
        for name, shape in tensors.items():
            begin, end = end, end + 2 * int(memory_of(shape))
            header[name] = {"dtype": stored, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + bytes(end)
        )
        merged = {k: v for k, v in {**CONFIG, **config}.items() if v is not None}
        (tmp_path / "config.json").write_text(json.dumps(merged))
        return str(tmp_path)

    return write


def memory_of(shape: tuple[int, ...]) -> int:
    size = 1
    for dimension in shape:
        size *= dimension
    return size


def on_cpu(**options: Any) -> Options:
    return Options(**{"device": "cpu", "max_num_seqs": 8, "max_num_batched_tokens": 64, **options})


def test_a_plan_names_everything_that_will_run(write: Write) -> None:
    ref = write()
    plan = resolve(ref, on_cpu())
    assert (plan.architecture, plan.format, plan.source) == (
        "Qwen3ForCausalLM",
        "safetensors",
        "local",
    )
    assert (plan.dtype, plan.device.kind, plan.vocab_size, plan.max_model_len) == (
        "bfloat16",
        "cpu",
        64,
        1024,
    )
    assert plan.cache_policy == "lru" and plan.model_id == Path(ref).name
    [scheme] = plan.schemes
    assert (scheme.name, scheme.count, scheme.stored) == ("dense", 2, ("bfloat16",))
    assert set(scheme.classes) == {"embed_tokens", "q_proj"} and scheme.nbytes == 2 * (
        64 * 32 + 64 * 32
    )
    [attention] = plan.attention
    assert attention.layers == (0, 1, 2) and attention.need.dtype == "bfloat16"
    assert "inferno-qwen3" in {c.distribution for c in plan.chosen if c.kind == "architecture"}
    assert {r.name for r in plan.considered} >= {"none"}, "the other cache policy, and why not"


def test_a_tiny_model_is_computed_on_one_thread_and_a_larger_one_on_every_core(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 6)
    assert resolve(write(), on_cpu()).threads == 1
    monkeypatch.setattr("inferno.plan.stages.SHARED_FROM", 2 * (64 * 32 + 64 * 32))
    assert resolve(write(), on_cpu()).threads == 6, "from so many bytes on"


def test_memory_is_itemised_and_the_cache_is_as_large_as_it_can_be_used(write: Write) -> None:
    plan = resolve(write(), on_cpu())
    items = {item.name: item.nbytes for item in plan.memory}
    assert items["weights"] == 2 * sum(map(memory_of, TENSORS.values()))
    assert plan.kv_bytes_per_token == KV_BYTES
    assert items["KV cache"] == plan.kv_tokens * KV_BYTES
    assert plan.kv_tokens == 8 * 1024, (
        "8 sequences of the longest context: more would never be used"
    )
    assert sum(items.values()) <= plan.memory_limit


def test_memory_bounds_the_cache(write: Write) -> None:
    ref = write()
    fixed = sum(i.nbytes for i in resolve(ref, on_cpu()).memory if i.name != "KV cache")
    plan = resolve(ref, on_cpu(memory=f"{fixed + 1300 * KV_BYTES}B"))
    assert (
        plan.kv_tokens == 1296
        and plan.max_model_len == 1024
        and not any("lowered" in note for note in plan.notes)
    )
    assert sum(item.nbytes for item in plan.memory) <= plan.memory_limit


def test_a_context_that_does_not_fit_is_lowered_with_a_note(write: Write) -> None:
    ref = write()
    fixed = sum(i.nbytes for i in resolve(ref, on_cpu()).memory if i.name != "KV cache")
    plan = resolve(ref, on_cpu(memory=f"{fixed + 500 * KV_BYTES}B"))
    assert plan.max_model_len == plan.kv_tokens == 496
    assert any("1024" in note and "496" in note for note in plan.notes)
    with pytest.raises(OutOfMemoryError, match="600 are needed"):
        resolve(ref, on_cpu(memory=f"{fixed + 500 * KV_BYTES}B", max_model_len=600))


@pytest.mark.parametrize("given", ["1MiB", "448MiB"])
def test_memory_that_does_not_hold_the_weights_is_refused_with_the_figures(
    write: Write, given: str
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        resolve(write(), on_cpu(memory=given))
    assert "MiB" in caught.value.cause and "--memory" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GiB", 8 << 30),
        ("500MB", 500_000_000),
        ("500 mb", 500_000_000),
        ("1.5GiB", 3 << 29),
        ("2G", 2_000_000_000),
        ("60%", 60 << 30),
        ("100%", 100 << 30),
        ("12345", 12345),
        ("7B", 7),
        ("0.5TiB", 512 << 30),
    ],
)
def test_amounts_of_memory(text: str, nbytes: int) -> None:
    assert host.parse_memory(text, 100 << 30) == nbytes


def test_only_a_plan_for_another_machine_may_have_more_memory_than_this_one(write: Write) -> None:
    options = on_cpu(memory="900TiB")
    with pytest.raises(OutOfMemoryError, match="exceeds the"):
        resolve(write(), options)
    plan = resolve(write(), options, machine=Machine(elsewhere=True))
    assert plan.memory_limit == 900 << 40
    assert any("another machine" in note for note in plan.notes)


@pytest.mark.parametrize(
    "text", ["", "0", "0%", "101%", "-1GiB", "lots", "GiB", "1e3", "nan", "8 Gi B", "1,5GiB"]
)
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(OptionError):
        host.parse_memory(text, 100 << 30)


def test_the_plan_survives_its_own_document(write: Write) -> None:
    plan = resolve(
        write(sliding_window=8, use_sliding_window=True, max_window_layers=1), on_cpu(seed=3)
    )
    assert len(plan.attention) == 2 and len(plan.groups) == 2
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_from_json(plan_to_json(plan).encode()) == plan
    endless = attrs.evolve(plan, config={**plan.config, "time_step_limit": [0.0, float("inf")]})
    assert plan_from_json(plan_to_json(endless)) == endless


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ref": 1}', "null"])
def test_a_document_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not a plan"):
        plan_from_json(text)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_model_len": 2000}, "exceeds the model's 1024"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_num_seqs": 100}, "below max_num_seqs"),
        ({"max_num_seqs": -1}, "max_num_seqs is -1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"attention_backend": "warp"}, "no attention backend 'warp'"),
        ({"cache_policy": "warp"}, "no cache policy 'warp'"),
        ({"isq": "warp"}, "no quantization scheme 'warp'"),
        ({"isq": "dense"}, "cannot quantize while loading"),
        ({"isq": ""}, "'' is not a name or a rule"),
        ({"isq": "q8_0,q4_0"}, "names both q8_0 and q4_0"),
        ({"isq": "q8_0,=q4_0"}, "is not a name or a rule"),
        ({"isq": "q8_0,*=warp"}, "no quantization scheme 'warp'"),
        ({"isq": "q8_0,*=q4_k_m"}, "names a mix"),
        ({"isq": "q8_0,model.layer.0.*=q4_0"}, "no dense matrix has a path like"),
        ({"imatrix": "file"}, "imatrix is set without isq"),
        ({"isq": "q8_0", "imatrix": "/nowhere"}, "there is no such file"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"gpu_memory_utilization": 0.9}, "to CPUs"),
        ({"gpu_memory_utilization": 0.9, "memory": "1GiB"}, "exclude each other"),
        ({"memory": "plenty"}, "invalid --memory"),
        ({"max_step_time": -0.1}, "max_step_time is -0.1"),
        ({"max_step_time": math.nan}, "max_step_time is nan"),
        ({"max_step_time": math.inf}, "max_step_time is inf"),
        ({"disable": ("warp",)}, "no plugin is called warp"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_with_a_way_out(
    write: Write, options: dict[str, Any], complaint: str
) -> None:
    ref = write()
    with pytest.raises(OptionError, match=complaint) as caught:
        resolve(ref, on_cpu(**options))
    assert caught.value.remedy and caught.value.exit_code == 2


def test_a_plan_says_how_long_a_step_may_take_beside_streams(write: Write) -> None:
    ref = write()
    assert resolve(ref, on_cpu()).max_step_time == 0.2
    assert resolve(ref, on_cpu(max_step_time=0)).max_step_time == 0


def test_fp8_is_the_cache_s_only_8_bit_float() -> None:
    assert Options(kv_cache_dtype="fp8") == Options(kv_cache_dtype="fp8_e4m3")


def test_a_scheme_misspelt_lists_those_that_quantize_while_loading_similar_ones_first(
    write: Write,
) -> None:
    pytest.importorskip("inferno_gguf")
    with pytest.raises(OptionError) as caught:
        resolve(write(), on_cpu(isq="q80_0"))
    assert caught.value.remedy.startswith("Those that quantize while loading: q8_0, ")
    assert "q4_k_m" in caught.value.remedy and "dense" not in caught.value.remedy


def test_an_architecture_that_is_not_installed_names_the_package_that_has_it(write: Write) -> None:
    ref = write(architectures=["LlamaForCausalLM"])
    with pytest.raises(UnsupportedError, match="'LlamaForCausalLM'") as caught:
        resolve(ref, on_cpu(), installed("qwen3", "index"))
    assert "`pip install inferno-llama`" in caught.value.remedy
    assert "Qwen3ForCausalLM" in caught.value.remedy, "and what is installed"
    with pytest.raises(UnsupportedError, match="'LlamaForCausalLM'") as caught:
        resolve(ref, on_cpu(only=["qwen3", "index"]))
    assert "inferno-llama has it and is switched off" in caught.value.remedy


def test_without_an_index_an_error_names_no_package(write: Write) -> None:
    with pytest.raises(UnsupportedError, match="'LlamaForCausalLM'") as caught:
        resolve(write(architectures=["LlamaForCausalLM"]), on_cpu(), installed("qwen3"))
    assert caught.value.remedy.startswith("Install a plugin that provides it.")
    assert "pip" not in caught.value.remedy


def test_an_unknown_architecture_is_not_guessed_at(write: Write) -> None:
    with pytest.raises(UnsupportedError, match="'Gemma9ForCausalLM'") as caught:
        resolve(write(architectures=["Gemma9ForCausalLM"]), on_cpu(), installed("qwen3", "index"))
    assert "a fallback may run it. Try `pip install inferno-transformers`" in caught.value.remedy
    assert caught.value.remedy.count("pip install") == 1


def test_a_format_of_no_plugin_names_the_package_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedError, match="no installed format reads this") as caught:
        resolve(str(file), on_cpu(), installed("index"))
    assert "`pip install inferno-gguf`" in caught.value.remedy


def test_what_a_format_finds_missing_is_hinted_at(tmp_path: Path) -> None:
    def opens(path: Path, architectures: object) -> Checkpoint:
        raise CheckpointError("it holds a qwen3", "Look again.").for_lack_of(
            "architecture", "qwen3"
        )

    catalog = installed("index")
    odd = CheckpointFormat(name="odd", matches=lambda path: path.suffix == ".odd", open=opens)
    offers = {**catalog.offers, "inferno_checkpoint_formats": (Offer(odd, "inferno-odd"),)}
    with pytest.raises(CheckpointError) as caught:
        attrs.evolve(catalog, offers=offers).open(tmp_path / "model.odd")
    assert caught.value.remedy == "Try `pip install inferno-qwen3`. Look again."


def installed(*plugins: str) -> Catalog:
    """The catalog as it would be were only these installed, and what is built in."""
    catalog = load_catalog(only=plugins)
    return attrs.evolve(catalog, plugins=tuple(p for p in catalog.plugins if not p.disabled))


def with_fallback() -> Catalog:
    """Qwen3, and a plugin that takes any other name for it."""
    catalog = installed("qwen3", "index")
    known = catalog.of("inferno_architectures")
    [qwen3] = [offer for offer in known if offer.item.name == "Qwen3ForCausalLM"]
    fallback = attrs.evolve(qwen3, item=attrs.evolve(qwen3.item, name=ANY, note="somehow, slowly"))
    return attrs.evolve(
        catalog, offers={**catalog.offers, "inferno_architectures": (fallback, qwen3)}
    )


def test_a_fallback_is_taken_only_where_no_plugin_has_the_name_and_says_so(write: Write) -> None:
    catalog = with_fallback()
    assert catalog.architecture("Qwen3ForCausalLM").item.name == "Qwen3ForCausalLM"
    assert "somehow, slowly" not in resolve(write(), on_cpu(), catalog).notes
    plan = resolve(write(architectures=["Gemma9ForCausalLM"]), on_cpu(), catalog)
    assert plan.architecture == "Gemma9ForCausalLM" and "somehow, slowly" in plan.notes
    assert not any("is not installed" in note for note in plan.notes)
    plan = resolve(write(architectures=["LlamaForCausalLM"]), on_cpu(), catalog)
    assert any("`pip install inferno-llama`" in note for note in plan.notes), (
        "a plugin made for it is better"
    )


@pytest.mark.parametrize("architectures", [None, [], "Qwen3ForCausalLM", [3]])
def test_a_config_without_architecture_says_so(write: Write, architectures: Any) -> None:
    with pytest.raises(CheckpointError, match="architectures"):
        resolve(write(architectures=architectures, model_type=None), on_cpu())


@pytest.mark.parametrize(
    "names", [None, [], ["Qwen3Model"], ["qwen3forcausallm"], ["QWEN3Model", "Other"]]
)
def test_a_model_is_known_by_its_base_class_another_spelling_or_its_type(
    write: Write, names: list[str] | None
) -> None:
    plan = resolve(write(architectures=names, model_type="qwen3"), on_cpu())
    [chosen] = [each.name for each in plan.chosen if each.kind == "architecture"]
    assert chosen == "Qwen3ForCausalLM"


@pytest.mark.parametrize("name", ["Qwen3ForRewardModel", "Qwen3VisionModel", "Model", "XQwen3"])
def test_another_class_of_a_known_type_is_not_taken_for_it(write: Write, name: str) -> None:
    catalog = load_catalog(only=("qwen3",))  # without what takes any class
    with pytest.raises(UnsupportedError, match=name):
        resolve(write(architectures=[name], model_type="qwen3"), on_cpu(), catalog)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_field_that_is_missing_or_nonsense_is_named(write: Write, field: str) -> None:
    for value in (None, "many", -3, 0, True):
        with pytest.raises(CheckpointError, match=field):
            resolve(write(**{field: value}), on_cpu())


def test_a_layout_no_scheme_reads_names_the_matrix_and_the_package(write: Write) -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.qweight": (4, 8),
        "model.layers.0.mlp.up_proj.scales": (4, 2),
    }
    for method, remedy in (("mxfp4", "`pip install inferno-mxfp4`"), ("odd", "Install a plugin")):
        ref = write(tensors, stored="I16", quantization_config={"quant_method": method})
        with pytest.raises(UnsupportedError, match="model.layers.0.mlp.up_proj.*qweight") as caught:
            resolve(ref, on_cpu(), installed("qwen3", "index"))
        assert remedy in caught.value.remedy


def test_a_format_of_a_method_is_asked_for_by_its_name(write: Write) -> None:
    """GPTQ may be stored in another package's layout."""
    tensors = {"model.layers.0.mlp.up_proj.B": (4, 8), "model.layers.0.mlp.up_proj.s": (4, 2)}
    quant_config = {"quant_method": "gptq", "checkpoint_format": "marlin", "group_size": 64}
    ref = write(tensors, stored="I16", quantization_config=quant_config)
    for names, remedy in (
        (("gptq",), "pip install inferno-marlin"),
        (("gptq", "marlin"), "inferno-marlin: codes must be packed in int32, and scales"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            resolve(ref, on_cpu(), installed("qwen3", "index", *names))
        assert remedy in caught.value.remedy and "not 'marlin'" in caught.value.remedy


def a_scheme(**fields: Any) -> Offer[QuantScheme]:
    """A scheme for matrices stored as codes of one byte."""

    def refuses(stored: StoredMatrix) -> str | None:
        if set(stored.parts) != {"codes"}:
            return "it reads matrices stored as codes"
        width = stored.quant_config.get("bits", {}).get(stored.path.rpartition(".")[2])
        return None if width == 8 else f"it reads 8 bits, not {width}"

    def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
        rows, columns = stored.parts["codes"].shape
        return HeldMatrix(layout="int4_g128", shape=(rows, columns), nbytes=rows * columns)

    given: dict[str, Any] = {"refuses": refuses, "holds": holds, "load": "a:b", **fields}
    return Offer(QuantScheme(name="odd", **given), "inferno-qwen3")


def with_scheme(**fields: Any) -> Catalog:
    catalog = installed("qwen3", "index", "cpu")
    hook = "inferno_quant_schemes"
    return attrs.evolve(
        catalog, offers={**catalog.offers, hook: (*catalog.of(hook), a_scheme(**fields))}
    )


CODES = {f"model.layers.0.mlp.{name}_proj.codes": (4, 96) for name in ("up", "down")}


def test_a_scheme_is_asked_about_each_matrix_and_its_reason_is_shown(write: Write) -> None:
    method = {"quant_method": "odd", "bits": {"up_proj": 8, "down_proj": 3}}
    with pytest.raises(UnsupportedError, match="down_proj.*codes") as caught:
        resolve(write(CODES, stored="I16", quantization_config=method), on_cpu(), with_scheme())
    assert "inferno-qwen3: it reads 8 bits, not 3." in caught.value.remedy


def test_a_matrix_that_no_kernel_multiplies_is_named_in_the_plan(write: Write) -> None:
    method = {"quant_method": "odd", "bits": {"up_proj": 8, "down_proj": 8}}
    ref = write(CODES, stored="I16", quantization_config=method)
    plan = resolve(ref, on_cpu(), with_scheme())
    [use] = [use for use in plan.schemes if use.name == "odd"]
    assert (use.layout, use.count) == ("int4_g128", 2)
    if any(use.layout == "int4_g128" for use in plan.kernels):
        [note] = [note for note in plan.notes if "slowly" in note]
        assert note.startswith("torch multiplies 2 matrices of 4 x 96 in int4_g128, slowly: cpu: ")


def test_matrices_that_grow_in_memory_are_named_with_a_remedy(write: Write) -> None:
    def growth(plan: Plan) -> list[str]:
        return [note for note in plan.notes if "as much memory" in note]

    assert not growth(resolve(write(), on_cpu(dtype="bfloat16")))
    [note] = growth(resolve(write(), on_cpu(dtype="float32")))
    assert "2.0 times as much memory: --dtype bfloat16" in note

    def holds(stored: StoredMatrix, dtype: str) -> HeldMatrix:
        return HeldMatrix(shape=(4, 96), nbytes=4 * 96 * 8)

    ref = write(CODES, stored="I16", quantization_config={"bits": {"up_proj": 8, "down_proj": 8}})
    plan = resolve(ref, on_cpu(), with_scheme(holds=holds))
    [note] = growth(plan)
    assert note.startswith("odd: 2 matrices of 1.5 KiB in the checkpoint take 6.0 KiB in bfloat16")
    assert "4.0 times" in note and "--isq" in note
    assert "odd in bfloat16: 2 matrices of int16, 6.0 KiB" in explained(plan)
    assert plan.memory[0].nbytes >= 6 * 1024


def test_a_quantization_config_that_is_no_object_says_so(write: Write) -> None:
    for odd in ("gptq", [1], 3):
        with pytest.raises(CheckpointError, match="quantization_config"):
            resolve(write(quantization_config=odd), on_cpu())


def test_schemes_see_the_checkpoint_before_the_architecture(write: Write) -> None:
    """They rename and leave out what are not parts of a module."""

    @attrs.frozen(eq=False)
    class WithoutScales(CheckpointView):
        @property
        def tensors(self) -> dict[str, TensorInfo]:
            stored = self.checkpoint.tensors
            return {name: info for name, info in stored.items() if not name.endswith("_scale")}

        def read(self, name: str) -> Any:
            return self.checkpoint.read(name)

    ref = write({**TENSORS, "model.layers.0.self_attn.k_scale": (1,)})
    with open_model(ref, on_cpu(), with_scheme(adapt=WithoutScales)) as opened:
        assert set(opened.checkpoint.tensors) == set(TENSORS)
        with reopen(opened.plan, with_scheme(adapt=WithoutScales)) as again:
            assert set(again.checkpoint.tensors) == set(TENSORS)


def test_an_unknown_reference_lists_where_it_was_looked_for() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("./no/such/folder", on_cpu(offline=True))
    assert "./no/such/folder" in str(caught.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(InfernoError) as caught:
        resolve(str(tmp_path), on_cpu())
    assert caught.value.exit_code == 3 and "safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "config", "stored", "dtype"),
    [
        ("float32", "bfloat16", "BF16", "float32"),
        ("auto", "float16", "BF16", "float16"),
        ("auto", "torch.bfloat16", "F16", "bfloat16"),
        ("auto", None, "F16", "bfloat16"),
        ("float16", None, "F16", "float16"),
        ("auto", "float8_e4m3fn", "BF16", "bfloat16"),
    ],
)
def test_the_type_is_what_was_asked_else_declared_else_stored(
    write: Write, asked: str, config: str | None, stored: str, dtype: str
) -> None:
    plan = resolve(write(stored=stored, dtype=None, torch_dtype=config), on_cpu(dtype=asked))
    assert plan.dtype == dtype
    notes = [note for note in plan.notes if "overflows beyond 65504" in note]
    assert bool(notes) == (dtype == "float16")


def test_layers_of_different_need_are_served_apart(write: Write) -> None:
    plan = resolve(write(sliding_window=8, use_sliding_window=True, max_window_layers=2), on_cpu())
    assert {use.need.sliding_window: use.layers for use in plan.attention} == {
        None: (0, 1),
        8: (2,),
    }


def windows_of(plan: Plan) -> dict[int, int]:
    """Sliding window -> blocks of its group."""
    return {group.window: group.num_blocks for group in plan.groups if group.window is not None}


def test_layers_with_a_window_do_not_pay_for_the_whole_context(write: Write) -> None:
    windowed = {"sliding_window": 40, "use_sliding_window": True, "max_window_layers": 1}
    plan, plain = resolve(write(**windowed), on_cpu()), resolve(write(), on_cpu())
    assert windows_of(plan) == {40: 8 * (3 + 1 + 1) + 4}, (
        "three blocks, the one being filled, a spare one; and a step"
    )
    assert (plan.num_blocks, plan.kv_tokens) == (plain.num_blocks, plain.kv_tokens) == (512, 8192)
    per_layer = KV_BYTES // 3
    [item] = [item for item in plan.memory if item.name == "KV cache"]
    assert item.nbytes == plan.kv_bytes == 16 * per_layer * (512 + 2 * 44)
    assert plan.kv_bytes_per_token == per_layer, "what one more token of a long context takes"
    assert (
        item.why
        == "512 blocks of 16 tokens, 128 B per token; for window 40 44 blocks, 256 B per token"
    )
    assert plan.fitting(1024) == plain.fitting(1024) == 8
    everywhere = resolve(write(**{**windowed, "max_window_layers": 0}), on_cpu())
    assert everywhere.kv_bytes == 16 * KV_BYTES * 44 and everywhere.kv_bytes_per_token == 0
    wide = resolve(write(**{**windowed, "sliding_window": 1024}), on_cpu())
    assert windows_of(wide) == {}, "no window, really"


@pytest.mark.slow
def test_where_memory_is_short_a_long_context_comes_before_windows_for_all(write: Write) -> None:
    ref = write(sliding_window=40, use_sliding_window=True, max_window_layers=1)
    roomy = resolve(ref, on_cpu())
    fixed = sum(i.nbytes for i in roomy.memory if i.name != "KV cache")
    for blocks in range(20, 600, 7):
        room = blocks * 16 * KV_BYTES
        plan = resolve(ref, on_cpu(memory=f"{fixed + room}B"))
        [count] = windows_of(plan).values() or [plan.num_blocks]
        assert plan.kv_bytes <= room and plan.num_blocks >= min(512, blocks)
        assert count >= 3 + 1 + 1 + 4, "at least one sequence runs"
        assert count == 44 or plan.num_blocks < count + 64 + 3 * 5, (
            "no windows are missing that there is room for"
        )
        assert (
            plan.max_model_len == min(1024, plan.num_blocks * 16)
            and plan.fitting(plan.max_model_len) >= 1
        )
    assert windows_of(plan) == windows_of(roomy)


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "layers", "context", "gib"),
    [
        (16, 128, {1024: 52, None: 10}, 131_072, (62.0, 11.3)),  # Gemma 3 27B
        (8, 256, {4096: 21, None: 21}, 8192, (2.6, 2.5)),  # Gemma 2 9B
        (8, 64, {128: 12, None: 12}, 131_072, (6.0, 3.1)),  # gpt-oss 20B
        (8, 128, {4096: 32}, 32_768, (4.0, 0.9)),  # Mistral 7B v0.1
        (8, 128, {None: 36}, 32_768, (4.5, 4.5)),
    ],
)
def test_what_one_long_context_takes(
    kv_heads: int,
    head_dim: int,
    layers: dict[int | None, int],
    context: int,
    gib: tuple[float, float],
) -> None:
    uses = []
    for window, count in layers.items():
        need = AttentionNeed(
            num_heads=kv_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1.0,
            dtype="bfloat16",
            device=Device("cpu"),
            sliding_window=window,
        )
        uses.append(
            AttentionUse(
                name="",
                distribution="",
                need=need,
                layers=tuple(range(count)),
                cache=layout(need, 16),
            )
        )
    sizes = CacheSizes(uses, (), 16, max_num_seqs=1, tokens_in_flight=2048, room=1 << 40)
    groups = sizes.choose(context)
    assert groups[0].num_blocks == context // 16
    totals = sizes.per_token() * context, sum(group.nbytes for group in groups)
    assert tuple(round(n / (1 << 30), 1) for n in totals) == gib


def test_switched_off_plugins_stay_off_wherever_the_plan_goes(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_from_json(plan_to_json(resolve(write(), on_cpu(disable=("llama",)))))
    assert plan.disable == ("llama",)
    loaded: list[Collection[str]] = []

    def load(*, disable: Collection[str], only: Collection[str]) -> Catalog:
        loaded.append(disable)
        return load_catalog(disable=disable, only=only)

    monkeypatch.setattr(opened_module, "load_catalog", load)
    reopen(plan).close()
    assert loaded == [("llama",)]


def test_an_engine_of_other_plugins_refuses_the_plan(write: Write) -> None:
    plan = resolve(write(), on_cpu())
    reopen(plan).close()
    other = Chosen("architecture", "Qwen3ForCausalLM", "inferno-qwen3", "9.9")
    with pytest.raises(PluginError, match="inferno-qwen3 9.9"):
        reopen(attrs.evolve(plan, chosen=(*plan.chosen, other)))


def test_a_checkpoint_without_a_tokenizer_has_no_text(write: Write) -> None:
    with open_model(write(), on_cpu()) as opened:
        assets = opened.text()
    assert assets.tokenizer_json is None and assets.chat_template is None


def test_a_checkpoint_says_how_its_model_writes_calls(write: Write) -> None:
    ref = write()
    (Path(ref) / "tokenizer_config.json").write_text('{"response_template": {"version": 1}}')
    with open_model(ref, on_cpu()) as opened:
        assert opened.plan.chat_format.name == "response-template"
        with pytest.raises(ValueError, match="fields"):
            Preprocessor.open(opened).chat_format()
    with open_model(ref, on_cpu(chat_format="none")) as opened:
        assert Preprocessor.open(opened).chat_format() is None


def test_a_chat_format_that_was_asked_for_exists(write: Write) -> None:
    with pytest.raises(OptionError, match="no chat format 'no-such'"):
        open_model(write(), on_cpu(chat_format="no-such"))


def test_a_reopened_plan_has_what_was_opened(write: Write) -> None:
    with open_model(write(), on_cpu()) as opened:
        with reopen(plan_from_json(plan_to_json(opened.plan))) as again:
            assert again.plan == opened.plan and again.config == opened.config
            names = [
                (parts.architecture.name, parts.cache_policy.name, *parts.schemes, *parts.attention)
                for parts in (opened.parts, again.parts)
            ]
            assert names[0] == names[1]
            assert opened.parts.kernels.keys() == again.parts.kernels.keys()


def test_a_name_that_two_distributions_offer_is_opened_as_the_plan_chose_it(write: Write) -> None:
    catalog = load_catalog()
    offers = catalog.of("inferno_attention_backends")
    [torch] = [o for o in offers if o.item.name == "torch"]
    better = Offer(attrs.evolve(torch.item, priority=1000), "inferno-qwen3")
    two = attrs.evolve(
        catalog, offers={**catalog.offers, "inferno_attention_backends": (*offers, better)}
    )
    with open_model(write(), on_cpu(), two) as opened:
        assert opened.parts.attention == {"torch": better.item}
        with reopen(opened.plan, two) as again:
            assert again.parts.attention["torch"] is better.item


def test_the_plan_names_the_scheme_of_every_matrix(write: Write) -> None:
    with open_model(write(), on_cpu()) as opened:
        stored = {name.removesuffix(".weight") for name in opened.checkpoint.tensors}
        named = {path for path in stored if opened.plan.scheme_of(path)}
    assert named == {path for path in stored if "norm" not in path and not path.endswith(".bias")}
    assert opened.plan.scheme_of("model.layers.0.self_attn.q_proj") == "dense"


def test_exceptions_of_a_pattern_are_named_whole() -> None:
    paths = {f"layers.{n}.v_proj": "q6_k" if n == 2 else "q4_k" for n in range(4)}
    modules = by_pattern(paths)
    assert modules == {"layers.*.v_proj": "q4_k", "layers.2.v_proj": "q6_k"}


def test_picked_experts_have_rows_of_their_own_in_the_memory_plan(write: Write) -> None:
    def activations(picked: int) -> int:
        ref = write(
            architectures=["Qwen3MoeForCausalLM"],
            num_experts=8,
            moe_intermediate_size=96,
            num_experts_per_tok=picked,
        )
        return next(
            item.nbytes for item in resolve(ref, on_cpu()).memory if item.name == "activations"
        )

    # per token, of 64, and picked expert: gate, up and what they make, and its input and output;
    # bfloat16
    assert activations(8) - activations(4) == 64 * 4 * (3 * 96 + 2 * 32) * 2


def test_the_shapes_of_captured_steps_are_decided_by_device() -> None:
    """Exact numbers of requests on a CPU, few on others; none without a provider that captures."""
    kernels = KernelProvider(name="fast", ops={}, refuses=lambda need: None, capture=lambda: None)

    def chosen(provider: KernelProvider, kind: DeviceKind) -> CaptureUse | None:
        uses = (KernelUse(op="linear", layout="", name="fast", distribution="fast-kernels"),)
        offers = (("kernels", Offer(provider, "fast-kernels")),)
        return choose_capture(
            Decided(uses, offers), (), Device(kind), max_tokens=100, max_blocks=50
        ).value

    cpu = CaptureUse(name="fast", sizes=tuple(range(1, 65)), blocks=(8, 16, 32, 50))
    assert chosen(kernels, "cpu") == cpu
    sizes = (1, 2, 4, *range(8, 100, 8), 100)
    few = CaptureUse(name="fast", sizes=sizes, blocks=(50,), ahead=True)
    assert chosen(kernels, "cuda") == few
    plain = attrs.evolve(kernels, capture=None)
    assert chosen(plain, "cpu") is None and chosen(plain, "xpu") is None
    assert chosen(plain, "cuda") == attrs.evolve(few, name=CUDA_GRAPHS)


def test_cuda_graphs_see_every_distributions_kernels_but_cost_torchs_attention_too_much() -> None:
    need = AttentionNeed.of(
        AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25),
        dtype="bfloat16",
        device=Device("cuda"),
        cache_dtype="auto",
    )

    def chosen(*served: str) -> Decided[CaptureUse | None]:
        uses = [
            AttentionUse(name="any", distribution=each, need=need, layers=(i,), cache={})
            for i, each in enumerate(served)
        ]
        return choose_capture(Decided(()), uses, Device("cuda"), max_tokens=9, max_blocks=50)

    assert chosen("inferno-one", "inferno-other").value == CaptureUse(
        name=CUDA_GRAPHS, sizes=(1, 2, 4, 8, 9), blocks=(50,), ahead=True
    )
    refused = chosen("inferno-one", "inferno")
    assert refused.value is None
    assert "up to the longest context" in refused.notes[0]


def test_steps_with_prompts_are_captured_where_every_backend_can() -> None:
    """In sizes that the step's tokens limit, with one sequence more than there may be, and never as
    many as tokens."""
    need = AttentionNeed.of(
        AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25),
        dtype="bfloat16",
        device=Device("cuda"),
        cache_dtype="auto",
    )

    def chosen(*able: bool, tokens: int = 300, sequences: int = 40) -> CaptureUse:
        uses = [
            AttentionUse(
                name="any",
                distribution="a",
                need=need,
                layers=(i,),
                cache={},
                captures_prompts=each,
            )
            for i, each in enumerate(able)
        ]
        use = choose_capture(
            Decided(()),
            uses,
            Device("cuda"),
            max_tokens=40,
            max_blocks=50,
            max_batched=tokens,
            max_sequences=sequences,
        ).value
        assert use is not None
        return use

    assert (chosen(True, True).prompts, chosen(True).sequences) == ((64, 128, 192, 256), 41)
    assert chosen(True, False).prompts == () == chosen(True, tokens=0).prompts
    assert chosen(True, tokens=4096).prompts[-1] == 1024
    assert chosen(True, sequences=63).sequences == 65, "not as many as tokens"
    assert chosen(True, sequences=5000).sequences == 513


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (256, (1, 2, 4, *range(8, 257, 8))),
        (400, (1, 2, 4, *range(8, 257, 8), 320, 384, 400)),
    ],
)
def test_sizes_of_captured_steps_on_a_device(most: int, sizes: tuple[int, ...]) -> None:
    assert device_sizes(most) == sizes


def with_level(ref: str, level: Callable[[], str] | None) -> Plan:
    """The plan of a model for a provider of every op, whose level is as given."""
    provider = KernelProvider(
        name="fast",
        ops=dict.fromkeys((LINEAR, *OPS), "nowhere:op"),
        refuses=lambda need: None,
        level=level,
    )
    installed = load_catalog()
    offers = {**installed.offers, "inferno_kernels": (Offer(provider, "inferno"),)}
    return resolve(ref, on_cpu(), Catalog(installed.plugins, offers))


def test_the_level_of_kernels_is_planned_and_shown(write: Callable[..., str]) -> None:
    plan = with_level(write(), lambda: "v4")
    assert {use.level for use in plan.kernels} == {"v4"}
    assert plan_from_json(plan_to_json(plan)) == plan
    assert "  fast (v4): linear bfloat16, " in explained(plan)
    assert "  fast: linear bfloat16, " in explained(with_level(plan.ref, None))


@pytest.mark.parametrize(
    ("dtype", "rounds"), [("float32", True), ("bfloat16", True), ("float32", False)]
)
def test_float32_is_not_called_exact_where_kernels_round(
    write: Callable[..., str], dtype: DType, rounds: bool
) -> None:
    provider = KernelProvider(
        name="fast",
        ops=dict.fromkeys((LINEAR, *OPS), "nowhere:op"),
        refuses=lambda need: None,
        rounds=lambda need: rounds and need.layout == "int4_g32",
    )
    installed = load_catalog()
    offers = {**installed.offers, "inferno_kernels": (Offer(provider, "inferno"),)}
    plan = resolve(write(), on_cpu(dtype=dtype, isq="int4_g32"), Catalog(installed.plugins, offers))
    matches = [note for note in plan.notes if "int4_g32 are rounded to 8 bits" in note]
    assert bool(matches) == (dtype == "float32" and rounds)


def test_a_level_that_cannot_run_is_an_error_of_the_plan(write: Callable[..., str]) -> None:
    def level() -> str:
        raise OptionError("FAST_LEVEL is v5, but this machine runs v4", "Set it to v4.")

    with pytest.raises(OptionError, match="FAST_LEVEL is v5"):
        with_level(write(), level)
