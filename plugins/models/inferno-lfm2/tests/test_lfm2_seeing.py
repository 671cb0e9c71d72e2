"""LFM2-VL and LFM2.5-VL with images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.errors import CheckpointError
from inferno.testing import EncoderFileTests, ImageTests, SeeingToy, load_toy
from inferno_lfm2.images import is_large, processor, scaled_size, tile_grid
from inferno_lfm2.vision_config import SeeingLfm2Config, Tiling, VisionConfig, grid_of
from inferno_lfm2.vision_gguf import LFM2_ENCODER

pytest.importorskip("PIL")

CONFIG: dict[str, Any] = {
    "architectures": ["Lfm2VlForConditionalGeneration"],
    "model_type": "lfm2_vl",
    "do_image_splitting": True,
    "downsample_factor": 2,
    "encoder_patch_size": 4,
    "image_token_id": 150,
    "max_image_tokens": 12,
    "max_pixels_tolerance": 2.0,
    "max_tiles": 10,
    "min_image_tokens": 4,
    "min_tiles": 2,
    "projector_bias": True,
    "projector_hidden_act": "gelu",
    "projector_hidden_size": 48,
    "text_config": {
        "model_type": "lfm2",
        "block_multiple_of": 32,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "eos_token_id": 2,
        "hidden_size": 64,
        "intermediate_size": 144,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "max_position_embeddings": 256,
        "norm_eps": 1e-05,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "vocab_size": 264,
    },
    "tile_size": 16,
    "tie_word_embeddings": False,  # else such a toy says its last token again, whatever it sees
    "use_image_special_tokens": True,
    "use_thumbnail": True,
    "vision_config": {
        "model_type": "siglip2_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_patches": 36,
        "patch_size": 4,
        "vision_use_head": False,
    },
    "vision_feature_layer": -1,
}
"""Every field that LFM2-VL-1.6B's config.json has, beside the text model's."""


def read(config: Mapping[str, Any], **damage: Any) -> SeeingLfm2Config:
    """Read a config with the text model's fields beside the others, as the model does."""
    return SeeingLfm2Config.from_json({**config, **config["text_config"], **damage})


class Lfm2Seeing(SeeingToy):
    sizes = ((64, 48), (20, 64), (30, 25))

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        config = read(self.config)
        prepare = processor(config, {}, 4096)
        pixels, shapes = list[torch.Tensor](), list[tuple[int, int]]()
        for image in images:
            prepared = prepare(image)
            parts = config.parts(prepared.grid)
            values = torch.from_numpy(prepared.values)
            pixels += values.split([rows * columns for rows, columns in parts])
            shapes += parts
        lengths = torch.tensor([len(each) for each in pixels])
        return {
            "pixel_values": torch.nn.utils.rnn.pad_sequence(pixels, batch_first=True),
            "pixel_attention_mask": (torch.arange(int(lengths.max())) < lengths[:, None]).int(),
            "spatial_shapes": torch.tensor(shapes),
        }


class TestLfm2VL(Lfm2Seeing, ImageTests):
    """LFM2-VL-1.6B with its images: whole ones, and one in six tiles that the whole follows."""

    config = CONFIG

    def test_the_first_checkpoints_call_parts_otherwise(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        """The model's type, the token of images, and the path of the encoder."""
        fields = json.loads((checkpoint / "config.json").read_text())
        fields |= {"model_type": "lfm2-vl", "image_token_index": fields.pop("image_token_id")}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        tower = re.compile(r"vision_tower\.(vision_model\.)?")
        tensors = load_file(checkpoint / "model.safetensors")
        renamed = {tower.sub("vision_tower.vision_model.", n): t for n, t in tensors.items()}
        save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
        saved, first = load_toy(checkpoint), load_toy(tmp_path)
        assert first.plan.images == saved.plan.images is not None
        wanted, weights = (dict(toy.model.named_parameters()) for toy in (saved, first))
        assert wanted.keys() == weights.keys()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in wanted.items())


class TestWithoutWhole(Lfm2Seeing, ImageTests):
    """LFM2-VL-450M with its images: tiles alone; and LFM2.5-VL's projector, without a norm."""

    config = {
        **CONFIG,
        "projector_use_layernorm": False,
        "use_thumbnail": False,
        "vision_config": {**CONFIG["vision_config"], "vision_use_head": True},
    }


UNSAID = {"tile_size": 512, "min_image_tokens": 64, "max_image_tokens": 256}
"""Of tiles, which files do not say: all published checkpoints have these."""


