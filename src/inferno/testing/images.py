"""Tests that every architecture must pass that sees images.

Suffixes: P patches, W numbers of a patch.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch

from inferno.core.engine import Engine
from inferno.errors import UnsupportedError
from inferno.images.decoding import decoded
from inferno.images.pixels import Picture, PixelFiles
from inferno.images.preparing import Preparer
from inferno.images.seeing import Seeing
from inferno.llm.images import SeeingTokens, images_of
from inferno.nn import DeepstackLayer, MediaEncoder
from inferno.plan import Opened, Options, open_model, plan_of_stage, stage_starts
from inferno.plan.cache_groups import with_num_blocks
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.reference import transformers_model
from inferno.testing.thread_ranks import as_other_machines, held_bytes, load_shared
from inferno.testing.tiny import installed, torch_only
from inferno.testing.trained_weights import like_trained
from inferno.weights.loading import load_model

LENGTH = 12
"""Tokens of an answer."""
NATIVE = ("captured", "drafts")
"""Runs with the installed kernels, which capture steps."""
RUNS: Mapping[str, Mapping[str, Any]] = {
    "whole": {"max_num_batched_tokens": 512},
    "chunks": {"max_num_batched_tokens": 16},
    "odd chunks": {"max_num_batched_tokens": 23, "block_size": 16},
    "captured": {"max_num_batched_tokens": 512},
    "drafts": {"speculative": "ngram"},
    "no embeddings kept": {"max_num_batched_tokens": 16, "image_cache_size": "1KiB"},
    "one image a step": {"max_image_tokens": 24},
}


def picture_file(seed: int, size: tuple[int, int], format: str = "PNG") -> bytes:
    """Return the file of an image of smooth colours and some noise, as photographs have."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(image).astype(int) + rng.integers(-12, 13, (*image.size[::-1], 3))
    pixels = noisy.clip(0, 255).astype(np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, format)
    return written.getvalue()


@attrs.frozen(eq=False)
class Asked:
    """A prompt with images, and what the reference makes of it."""

    ids: tuple[int, ...]
    wanted: list[int]


