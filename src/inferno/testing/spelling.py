"""Models that a family computes under another class: what every plugin must do that declares one
(`contracts.Spelling`).

Suffixes: V vocabulary.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from inferno.catalog import Catalog, load_catalog
from inferno.contracts import text_config
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf import check_names
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno.testing.reference import assert_torch_free, reference_logits, transformers_model
from inferno.testing.tiny import (
    Toy,
    generate,
    load_toy,
    ragged_prompts,
    torch_only,
)
from inferno.testing.trained_weights import like_trained

_TOKENS = 12
_FAR = 1e-3
"""Standard deviations of the logits by which one may differ from transformers'."""


class SpellingTests:
    """Set `config` to a toy `config.json` of the other class, with its own names of fields, `twin`
    to the `config.json` of the same model in the family's class, and define `stored`. The reference
    is transformers' model of the twin, with weights like trained ones."""

    config: ClassVar[Mapping[str, Any]]
    twin: ClassVar[Mapping[str, Any]]

    def stored(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the twin's tensors as checkpoints of the other class have them."""
        raise NotImplementedError

    def prepare(self, reference: nn.Module) -> None:
        """Change the twin's weights to those of a model that the other class can store."""

    def expected(self, reference: nn.Module) -> None:
        """Change the twin's values where the other class computes with others than it stores."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog()

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        model = transformers_model(cls.twin)
        like_trained(model)
        cls().prepare(model)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def folders(cls, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
        """The other class's checkpoint, and the twin's."""
        ours, theirs = (tmp_path_factory.mktemp(name) for name in ("other", "twin"))
        tests = cls()
        reference.save_pretrained(ours)
        tensors = tests.stored(load_file(ours / "model.safetensors"))
        for file in ours.iterdir():
            file.unlink()
        kept = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(kept, ours / "model.safetensors")
        (ours / "config.json").write_text(json.dumps({**cls.config, "dtype": "float32"}))
        tests.expected(reference)
        reference.save_pretrained(theirs)
        (theirs / "config.json").write_text(json.dumps({**cls.twin, "dtype": "float32"}))
        return ours, theirs

    @pytest.fixture(scope="class")
    @classmethod
    def toys(cls, folders: tuple[Path, Path], catalog: Catalog) -> tuple[Toy, Toy]:
        ours, theirs = (load_toy(folder, catalog) for folder in folders)
        return ours, theirs

    def test_it_gives_the_tokens_and_the_bits_of_its_twin(self, toys: tuple[Toy, Toy]) -> None:
        prompts = ragged_prompts(self._vocabulary(toys))
        outcomes = (generate(toy, prompts, _TOKENS) for toy in toys)
        for ours, theirs in zip(*outcomes, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert torch.equal(ours.logits_NV, theirs.logits_NV)

    def test_it_gives_the_logits_of_transformers(
        self, toys: tuple[Toy, Toy], reference: nn.Module
    ) -> None:
        prompts = ragged_prompts(self._vocabulary(toys))
        for prompt, outcome in zip(prompts, generate(toys[0], prompts), strict=True):
            theirs_V = reference_logits(reference, prompt)[-1]
            far = (outcome.logits_NV[0] - theirs_V).abs().max() / theirs_V.std()
            assert far < _FAR, f"after {len(prompt)} tokens"

    def test_the_plans_differ_in_the_class_alone(self, toys: tuple[Toy, Toy]) -> None:
        named = [
            [(each.kind, each.name) for each in toy.plan.chosen if each.kind != "architecture"]
            for toy in toys
        ]
        assert named[0] == named[1]
        assert toys[0].plan.max_model_len == toys[1].plan.max_model_len

    @alike
    def test_a_gguf_file_of_its_class_gives_its_tokens(
        self, toys: tuple[Toy, Toy], folders: tuple[Path, Path], catalog: Catalog, tmp_path: Path
    ) -> None:
        """As `inferno convert` writes it, with the names that llama.cpp has for the class."""
        name = toys[0].plan.architecture
        if (dialect := catalog.architecture(name).item.dialects.get("gguf")) is None:
            pytest.skip("no plugin reads GGUF files of it")
        assert not [*check_names(dialect)]
        folder = Path(shutil.copytree(folders[0], tmp_path / "source"))
        (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
        convert(str(folder), "f32", path := tmp_path / "toy.gguf", catalog=catalog)
        exact = torch_only()
        file, checkpoint = (load_toy(source, exact) for source in (path, folders[0]))
        assert file.plan.architecture == name
        prompts = ragged_prompts(self._vocabulary(toys))
        outcomes = (generate(toy, prompts, _TOKENS) for toy in (file, checkpoint))
        for ours, theirs in zip(*outcomes, strict=True):
            far = (ours.logits_NV - theirs.logits_NV).abs().max() / theirs.logits_NV.std()
            assert far < _FAR and ours.token_ids == theirs.token_ids

    @alike
    def test_configs_are_read_without_torch(self) -> None:
        """Checked for all classes of a test file in one process."""
        module = vars(sys.modules[type(self).__module__]).values()
        classes = [c for c in module if isinstance(c, type) and issubclass(c, SpellingTests)]
        configs = [c.config for c in {type(self), *classes} if hasattr(c, "config")]
        assert_torch_free(tuple(sorted(json.dumps(text_config(c) or c) for c in configs)))

    def _vocabulary(self, toys: tuple[Toy, Toy]) -> int:
        assert toys[0].plan.vocab_size == toys[1].plan.vocab_size
        return toys[0].plan.vocab_size


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors under names in which parts, as in "model.layers.", are replaced by others, in
    the order of `names`: for `SpellingTests.stored`."""
    changed = {}
    for name, tensor in tensors.items():
        for part, other in names.items():
            name = name.replace(part, other)
        changed[name] = tensor
    return changed


def joined(
    tensors: Mapping[str, Tensor], parts: tuple[str, ...], whole: str, groups: int = 1
) -> dict[str, Tensor]:
    """Return tensors in which those whose names contain one of `parts` are one, under the name with
    `whole` instead: the rows of each after those of the one before, in each of `groups` equal
    parts. For `SpellingTests.stored`."""
    whole_tensors = dict(tensors)
    for name in [name for name in tensors if parts[0] in name]:
        several = [whole_tensors.pop(name.replace(parts[0], part)) for part in parts]
        cut = [each.unflatten(0, (groups, -1)) for each in several]
        whole_tensors[name.replace(parts[0], whole)] = torch.cat(cut, 1).flatten(0, 1)
    return whole_tensors
