"""Models written as GGUF: the tokens of the original, its tokenizer, its chat template; and what is
refused. `GgufTwins` in the kit does this for every family."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import attrs
import gguf
import pytest
import tokenizers
import torch
from gguf_vocabulary import WORDS, assert_same
from safetensors.torch import load_file, save_file
from test_byte_level import ORIGINAL, SPECIAL, byte_level
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from inferno import LLM, SamplingParams
from inferno.contracts import WriteOptions
from inferno.errors import CheckpointError, InfernoError, OptionError, UnsupportedError
from inferno.testing import (
    TOY_SIZES,
    Tokenizer,
    WriterTests,
    alike,
    convert,
    load_catalog,
    load_toy,
    ragged_prompts,
    random_tensors,
    torch_only,
)
from inferno_gguf import quantize, writer
from inferno_gguf.kinds import TARGETS
from inferno_gguf.pretokenizers import PRETOKENIZERS
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

SIZES = {**TOY_SIZES, "vocab_size": 700, "hidden_size": 256, "intermediate_size": 512}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64, **SIZES}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
TOY = {**LLAMA, **TOY_SIZES}
PROMPTS = ragged_prompts(600, (1, 5, 17))


def write_model(folder: Path, config: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> Path:
    """A random model in a Hugging Face folder, with values that bfloat16 holds exactly."""
    tensors = random_tensors(config, folder.with_name(f"{folder.name}-source"))
    folder.mkdir()
    save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": SPECIAL[0], "chat_template": "{{ messages }}"})
    )
    return folder


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("w") / "qwen3", QWEN3, byte_level(ORIGINAL["qwen2"], False)
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("w") / "llama", LLAMA, byte_level(ORIGINAL["llama-bpe"], True)
    )


def tokens(path: Path) -> list[tuple[int, ...]]:
    toy = load_toy(path, torch_only())
    return [o.token_ids for o in toy.generate(PROMPTS, 12)]


@alike
@pytest.mark.parametrize("to", sorted({*TARGETS} - {"q2_k_s"}))  # it needs importance
def test_every_type_is_read_back_as_the_values_that_it_holds(
    to: str, llama: Path, tmp_path: Path
) -> None:
    """The tokens of a file, and of the folder with its values."""
    convert(str(llama), to, tmp_path / "model.gguf")
    convert(str(tmp_path / "model.gguf"), "safetensors", tmp_path / "values", EXACT)
    assert tokens(tmp_path / "model.gguf") == tokens(tmp_path / "values")
    if to in ("f32", "bf16"):
        assert tokens(tmp_path / "values") == tokens(llama)


EXACT = WriteOptions(dtype="float32")


def test_dequantized_values_are_those_of_gguf_py(qwen3: Path, tmp_path: Path) -> None:
    """Bit for bit, in float32."""
    convert(str(qwen3), "q4_0", tmp_path / "model.gguf")
    convert(str(tmp_path / "model.gguf"), "safetensors", tmp_path / "values", EXACT)
    ours = load_file(tmp_path / "values" / "model.safetensors")
    stored = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    theirs = stored["blk.1.ffn_down.weight"]
    values = gguf.dequantize(theirs.data, theirs.tensor_type)
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], torch.from_numpy(values))


def test_a_quantized_file_is_rounded_again_only_if_the_user_says_so(
    llama: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    convert(str(llama), "q8_0", one)
    with pytest.raises(OptionError, match="quantized already .* in q8_0.* both errors") as caught:
        convert(str(one), "q4_0", two)
    assert "--requantize, as for --isq" in caught.value.remedy and not two.exists()
    with pytest.raises(OptionError, match="quantized already"):
        convert(str(one), "fp8", tmp_path / "folder")
    made = convert(str(one), "q4_0", two, requantize=True)
    assert any("a second time" in note for note in made.notes) and two.exists()
    convert(str(one), "bf16", tmp_path / "dense.gguf")


def test_a_file_in_the_same_type_is_copied(llama: Path, tmp_path: Path) -> None:
    """Quantizing what was quantized before would round again; Llama's rows are reordered twice."""
    convert(str(llama), "q4_1", tmp_path / "one.gguf")
    convert(str(tmp_path / "one.gguf"), "q4_1", tmp_path / "two.gguf")
    one, two = (
        {t.name: t.data.tobytes() for t in gguf.GGUFReader(tmp_path / name).tensors}
        for name in ("one.gguf", "two.gguf")
    )
    assert one == two