class SeeingToy:
    """A toy model that sees images, and transformers' answers, for `ImageTests`, `AudioTests` and
    `EncoderFileTests`, which say what to set."""

    head: ClassVar[str] = "AutoModelForImageTextToText"
    """transformers' class that makes the reference."""
    config: ClassVar[Mapping[str, Any]]
    sizes: ClassVar[Sequence[tuple[int, int]]] = ((112, 112), (84, 168), (56, 64))
    """Pixels of the images, width and height."""

    opening: ClassVar[Mapping[str, Sequence[int]]] = {}
    """By medium, the tokens before an image or audio that the reference looks for."""
    span: ClassVar[int] = 0
    """Positions of an image, if all have as many (`contracts.ImageSpanConfig`)."""

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of the reference for images of Pillow, by transformers' own
        processor."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> Any:
        model = transformers_model(cls.config, cls.head)
        like_trained(model)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("seeing")
        reference.save_pretrained(path)
        return path

    def opened(self, checkpoint: Path, native: bool = False, **more: Any) -> Opened:
        given: dict[str, Any] = {
            "dtype": "float32",
            "max_num_seqs": 8,
            "max_model_len": 256,
            "device": "cpu",
            "threads": 1,
            "memory": "2GiB",
        }
        catalog = installed() if native else torch_only()
        return open_model(str(checkpoint), Options(**{**given, **more}), catalog)

    def is_recurrent(self, checkpoint: Path) -> bool:
        """Whether any layer keeps a state instead of each token's keys and values."""
        with self.opened(checkpoint) as opened:
            return bool(opened.plan.states)

    @pytest.fixture(scope="class")
    @classmethod
    def pictures(cls, checkpoint: Path) -> Any:
        """The prepared images, and a second one of the first one's size."""
        files = PixelFiles(2**30)
        with cls().opened(checkpoint) as opened:
            yield list(cls.prepared(opened, files))
        files.close()

    @classmethod
    def prepared(cls, opened: Opened, files: PixelFiles) -> Iterator[tuple[Any, Picture]]:
        """Draw and prepare images. Yields what the reference is given, too."""
        preparer = Preparer.of(opened)
        for seed, size in enumerate([*cls.sizes, cls.sizes[0]]):
            image = decoded(picture_file(seed, size))
            picture = files.adopt(preparer.prepare(image, files.folder))
            assert picture is not None, "it was just written"
            yield image, picture

    @pytest.fixture(scope="class")
    @classmethod
    def asked(cls, reference: Any, checkpoint: Path, pictures: Any) -> list[Asked]:
        """One image, another of the same size, several with text before, between and after, one
        near the end, and text alone."""
        with cls().opened(checkpoint) as opened:
            config: Any = opened.config
        drawn = random.Random(3)
        cases = []
        one, two, three, other = pictures

        def text(count: int) -> list[Any]:
            return [drawn.randrange(5, 140) for _ in range(count)]

        common, question = text(20), text(9)
        layouts = (
            [*common, one, *question],
            [*common, other, *question],
            [*common, one, *text(5), two, *text(3), three, *text(21)],
            # One token: after none, transformers' cached generation loses the positions.
            [*text(7), three, *text(1)],
            text(40),
        )
        for layout in layouts:
            seen = [part for part in layout if isinstance(part, tuple)]
            ids = list[int]()
            for part in layout:
                if isinstance(part, tuple):
                    medium = part[1].medium
                    ids += [*cls.opening.get(medium, ()), getattr(config, f"{medium}_token_id")]
                else:
                    ids.append(part)
            placed = SeeingTokens.of(ids, config, [picture for _, picture in seen], "test")
            wanted = cls()._wanted(reference, placed, [image for image, _ in seen])
            cases.append(Asked(placed, wanted))
        assert cases[0].wanted != cases[1].wanted, "the reference must look at its images"
        return cases

    def _wanted(self, reference: Any, ids: Sequence[int], images: Sequence[Any]) -> list[int]:
        with torch.no_grad():
            written = reference.generate(
                torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=LENGTH,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                **(self.inputs_of(images, ids) if images else {}),
            )
        return written[0, len(ids) :].tolist()  # type: ignore[no-any-return]


