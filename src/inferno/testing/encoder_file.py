"""Tests of architectures that see images by an encoder in a separate GGUF file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from inferno.configs import RopeConfig
from inferno.contracts import text_part
from inferno.core.engine import Engine
from inferno.errors import CheckpointError, InfernoError
from inferno.images.preparing import Preparer
from inferno.plan import Opened
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf import add_value, write_gguf
from inferno.testing.images import Asked, SeeingToy, generated
from inferno.testing.tiny import run_python, torch_only
from inferno.weights.loading import check

Keys = Mapping[str, Any]
MOST_OFF: Mapping[str, float] = {"F16": 0.005, "Q8_0": 0.1}
"""How far embeddings may be off, as a share of their length, by the file's type."""


class EncoderFileTests(SeeingToy):
    """Set what `ImageTests` needs, and what llama.cpp's converter writes of the toy: in the test's
    own words, so that nothing here is the plugin's, inverted. Tensors get the names that gguf-py
    has for them."""

    text: ClassVar[str]
    """What files call the text model's architecture."""
    gguf_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of the text model's dialect that `config.json` has not."""
    tokens: ClassVar[Mapping[int, str]] = {}
    """Tokens of the vocabulary that say what images' ids are."""
    looks: ClassVar[Mapping[str, Any]]
    """What the file has of `preprocessor_config.json`, whose names these are: as `inputs_of` has
    them."""
    processor: ClassVar[Mapping[str, Any]] = {}
    """What else it has of it, under other keys."""
    lacking: ClassVar[str] = ""
    """A key that the file has not, whose value the plan says is assumed."""
    unread: ClassVar[frozenset[str]] = frozenset()
    """Tensors of the file that the model does not read."""
    unsaid: ClassVar[frozenset[str]] = frozenset()
    """Fields of the model's config that files do not store and that change no token."""

    def keys(self, vision: Any) -> Keys:
        """Return the file's own metadata, without "clip.": what is beside `usual_keys`."""
        raise NotImplementedError

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Return what a tensor of the checkpoint is stored as: under names that gguf-py knows, or
        that of a file. None for one that is not of the encoder's file."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def tensors(cls, checkpoint: Path) -> dict[str, Tensor]:
        """All that the original checkpoint has."""
        _, opened = torch_only().open(checkpoint)
        return {name: opened.read(name).clone() for name in opened.tensors}

    @pytest.fixture(scope="class")
    @classmethod
    def pair(
        cls,
        reference: Any,
        checkpoint: Path,
        tensors: Mapping[str, Tensor],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Path:
        """The text model's file, beside one with its encoder."""
        pytest.importorskip("gguf")
        formats = torch_only().of("inferno_checkpoint_formats")
        if all(offer.item.name != "gguf" for offer in formats):
            pytest.skip("no plugin reads GGUF files")
        self, folder = cls(), tmp_path_factory.mktemp("pair")
        self.write_text(folder / "toy-F32.gguf", reference, checkpoint)
        self.write_encoder(folder / "mmproj-toy-f32.gguf", reference, tensors, "F32")
        return folder / "toy-F32.gguf"

    def write_text(self, path: Path, reference: Any, checkpoint: Path, kind: str = "F32") -> None:
        catalog = torch_only()
        [architecture] = [
            offer.item
            for offer in catalog.of("inferno_architectures")
            if (family := offer.item.dialects.get("gguf")) is not None and family.named(self.text)
        ]
        named = architecture.dialects["gguf"].named(self.text)
        assert named is not None, "it was found by that name"
        defaults = next(
            offer.item.dialect
            for offer in catalog.of("inferno_checkpoint_formats")
            if offer.item.name == "gguf"
        )
        seen = text_part(catalog.open(checkpoint)[1])
        seen = seen if architecture.adapt is None else architecture.adapt(seen)
        config = {**reference.config.text_config.to_dict(), **seen.config, **self.gguf_fields}
        weights = {name: seen.read(name) for name in seen.tensors}
        rows = config["vocab_size"]
        vocabulary = [self.tokens.get(i, f"<{i}>") for i in range(rows)]
        dialect = named.over(defaults)
        write_gguf(path, dialect, config, weights, kind, vocabulary=vocabulary)

    def write_encoder(
        self,
        path: Path,
        reference: Any,
        tensors: Mapping[str, Tensor],
        kind: str,
        keys: Keys | None = None,
        without: Sequence[str] = (),
    ) -> list[str]:
        """Write the encoder's file; return the names of its tensors. Keys replace its own, or are
        left out if None; tensors of `without` are left out."""
        import gguf

        vision, text = reference.config.vision_config, reference.config.text_config
        usual = usual_keys(vision, text.hidden_size)
        writer = gguf.GGUFWriter(path, "clip")
        given = {**usual, **self.looks_of_file(), **self.keys(vision), **(keys or {})}
        for key, value in given.items():
            if value is not None:
                add_value(writer, f"clip.{key}", value)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 9)  # projectors have numbers, too
        written = []
        for name, tensor in tensors.items():
            for part, values in self.stored(name.removeprefix("model."), tensor.float()):
                stored = names.get_name(part, try_suffixes=(".weight", ".bias")) or part
                if stored not in without:
                    data, number = encoded(values, kind)
                    writer.add_tensor(stored, data, raw_dtype=number)
                written.append(stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return written

    def looks_of_file(self) -> Keys:
        return {f"vision.{name}": value for name, value in self.looks.items()}

    def encoder_of(self, opened: Opened) -> Any:
        config: Any = opened.config
        runner: Any = Engine.load(opened)._runner
        return runner._model.get_submodule(config.image_encoder)

    def test_a_pair_of_files_gives_the_reference_s_tokens(
        self, pair: Path, checkpoint: Path, asked: Sequence[Asked]
    ) -> None:
        """In float32, which changes no value."""
        with self.opened(pair) as opened:
            ours = opened.text().image_processor
            assert {n: value for n, value in ours.items() if n not in self.looks} == self.processor
            for name, value in self.looks.items():  # files have them in float32
                torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(value))
            engine = Engine.load(opened)
        assert generated(engine, asked)[0] == [each.wanted for each in asked]

    def test_the_config_of_a_pair_is_the_original_s(self, pair: Path, checkpoint: Path) -> None:
        """Field by field; rotary embeddings, of which files store other numbers, by the tokens."""
        with self.opened(pair) as files, self.opened(checkpoint) as original:
            configs: list[Any] = [files.config, original.config]
            ours, theirs = (
                {
                    name: value
                    for name, value in attrs.asdict(each, recurse=False).items()
                    if name not in self.unsaid and not isinstance(value, RopeConfig)
                }
                for each in configs
            )
            differing = {n: (ours[n], theirs[n]) for n in theirs if ours[n] != theirs[n]}
            assert not differing, f"files say otherwise: {differing}"
            one, other = files.plan.images, original.plan.images
            assert one is not None and other is not None
            assert attrs.evolve(one, file="") == other
            assert one.file == str(pair.with_name("mmproj-toy-f32.gguf"))
            assert not any("images are off" in note for note in files.plan.notes)
            texts = [
                note for note in files.plan.notes if note.startswith("mmproj-toy-f32.gguf lacks")
            ]
            assert len(texts) == bool(self.lacking) and all(self.lacking in note for note in texts)

    @pytest.mark.parametrize("kind", ["F16", "Q8_0"])
    def test_rounded_encoders_are_near(
        self,
        kind: str,
        pair: Path,
        reference: Any,
        tensors: Mapping[str, Tensor],
        pictures: Any,
        tmp_path: Path,
    ) -> None:
        rounded = tmp_path / "encoder.gguf"
        self.write_encoder(rounded, reference, tensors, kind)
        with self.opened(pair) as opened:
            exact = self.encoder_of(opened)
        with self.opened(pair, mmproj=str(rounded)) as opened:
            near = self.encoder_of(opened)
            prepare = Preparer.of(opened).process
        pixels = prepare(pictures[1][0])
        values = torch.from_numpy(pixels.values)
        with torch.inference_mode():
            theirs, ours = (each(values, pixels.grid) for each in (exact, near))
        off = float((ours - theirs).norm() / theirs.norm())
        assert off <= MOST_OFF[kind], f"embeddings are off by {off}"
        assert off > 0 or kind == "F16", "Q8_0 rounds"

    def test_without_the_file_it_reads_text(self, pair: Path, asked: Sequence[Asked]) -> None:
        with self.opened(pair, mmproj="none") as opened:
            assert opened.plan.images is None
            engine = Engine.load(opened)
        assert generated(engine, asked[4:])[0] == [asked[4].wanted]

    def test_it_is_beside_a_quantized_text_model_too(
        self, pair: Path, reference: Any, checkpoint: Path, asked: Sequence[Asked], tmp_path: Path
    ) -> None:
        """Whose tokens are those of the text model alone, which is another test's."""
        quantized = tmp_path / "toy-Q8_0.gguf"
        self.write_text(quantized, reference, checkpoint, "Q8_0")
        with self.opened(quantized, mmproj=str(pair.with_name("mmproj-toy-f32.gguf"))) as opened:
            assert "q8_0" in {use.name for use in opened.plan.schemes}
            whole = Engine.load(opened)
        with self.opened(quantized) as opened:
            assert opened.plan.images is None
            alone = Engine.load(opened)
        assert generated(whole, asked[4:])[0] == generated(alone, asked[4:])[0]
        tokens, _ = generated(whole, asked[:2])
        assert tokens[0] != tokens[1], "it looks at its images"

    @alike
    def test_a_text_model_that_inferno_writes_is_still_the_encoder_s(
        self, pair: Path, asked: Sequence[Asked], tmp_path: Path
    ) -> None:
        """As when it is quantized again: files of it have the name that the encoder goes with."""
        convert(str(pair), "f32", tmp_path / "written.gguf", catalog=torch_only())
        encoder = str(pair.with_name("mmproj-toy-f32.gguf"))
        with self.opened(tmp_path / "written.gguf", mmproj=encoder) as opened:
            engine = Engine.load(opened)
        assert generated(engine, asked[:1])[0] == [asked[0].wanted]

    def test_a_file_of_another_model_is_no_encoder_of_this_one(
        self, pair: Path, reference: Any, tensors: Mapping[str, Tensor], tmp_path: Path
    ) -> None:
        """Beside the model, a note says so; named, it is refused."""
        alone = tmp_path / pair.name
        alone.write_bytes(pair.read_bytes())
        other = tmp_path / "mmproj-other.gguf"
        for keys, reason in (
            ({"vision.projection_dim": 80}, "makes embeddings of 80 numbers"),
            ({"vision.projector_type": "elsewhere"}, "encoders of the kind 'elsewhere'"),
        ):
            self.write_encoder(other, reference, tensors, "F32", keys)
            with self.opened(alone) as opened:
                assert opened.plan.images is None
                [note] = [each for each in opened.plan.notes if "images are off" in each]
                assert reason in note
            with pytest.raises(CheckpointError, match=reason) as caught:
                self.opened(alone, mmproj=str(other))
            assert "--no-mmproj" in caught.value.remedy
        with pytest.raises(CheckpointError, match="an encoder of images, not a model") as caught:
            self.opened(other)
        assert "--mmproj" in caught.value.remedy

    @pytest.mark.slow
    def test_a_file_without_one_of_its_tensors_is_refused(
        self, pair: Path, reference: Any, tensors: Mapping[str, Tensor], tmp_path: Path
    ) -> None:
        path = tmp_path / "encoder.gguf"
        names = self.write_encoder(path, reference, tensors, "F32")
        assert len(names) == len({*names})
        first = (name for name in names if not re.search(r"\.blk\.[1-9]", name))
        for name in (each for each in first if each not in self.unread):
            self.write_encoder(path, reference, tensors, "F32", without=[name])
            with (
                pytest.raises(CheckpointError) as caught,
                self.opened(pair, mmproj=str(path)) as opened,
            ):
                check(opened)
            assert caught.value.remedy, name

    @alike
    def test_damage_is_an_error_or_harmless(self, pair: Path, tmp_path: Path) -> None:
        content = pair.with_name("mmproj-toy-f32.gguf").read_bytes()
        path, drawn, refused = tmp_path / "encoder.gguf", random.Random(5), 0
        for turn in range(120):
            damaged = bytearray(content)
            if turn % 4 == 0:
                del damaged[drawn.randrange(len(damaged)) :]
            for _ in range(drawn.randrange(1, 4) if damaged else 0):
                damaged[drawn.randrange(min(len(damaged), 3000))] = drawn.randrange(256)
            path.write_bytes(bytes(damaged))
            try:
                with self.opened(pair, mmproj=str(path)) as opened:
                    check(opened)
            except InfernoError as error:  # of sizes that no memory holds, too
                refused += 1
                assert error.cause and error.remedy
        assert refused > 30

    @alike
    def test_a_pair_is_opened_without_torch(self, pair: Path) -> None:
        code = (
            "import sys; from pathlib import Path\n"
            "from inferno.plan import Options, resolve\n"
            "plan = resolve(sys.argv[1], Options(memory='2GiB', device='cpu'))\n"
            "assert plan.images.file\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, str(pair))
        assert done.returncode == 0, done.stderr


class DeepEncoderFileTests(EncoderFileTests):
    """The same of an `nn.DeepEncoder`. Set `kind` to what files call its projector."""

    kind: ClassVar[str]
    looks = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }

    def keys(self, vision: Any) -> Keys:
        deep, places = vision.deepstack_visual_indexes, vision.num_position_embeddings
        return {
            "projector_type": self.kind,
            "use_gelu": True,
            "vision.spatial_merge_size": vision.spatial_merge_size,
            "vision.image_size": int(places**0.5) * vision.patch_size,
            "vision.is_deepstack_layers": [n in deep for n in range(vision.depth)],
        }

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        indexes = self.config["vision_config"]["deepstack_visual_indexes"]
        if name == "visual.patch_embed.proj.weight":
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        elif name.startswith("visual.deepstack_merger_list."):
            number, rest = name.split(".", 3)[2:]
            yield f"v.deepstack.{indexes[int(number)]}.{rest.replace('linear_', '')}", tensor
        elif name.startswith("visual.merger."):
            places = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
            module, part = name.split(".")[2:]
            yield f"{places[module]}.{part}", tensor
        elif name.startswith("visual."):
            yield name, tensor