def test_rows_that_are_no_whole_blocks_and_small_tensors(tmp_path: Path) -> None:
    sizes = {**QWEN3, "hidden_size": 48, "head_dim": 16, "vocab_size": 700}
    source = write_model(tmp_path / "odd", sizes, byte_level(ORIGINAL["qwen2"], False))
    made = convert(str(source), "q8_0", tmp_path / "model.gguf")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0" and kinds["blk.0.attn_q.weight"] == "F16"
    assert kinds["blk.0.attn_norm.weight"] == kinds["blk.0.attn_q_norm.weight"] == "F32"
    assert any("F16".lower() in note for note in made.notes)
    assert len(tokens(tmp_path / "model.gguf")) == len(PROMPTS)


def test_split_files_are_llama_cpps(llama: Path, tmp_path: Path) -> None:
    convert(str(llama), "bf16", tmp_path / "model.gguf", WriteOptions(split=500_000))
    shards = sorted(tmp_path.glob("*.gguf"))
    assert len(shards) > 3 and not (tmp_path / "model.gguf").exists()
    assert shards[0].name == f"model-00001-of-{len(shards):05}.gguf"
    for number, shard in enumerate(shards):
        metadata = GgufFile.open(shard).metadata
        assert (metadata["split.no"], metadata["split.count"]) == (number, len(shards))
    assert tokens(shards[0]) == tokens(llama)