class ImageTests(SeeingToy):
    """Set `config` to a toy `config.json` of a whole model with its `text_config` and
    `vision_config`. Prompts have token ids below 140. Override `inputs_of`: what the reference is
    given for images. Weights are like trained ones."""

    @alike
    @pytest.mark.parametrize("run", RUNS)
    def test_tokens_are_the_reference_s(
        self, run: str, checkpoint: Path, asked: Sequence[Asked]
    ) -> None:
        with self.opened(checkpoint, run in NATIVE, **RUNS[run]) as opened:
            engine = Engine.load(opened)
        first, cached = generated(engine, asked)
        assert first == [each.wanted for each in asked]
        again, cached = generated(engine, asked)
        assert again == first
        whole = [(len(each.ids) - 1) // 16 * 16 for each in asked]
        assert all(count >= least for count, least in zip(cached, whole, strict=True))
        runner: Any = engine._runner
        if run == "captured":
            assert runner.replays.shapes, "its decode steps must have been replayed"
        if run == "no embeddings kept":
            assert seeing_of(engine).computed > len(self.sizes) + 1

    @alike
    def test_two_images_of_a_size_share_no_blocks(
        self, checkpoint: Path, asked: Sequence[Asked]
    ) -> None:
        with self.opened(checkpoint) as opened:
            engine = Engine.load(opened)
        assert asked[0].ids == asked[1].ids
        [one], _ = generated(engine, asked[:1])
        [other], [cached] = generated(engine, asked[1:2])
        assert (one, other) == (asked[0].wanted, asked[1].wanted)
        elsewhere = self.is_recurrent(checkpoint)  # where it has a snapshot of its states
        assert cached == 16 or elsewhere and cached < 16, "what is before the image"
        [several], [cached] = generated(engine, asked[2:3])
        assert several == asked[2].wanted
        assert cached >= 32 or elsewhere, "the same image, whatever follows"

    @alike
    def test_preempted_sequences_go_on(self, checkpoint: Path, asked: Sequence[Asked]) -> None:
        with self.opened(checkpoint, max_num_batched_tokens=32) as opened:
            longest = max(len(each.ids) for each in asked) + LENGTH
            groups = with_num_blocks(opened.plan.groups, longest // 16 + 3)
            plan = attrs.evolve(opened.plan, groups=groups, max_model_len=longest + 1)
            engine = Engine.load(attrs.evolve(opened, plan=plan))
        for _ in range(2):
            answers, _ = generated(engine, asked)
            assert answers == [each.wanted for each in asked]
        assert engine.stats().preemptions > 0

    @alike
    def test_an_image_is_computed_once(self, checkpoint: Path, asked: Sequence[Asked]) -> None:
        with self.opened(checkpoint, max_num_batched_tokens=16) as opened:
            engine = Engine.load(opened)
        generated(engine, asked)
        assert seeing_of(engine).computed == len(self.sizes) + 1

    @alike
    def test_a_request_whose_pixels_are_gone_fails_alone(
        self, checkpoint: Path, asked: Sequence[Asked], tmp_path: Path
    ) -> None:
        with self.opened(checkpoint) as opened:
            engine = Engine.load(opened)
        lost = SeeingTokens(asked[1].ids)
        gone, images = str(tmp_path / "none"), images_of(asked[1].ids)
        lost.images = tuple(attrs.evolve(image, path=gone) for image in images)
        outputs = run(engine, [lost, asked[0].ids, asked[4].ids])
        assert outputs[0][-1].error_kind == "NonFiniteError"
        assert [o.token_id for o in outputs[1]] == asked[0].wanted
        assert [o.token_id for o in outputs[2]] == asked[4].wanted
        [answer], [cached] = generated(engine, asked[1:2])
        assert answer == asked[1].wanted and cached <= 16, "what is before the image may be left"

    @alike
    @pytest.mark.parametrize("far", [False, True], ids=["", "--nodes"])
    @pytest.mark.parametrize("shared", ["--tp", "--pp"])
    def test_ranks_see_as_one_process_does(
        self, shared: str, far: bool, checkpoint: Path, asked: Sequence[Asked], monkeypatch: Any
    ) -> None:
        """Ranks that share each layer, or as many pipeline stages as there can be, at most
        four: those after the first one have an encoder only if their layers read features of it."""
        if far:
            as_other_machines(monkeypatch)
        catalog = torch_only()
        with self.opened(checkpoint) as opened:
            divided = catalog.architecture(opened.plan.architecture).item.divides
            stages = min(4, len(stage_starts(opened.config)))
        if not divided:
            pytest.skip("the architecture does not divide")
        limits: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 8, "memory": "4GiB"}
        limits |= {"dtype": "float32", "device": "cpu"}
        ranks = 1 if shared == "--pp" else 2
        limits |= {"pp": stages} if shared == "--pp" else {}
        engine = load_shared(checkpoint, catalog, ranks, **limits)
        try:
            assert generated(engine, asked)[0] == [each.wanted for each in asked]
        finally:
            engine.close()

    @alike
    def test_a_stage_has_an_encoder_if_its_layers_read_of_it(self, checkpoint: Path) -> None:
        """Weights are within 5 % of what is planned for each of two stages."""
        with self.opened(checkpoint) as opened:
            divided = torch_only().architecture(opened.plan.architecture).item.divides
            if not divided or len(stage_starts(opened.config)) < 2:
                pytest.skip("the family has no pipeline stages, or the toy one layer")
        with self.opened(checkpoint, pp=2, nodes=2, memory="4GiB") as opened:
            assert opened.plan.media
        nobody: Any = object()
        with self.opened(checkpoint, pp=2, memory="4GiB") as opened:
            assert (ranks := opened.plan.ranks) is not None
            for rank in range(2):
                use, plan = ranks.pipeline[1 - rank], plan_of_stage(opened.plan, 1 - rank)
                part = attrs.evolve(opened, plan=plan, rank=rank, communicator=nobody)
                model = load_model(part)
                reads = any(isinstance(module, DeepstackLayer) for module in model.modules())
                assert bool(_encoders(model)) == (rank == 1 or reads)
                assert held_bytes(model) == pytest.approx(use.weight_bytes, rel=0.05)

    @alike
    @pytest.mark.parametrize("to", ["fp8", "gptq-int4"])
    def test_a_quantized_copy_has_the_same_encoder(
        self, to: str, checkpoint: Path, tmp_path: Path
    ) -> None:
        """Of the text model matrices are quantized, where they fit; the encoder stays as it is."""
        if not any(o.item.name == to for o in installed().of("inferno_writers")):
            pytest.skip(f"no plugin writes {to}")
        try:
            convert(str(checkpoint), to, tmp_path / to)
        except UnsupportedError as error:
            assert "no matrix can be quantized" in error.cause, error
            pytest.skip("its matrices are too small")
        models = []
        for path in (checkpoint, tmp_path / to):
            with self.opened(path) as opened:
                assert opened.plan.media
                models.append(load_model(opened))
        before, after = map(_encoders, models)
        assert before and before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]), name

    def test_it_is_not_written_as_one_file(self, checkpoint: Path, tmp_path: Path) -> None:
        """GGUF files keep an encoder apart."""
        if not any(o.item.name == "q8_0" for o in installed().of("inferno_writers")):
            pytest.skip("no plugin writes GGUF files")
        with pytest.raises(UnsupportedError, match="a second file, which is not written"):
            convert(str(checkpoint), "q8_0", tmp_path / "model.gguf")

    def test_the_plan_says_how_images_are_seen(self, checkpoint: Path) -> None:
        with self.opened(checkpoint, max_image_tokens=30) as opened:
            plan = opened.plan
        assert plan.images is not None and plan.images.most_tokens == (self.span or 30)
        assert plan.images.num_parameters > 0
        assert {"image encoder", "images"} <= {item.name for item in plan.memory}
        assert not any("images are off" in note for note in plan.notes)