def usual_keys(vision: Any, width: int) -> dict[str, Any]:
    """Return what llama.cpp's converter writes of every encoder; `vision` is transformers' config
    of it, `width` the size of the text model's embeddings."""

    def first(*names: str) -> Any:
        return next(getattr(vision, n) for n in names if getattr(vision, n, None) is not None)

    return {
        "has_vision_encoder": True,
        "vision.projection_dim": width,
        "vision.image_size": getattr(vision, "image_size", 560),
        "vision.patch_size": vision.patch_size,
        "vision.embedding_length": vision.hidden_size,
        "vision.feed_forward_length": vision.intermediate_size,
        "vision.block_count": first("num_hidden_layers", "depth"),
        "vision.attention.head_count": first("num_attention_heads", "num_heads"),
        "vision.attention.layer_norm_epsilon": 1e-6,
    }


def encoded(tensor: Tensor, kind: str) -> tuple[Any, Any]:
    """Return a tensor as a file has it: vectors in float32, rows that no block fits in F16."""
    import gguf

    short = tensor.ndim != 2 or tensor.shape[-1] % 32
    kind = "F16" if kind == "Q8_0" and short else kind
    number = gguf.GGMLQuantizationType["F32" if tensor.ndim < 2 else kind]
    return gguf.quantize(tensor.contiguous().numpy(), number), number