def test_values_that_float16_cannot_hold_are_an_error(llama: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama, tmp_path / "large"))
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match="bf16"):
        convert(str(source), "f16", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_a_few_rows_are_in_memory_at_a_time(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak of a conversion does not grow with its matrices; the bytes are the same."""
    sizes: list[int] = []
    pack = quantize.pack

    def counting(layout: str, weight_OI: torch.Tensor, **given: Any) -> Any:
        sizes.append(weight_OI.numel())
        return pack(layout, weight_OI, **given)

    convert(str(qwen3), "q4_k_m", tmp_path / "whole.gguf")
    monkeypatch.setattr(quantize, "pack", counting)
    monkeypatch.setattr(writer, "ROWS", 4096)
    convert(str(qwen3), "q4_k_m", tmp_path / "model.gguf")
    assert max(sizes) == 4096 < 700 * SIZES["hidden_size"] < sum(sizes)
    whole, pieces = ((tmp_path / name).read_bytes() for name in ("whole.gguf", "model.gguf"))
    assert len(whole) == len(pieces) and whole[-65536:] == pieces[-65536:]


# --- tokenizers -----------------------------------------------------------------------------------


def written(source: Path, path: Path) -> tokenizers.Tokenizer:
    convert(str(source), "bf16", path)
    text = read_text(GgufFile.open(path)).tokenizer_json
    return tokenizers.Tokenizer.from_buffer(text or b"")


def with_tokenizer(model: Path, folder: Path, tokenizer: tokenizers.Tokenizer) -> Path:
    shutil.copytree(model, folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return folder


@pytest.mark.parametrize("pre", ORIGINAL)
def test_byte_level_tokenizers_keep_their_name_and_ids(
    pre: str, qwen3: Path, tmp_path: Path
) -> None:
    trained = byte_level(ORIGINAL[pre], PRETOKENIZERS[pre].ignore_merges)
    source = with_tokenizer(qwen3, tmp_path / "source", trained)
    ours = written(source, tmp_path / "model.gguf")
    metadata = GgufFile.open(tmp_path / "model.gguf").metadata
    assert PRETOKENIZERS[metadata["tokenizer.ggml.pre"]] == PRETOKENIZERS[pre]
    assert ours.get_vocab() == trained.get_vocab()
    assert_same(ours, trained)
    vocabulary = Tokenizer.from_assets(read_text(GgufFile.open(tmp_path / "model.gguf")))
    assert vocabulary is not None
    special, thinking = (trained.token_to_id(token) for token in SPECIAL)
    assert special is not None and thinking is not None
    assert vocabulary.eos_token_ids == (special,)
    assert vocabulary.is_special(special) and not vocabulary.is_special(thinking)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe_gets_scores(prefix: bool, qwen3: Path, tmp_path: Path) -> None:
    byte_tokens = [f"<0x{number:02X}>" for number in range(256)]
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    trained.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    trained.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<s>", "</s>", *byte_tokens],
        show_progress=False,
    )
    trained.train_from_iterator(WORDS.splitlines(), trainer)
    document = json.loads(trained.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["id"] < 3]
    trained = tokenizers.Tokenizer.from_str(json.dumps(document))
    source = with_tokenizer(qwen3, tmp_path / "source", trained)
    ours = written(source, tmp_path / "model.gguf")
    metadata = GgufFile.open(tmp_path / "model.gguf").metadata
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.add_space_prefix"] is prefix
    for text in (*WORDS.splitlines(), "a b  c", "Größe 🚀", ""):
        one, other = (t.encode(text, add_special_tokens=False).ids for t in (ours, trained))
        assert one == other, text


def test_a_template_and_special_tokens_are_in_the_file(qwen3: Path, tmp_path: Path) -> None:
    convert(str(qwen3), "bf16", tmp_path / "model.gguf")
    metadata = GgufFile.open(tmp_path / "model.gguf").metadata
    ids = tokenizers.Tokenizer.from_file(str(qwen3 / "tokenizer.json")).get_vocab()
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["tokenizer.ggml.eos_token_id"] == ids[SPECIAL[0]]
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    types, size = metadata["tokenizer.ggml.token_type"], len(ids)
    assert types[ids[SPECIAL[0]]] == 3 and types[ids[SPECIAL[1]]] == 4
    assert types[size:] == [5] * (700 - size)


def test_a_normalizer_is_kept_for_inferno(qwen3: Path, tmp_path: Path) -> None:
    """llama.cpp does without Unicode normalization; inferno reads the original."""
    trained = byte_level(ORIGINAL["qwen2"], False)
    trained.normalizer = normalizers.NFC()
    ours = written(with_tokenizer(qwen3, tmp_path / "s", trained), tmp_path / "model.gguf")
    assert ours.encode("e\u0301").ids == trained.encode("e\u0301").ids


# --- what is refused ------------------------------------------------------------------------------


def refused(source: Path, kind: type[InfernoError], tmp_path: Path) -> str:
    with pytest.raises(kind) as caught:
        convert(str(source), "bf16", tmp_path / "model.gguf")
    assert caught.value.remedy and not list(tmp_path.glob("*.gguf"))
    return f"{caught.value.cause} {caught.value.remedy}"


def test_a_model_without_a_tokenizer(qwen3: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(qwen3, tmp_path / "source"))
    (source / "tokenizer.json").unlink()
    assert "save_pretrained" in refused(source, CheckpointError, tmp_path)


def test_a_tokenizer_with_more_tokens_than_the_model(qwen3: Path, tmp_path: Path) -> None:
    trained = byte_level(ORIGINAL["qwen2"], False)
    trained.add_tokens([f"<extra {number}>" for number in range(500)])
    source = with_tokenizer(qwen3, tmp_path / "source", trained)
    assert "another model" in refused(source, CheckpointError, tmp_path)


def test_tokenizers_that_files_cannot_describe(qwen3: Path, tmp_path: Path) -> None:
    trained = byte_level([r"[a-z]{2}|."], False)
    source = with_tokenizer(qwen3, tmp_path / "patterns", trained)
    assert "no name" in refused(source, UnsupportedError, tmp_path)
    pieces = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    source = with_tokenizer(qwen3, tmp_path / "pieces", pieces)
    assert "WordPiece" in refused(source, UnsupportedError, tmp_path)


def test_a_config_that_files_cannot_describe(tmp_path: Path) -> None:
    config = {
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 8,
    }
    source = write_model(tmp_path / "windowed", config, byte_level(ORIGINAL["llama-bpe"], True))
    assert "sliding_window" in refused(source, UnsupportedError, tmp_path)


def test_a_family_without_a_dialect(llama: Path, tmp_path: Path) -> None:
    catalog = load_catalog()
    offers = {
        **catalog.offers,
        "inferno_architectures": tuple(
            attrs.evolve(o, item=attrs.evolve(o.item, dialects={}))
            for o in catalog.of("inferno_architectures")
        ),
    }
    nameless = attrs.evolve(catalog, offers=offers)
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM does not say"):
        convert(str(llama), "bf16", tmp_path / "model.gguf", catalog=nameless)


class TestQ80(WriterTests):
    config = TOY
    writer = "q8_0"
    options = WriteOptions()
    tolerance = 0.01


class TestF16(WriterTests):
    config = TOY
    writer = "f16"
    options = WriteOptions()
    tolerance = 0.001


# --- the demo model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Iterator[Path]:
    with as_file(files(pytest.importorskip("inferno_demo")) / "model") as folder:
        yield folder


def test_the_demo_model_answers_alike(demo: Path, tmp_path: Path) -> None:
    convert(str(demo), "bf16", tmp_path / "demo.gguf")
    greedy = SamplingParams(temperature=0, max_tokens=32)
    chats = [
        [{"role": "user", "content": text}]
        for text in ("What does math.gcd do?", "What is a heap?", "Who are you?")
    ]
    answers = []
    for path in (demo, tmp_path / "demo.gguf"):
        with LLM(str(path), memory="2GiB") as llm:
            answers.append([o.outputs[0].text for o in llm.chat(chats, greedy)])
    assert answers[0] == answers[1] and all(answers[0])