def _encoders(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a loaded model's encoders, by name."""
    encoders = [e for e in model.named_modules() if isinstance(e[1], MediaEncoder)]
    return {
        f"{path}.{name}": tensor
        for path, encoder in encoders
        for name, tensor in (*encoder.named_parameters(), *encoder.named_buffers())
    }


def seeing_of(engine: Engine) -> Seeing:
    """Return the engine's part of steps that computes images."""
    runner: Any = engine._runner
    return next(part for part in runner._parts if isinstance(part, Seeing))


def run(engine: Engine, prompts: Sequence[Any]) -> list[list[Any]]:
    """Return the outputs of greedy answers to all prompts at once."""
    outputs: dict[str, list[Any]] = {str(i): [] for i in range(len(prompts))}
    for i, ids in enumerate(prompts):
        engine.submit(
            Request(
                id=str(i),
                token_ids=tuple(ids),
                images=images_of(ids),
                params=SamplingParams(temperature=0, max_tokens=LENGTH),
            )
        )
    while engine.busy:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.check()
    return list(outputs.values())


def generated(engine: Engine, asked: Sequence[Asked]) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of the answers, and how many of each prompt were cached."""
    outputs = run(engine, [each.ids for each in asked])
    tokens = [[output.token_id for output in each] for each in outputs]
    return tokens, [each[0].num_cached for each in outputs]


__all__ = ["ImageTests", "Picture", "SeeingToy", "picture_file"]
