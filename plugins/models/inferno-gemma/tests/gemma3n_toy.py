"""A toy of Gemma 3n that sees and hears, for several test files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from inferno.configs import FULL, SLIDING
from inferno.testing import SeeingToy, like_trained, transformers_model
from inferno_gemma.mobilenet import MobileNet
from inferno_gemma.mobilenet_config import MobileNetConfig

PIXELS, TOKENS, HEARD = 128, 16, 12
"""Of an image's side; positions of an image and of audio."""
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3nForConditionalGeneration"],
    "model_type": "gemma3n",
    "text_config": {
        "model_type": "gemma3n_text",
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": [96, 96, 64, 96],
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "sliding_window": 24,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 144,
        "altup_num_inputs": 3,
        "laurel_rank": 64,
        "activation_sparsity_pattern": [0.6, 0.6, 0.0, 0.0],
    },
    "vision_config": {
        "model_type": "gemma3n_vision",
        "architecture": "mobilenetv5_300m_enc",
        "model_args": {"channel_multiplier": 0.0625, "msfa_output_resolution": 4},
        "vocab_size": 8,
        "vocab_offset": 144,
    },
    "audio_config": {
        "model_type": "gemma3n_audio",
        "hidden_size": 32,
        "vocab_size": 8,
        "vocab_offset": 152,
        "input_feat_size": 16,
        "conf_num_attention_heads": 4,
        "conf_num_hidden_layers": 2,
        "sscp_conv_channel_size": [16, 8],
    },
    "vision_soft_tokens_per_image": TOKENS,
    "audio_soft_tokens_per_image": HEARD,
    "boi_token_id": 141,
    "boa_token_id": 142,
    "eoi_token_id": 144,
    "tie_word_embeddings": False,  # else such a toy says its last token again, whatever it sees
    "image_token_id": 145,
    "eoa_token_id": 152,
    "audio_token_id": 153,
}


def drawn(model: nn.Module) -> nn.Module:
    """Fill the module's parameters with random numbers, of the size of trained ones: of others, one
    rounded in its last digit may change all results. All are exact in bfloat16."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for param in model.parameters():
            noise = torch.randn(param.shape, generator=generator)
            noise = noise / param[0].numel() ** 0.5 if param.ndim > 1 else 1 + 0.1 * noise
            param.copy_(noise.bfloat16())
    return model


class _Tower(nn.Module):
    """What transformers makes of timm's module, of the plugin's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        fields = {**CONFIG, "vision_config": {**CONFIG["vision_config"], **config.to_dict()}}
        self.timm_model = MobileNet(MobileNetConfig.from_json(fields))

    def forward(self, pixel_values: Tensor, **more: Any) -> Any:
        rows = [self.timm_model(each[None]) for each in pixel_values]
        return SimpleNamespace(last_hidden_state=torch.cat(rows))


@contextmanager
def encoder_of_images() -> Iterator[None]:
    """transformers makes the encoder by timm, where it is not installed by the plugin's module:
    what that computes is compared in test_mobilenet.py."""
    from transformers.models.gemma3n import modeling_gemma3n

    if find_spec("timm") is not None:
        yield
        return
    auto: Any = vars(modeling_gemma3n)["AutoModel"]

    def made(config: Any, **how: Any) -> Any:
        seen = config.model_type == "gemma3n_vision"
        return _Tower(config) if seen else auto.from_config(config, **how)

    with mock.patch.object(modeling_gemma3n, "AutoModel", SimpleNamespace(from_config=made)):
        yield


def _one_by_one(hear: Any, features: Tensor, masked: Tensor, **more: Any) -> Any:
    """transformers fills all audio of a prompt to the longest, which changes the last positions of
    the others: what one piece is heard as does not depend on others here."""
    heard = [hear(f[~m][None], m[~m][None], **more) for f, m in zip(features, masked, strict=True)]
    return SimpleNamespace(
        pooler_output=pad_sequence([each.pooler_output[0] for each in heard], batch_first=True),
        audio_mel_mask=pad_sequence(
            [each.audio_mel_mask[0] for each in heard], batch_first=True, padding_value=True
        ),
    )


class Gemma3n(SeeingToy):
    head = "AutoModelForMultimodalLM"
    config = CONFIG
    span = TOKENS
    opening: ClassVar[Mapping[str, Sequence[int]]] = {"image": (141, 144), "audio": (142, 152)}
    """With tokens whose embeddings belong to the encoders."""

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> Any:
        with encoder_of_images():
            model: Any = transformers_model(cls.config, cls.head)
        like_trained(model)
        inside = model.model
        drawn(inside.vision_tower.timm_model)
        inside.get_audio_features = partial(_one_by_one, inside.get_audio_features)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("seeing")
        reference.save_pretrained(path)
        size = {"size": {"height": PIXELS, "width": PIXELS}, "feature_size": 16}
        (path / "preprocessor_config.json").write_text(json.dumps(size))
        return path

    def inputs_of(self, images: Sequence[Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        from transformers.models.gemma3n.feature_extraction_gemma3n import (
            Gemma3nAudioFeatureExtractor,
        )
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

        inputs: dict[str, Any] = {}
        if seen := [each for each in images if not isinstance(each, np.ndarray)]:
            size = {"height": PIXELS, "width": PIXELS}
            prepare = SiglipImageProcessorPil(size=size, resample=2, do_normalize=False)
            inputs |= prepare(images=seen, return_tensors="pt")
        if heard := [each for each in images if isinstance(each, np.ndarray)]:
            extract = Gemma3nAudioFeatureExtractor(feature_size=16)
            pieces = [extract([each], return_tensors="pt") for each in heard]
            inputs |= {
                name: pad_sequence([piece[name][0] for piece in pieces], batch_first=True)
                for name in ("input_features", "input_features_mask")
            }
        return inputs