class TestFiles(Lfm2Seeing, EncoderFileTests):
    """LFM2-VL-1.6B in two GGUF files, of the text model and of the encoder: images seen whole, and
    one in tiles that the whole follows."""

    config = {
        **CONFIG,
        **UNSAID,
        "encoder_patch_size": 16,
        "text_config": {**CONFIG["text_config"], "max_position_embeddings": 2048},
        "vision_config": {**CONFIG["vision_config"], "patch_size": 16},
    }
    sizes = ((300, 200), (1040, 520), (100, 330))
    text = "lfm2"
    gguf_fields = {"num_key_value_heads": [0, 2, 0, 2], "intermediate_size": 96}
    tokens = {150: "<image>"}
    looks = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = {"resample": 2}

    def opened(self, checkpoint: Path, native: bool = False, **more: Any) -> Any:
        return super().opened(checkpoint, native, **{"max_model_len": 2048, **more})

    def keys(self, vision: Any) -> Mapping[str, Any]:
        return {
            "projector_type": "lfm2",
            "use_gelu": True,
            "vision.image_size": 256,
            "vision.image_resize_algo": "bilinear",
            "vision.projector.scale_factor": 2,
        }

    def stored(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        if name == "vision_tower.embeddings.patch_embedding.weight":
            tensor = tensor.unflatten(1, (16, 16, 3)).permute(0, 3, 1, 2)
        if name.startswith("vision_tower."):  # as the first checkpoints have it
            yield name.replace("vision_tower.", "vision_tower.vision_model."), tensor
        elif name.startswith("multi_modal_projector."):
            yield name, tensor

    def test_a_merge_that_is_not_the_projector_s_is_refused(
        self, pair: Path, reference: Any, tensors: Mapping[str, Tensor], tmp_path: Path
    ) -> None:
        path = tmp_path / "encoder.gguf"
        self.write_encoder(path, reference, tensors, "F32", {"vision.projector.scale_factor": 4})
        with pytest.raises(CheckpointError, match="multi_modal_projector") as caught:
            load_toy(pair, mmproj=str(path), max_model_len=2048)
        assert caught.value.remedy


class TestFilesWithoutNorm(TestFiles):
    """LFM2.5-VL in two GGUF files: a projector without a norm, in a file that does not say how
    images are scaled, nor how many patches a token has."""

    config = {**TestFiles.config, "projector_use_layernorm": False, "projector_bias": False}
    processor = {}
    lacking = "clip.vision.projector.scale_factor (2)"

    def keys(self, vision: Any) -> Mapping[str, Any]:
        told = super().keys(vision)
        unsaid = ("vision.image_resize_algo", "vision.projector.scale_factor")
        return {name: value for name, value in told.items() if name not in unsaid}


@pytest.mark.parametrize(
    ("width", "norm", "whole"), [(768, True, False), (768, False, True), (1152, True, True)]
)
def test_of_files_only_those_of_the_450m_s_first_version_see_tiles_alone(
    width: int, norm: bool, whole: bool
) -> None:
    sizes = {"patch_size": 16, "hidden_size": width, "layers": 1, "heads": 12, "scale": 2}
    told = {"norm_weight": norm, "norm_bias": norm, "first_bias": True, "second_bias": True}
    fields = {**sizes, **told, "intermediate_size": 48, "places": 256, "inner": 2560}
    config = read(dict(LFM2_ENCODER.config(PUBLISHED["text_config"], fields)))
    assert config.tiling == Tiling(use_thumbnail=whole)
    assert config.vision.num_patches == 256 and config.vision.projector_use_layernorm is norm


@pytest.mark.parametrize(
    ("tiles", "whole"), [(None, (24, 32)), ((1, 2), None), ((2, 3), (32, 32)), ((10, 1), (2, 2))]
)
def test_what_is_in_the_place_of_an_image_is_what_transformers_writes(
    tiles: tuple[int, int] | None, whole: tuple[int, int] | None
) -> None:
    from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

    config = read(PUBLISHED)
    names = {"image_token": "<image>", "image_start_token": "<|image_start|>"}
    names |= {"image_end_token": "<|image_end|>", "image_thumbnail_token": "<|img_thumbnail|>"}
    writer = cast(Any, object.__new__(Lfm2VlProcessor))
    writer.__dict__.update(names)
    tokens = 0 if whole is None else whole[0] * whole[1] // 4
    written = writer._build_image_tokens(*(tiles or (1, 1)), 256, tokens, bool(whole), True)
    numbers = {"<image>": None, "<|img_thumbnail|>": 497}
    numbers |= {"<|image_start|>": 498, "<|image_end|>": 499}
    numbers |= {
        f"<|img_row_{row}_col_{column}|>": 386 + 10 * row + column
        for row in range(1, 11)
        for column in range(1, 11)
    }
    layout = config.image_layout(grid := grid_of(tiles, whole))
    assert layout == [numbers[each] for each in re.findall(r"<.+?>", written)]
    assert config.image_tokens(grid) == layout.count(None)


PUBLISHED: dict[str, Any] = {
    "architectures": ["Lfm2VlForConditionalGeneration"],
    "do_image_splitting": True,
    "downsample_factor": 2,
    "encoder_patch_size": 16,
    "image_token_index": 396,
    "max_image_tokens": 256,
    "max_num_patches": 1024,
    "max_pixels_tolerance": 2.0,
    "max_tiles": 10,
    "min_image_tokens": 64,
    "min_tiles": 2,
    "model_type": "lfm2-vl",
    "projector_bias": True,
    "projector_hidden_act": "gelu",
    "projector_hidden_size": 2560,
    "tile_size": 512,
    "use_image_special_tokens": True,
    "use_thumbnail": False,
    "vision_config": {
        "attention_dropout": 0.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-06,
        "model_type": "siglip2_vision_model",
        "num_attention_heads": 12,
        "num_channels": 3,
        "num_hidden_layers": 12,
        "num_patches": 256,
        "patch_size": 16,
        "torch_dtype": "bfloat16",
        "vision_use_head": False,
    },
    "vision_feature_layer": -1,
    "text_config": {
        "model_type": "lfm2",
        "hidden_size": 1024,
        "block_ff_dim": 6656,
        "block_auto_adjust_ff_dim": True,
        "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-05,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "vocab_size": 65536,
    },
}
"""LFM2-VL-450M's first config.json, with two of its layers."""


def test_settings_are_those_of_the_newer_file_then_of_the_config() -> None:
    from PIL import Image

    config = read(PUBLISHED)
    image = Image.new("RGB", (2560, 1440))
    assert config.tiling == Tiling(use_thumbnail=False) and config.image_token_id == 396
    assert processor(config, {}, 4096)(image).grid == grid_of((2, 4), None)
    newer = {"use_thumbnail": True, "max_image_tokens": None, "size": {"height": 512, "width": 512}}
    assert processor(config, newer, 4096)(image).grid == grid_of((2, 4), (24, 42))
    whole = processor(config, {**newer, "do_image_splitting": False}, 4096)(image)
    assert whole.grid == grid_of(None, (24, 42)) and whole.values.shape == (24 * 42, 768)
    with pytest.raises(CheckpointError, match="tile_size"):
        processor(config, {"tile_size": 256}, 4096)


@pytest.mark.parametrize(
    ("size", "scaled", "tiles"),
    [
        ((1440, 2560), (384, 672), (2, 4)),
        ((768, 1024), (416, 576), (2, 3)),
        ((2187, 1695), (576, 448), (3, 2)),
        ((725, 725), (512, 512), (2, 2)),
        ((512, 512), (512, 512), None),
        ((10, 10), (256, 256), None),
        ((20, 3000), (32, 3008), None),
        ((5000, 100), (3616, 64), None),
        ((10, 90000), (32, 48544), (1, 10)),
    ],
)
def test_an_image_is_scaled_and_cut_as_in_training(
    size: tuple[int, int], scaled: tuple[int, int], tiles: tuple[int, int] | None
) -> None:
    """As transformers' processor does it, which gave these."""
    tiling, vision = Tiling(), VisionConfig()
    assert scaled_size(size, tiling, vision) == scaled
    assert is_large(size, tiling, vision) == (tiles is not None)
    assert tiles is None or tile_grid(size, tiling) == tiles


@pytest.mark.slow
def test_a_number_of_tokens_that_may_not_be_exceeded_leaves_fewer_tiles() -> None:
    from PIL import Image

    config = read(PUBLISHED)
    settings = {"use_thumbnail": True}
    for most in (16, 64, 255, 256, 512, 767, 768, 1500, 2816, 4096):
        prepare = processor(config, settings, most)
        for size in ((1, 1), (31, 33), (640, 480), (3000, 2000), (480, 1920), (5000, 5000)):
            pixels = prepare(Image.new("RGB", size, (9, 99, 200)))
            count = config.image_tokens(pixels.grid)
            assert 1 <= count == config.image_layout(pixels.grid).count(None) <= most
            assert pixels.values.shape == (count * 4, 3 * 16**2)
    assert pixels.grid == grid_of((3, 3), (32, 32))


def test_colours_of_a_patch_are_one_pixel_after_the_other() -> None:
    from PIL import Image

    config = read(CONFIG)
    drawn = np.random.default_rng(5).integers(0, 256, (16, 24, 3), np.uint8)
    pixels = processor(config, {"image_std": [0.25] * 3}, 4096)(Image.fromarray(drawn))
    assert pixels.grid == grid_of(None, (4, 6))
    second = drawn[:4, 4:8].reshape(-1)
    np.testing.assert_allclose(pixels.values[1], (second / 255 - 0.5) / 0.25, atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"model_type": "qwen2"}, "model_type"),
        ({"vocab_size": 253}, "tokens up to 253 of 253"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act"),
        ({"vision_feature_layer": -2}, "vision_feature_layer"),
        ({"use_image_special_tokens": False}, "use_image_special_tokens"),
        ({"downsample_factor": 0}, "downsample_factor"),
        ({"tile_size": 20}, "tile_size is 20"),
        ({"min_image_tokens": 13}, "13 to 12"),
        ({"max_tiles": 11}, "max_tiles 11"),
        ({"min_tiles": 0}, "min_tiles"),
        ({"max_pixels_tolerance": 0}, "max_pixels_tolerance"),
        ({"vision_config": {**CONFIG["vision_config"], "num_patches": 35}}, "num_patches is 35"),
        ({"vision_config": {**CONFIG["vision_config"], "hidden_act": "relu"}}, "hidden_act"),
        ({"vision_config": {**CONFIG["vision_config"], "hidden_size": 33}}, "hidden_size 33"),
        ({"vision_config": {**CONFIG["vision_config"], "num_channels": 1}}, "num_channels"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_field(
    damage: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(CONFIG, **damage)
