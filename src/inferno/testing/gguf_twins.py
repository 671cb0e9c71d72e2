"""What an architecture must do with GGUF files of its models, where it has a dialect of them.

Suffixes: N generated tokens, V vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from safetensors.torch import save_file
from torch import Tensor

from inferno.catalog import Catalog
from inferno.configs import RopeConfig
from inferno.errors import UnsupportedError
from inferno.plan import reopen, unused_tensors
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf import check_names, gguf_dialect, recast, write_gguf
from inferno.testing.installed import Installed
from inferno.testing.tiny import Outcome, Toy, assert_close, generate, load_toy, torch_only

NUM_GGUF = 32


class GgufTwins(Installed):
    """The part of `ArchitectureTests` that writes the toy as a GGUF file."""

    config: ClassVar[dict[str, Any]]
    rerouted: ClassVar[bool]
    dtype_tolerance: ClassVar[Mapping[str, float]]
    in_gguf: ClassVar[bool] = True
    """Whether GGUF files can say this config; asked where the architecture has a dialect of
    them."""
    gguf_kernels: ClassVar[bool] = True
    """Whether what kernels compute of a file is compared too: not where their rounding sends most
    prompts to other experts, and another class compares it with all of them."""
    gguf_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of the dialect that `config.json` has not, as llama.cpp's converter writes them."""
    gguf_written: ClassVar[bool] = True
    """Whether `inferno convert` can write it as GGUF; False if files would change its config."""
    gguf_unsaid: ClassVar[frozenset[str]] = frozenset()
    """Fields of the model's config that files do not store and that change no token."""
    gguf_like: ClassVar[str] = ""
    """Where llama.cpp has the architecture and the installed gguf-py does not yet: one of gguf-py's
    with the same tensors."""

    @alike
    @pytest.mark.parametrize("kind", ["F16", "Q8_0"])
    def test_a_gguf_file_gives_the_same_tokens(
        self,
        kind: str,
        toy: Toy,
        reference: Any,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """The same numbers from both formats, those that the file's types can hold, as torch
        computes them; with the kernels that are installed, which may round activations to 8 bits as
        llama.cpp does, the same choices wherever one is clear."""
        dialect = gguf_dialect(catalog, toy.plan.architecture, self.config)
        if not self.in_gguf or dialect is None:
            pytest.skip("GGUF files cannot say this config, or no plugin reads them")
        known = reference.config.to_dict() if hasattr(reference, "config") else {}
        twin_config, tensors = recast(dialect, self.config, checkpoint_tensors(toy, catalog))
        config = {**known, **twin_config, **self.gguf_fields}
        twin = tmp_path / "twin"
        twin.mkdir()
        data = write_gguf(tmp_path / "toy.gguf", dialect, config, tensors, kind)
        save_file(
            {name: tensor.contiguous() for name, tensor in data.items()}, twin / "model.safetensors"
        )
        (twin / "config.json").write_text(json.dumps({**twin_config, "dtype": "float32"}))
        exact = torch_only()
        fast, ours, theirs = (
            generate(load_toy(tmp_path / path, offers), prompts, NUM_GGUF)
            for path, offers in (("toy.gguf", catalog), ("toy.gguf", exact), ("twin", exact))
        )
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one.logits_NV[0], other.logits_NV[0])
            assert one.token_ids == other.token_ids
        if not self.gguf_kernels:
            return
        unclear = [
            self.dtype_tolerance["bfloat16"] * float(outcome.logits_NV.std()) for outcome in theirs
        ]
        off = [
            float((one.logits_NV[0] - other.logits_NV[0]).abs().max())
            for one, other in zip(fast, theirs, strict=True)
        ]
        beyond = sum(difference > least for difference, least in zip(off, unclear, strict=True))
        most = len(off) // 2 if self.rerouted else 0
        assert beyond <= most, f"the first tokens' logits differ by {off}; {unclear} is unclear"
        lost = [_lost(one, other) for one, other in zip(fast, theirs, strict=True)]
        beyond = sum(loss > least for loss, least in zip(lost, unclear, strict=True))
        assert not beyond or self.rerouted, (
            f"first other choices lie {lost} below the best; {unclear} is unclear"
        )

    @alike
    def test_a_gguf_file_has_the_config_that_the_model_reads(
        self, toy: Toy, reference: Any, catalog: Catalog, tmp_path: Path
    ) -> None:
        """Field by field; rotary embeddings, of which files store other numbers, by the tokens."""
        dialect = gguf_dialect(catalog, toy.plan.architecture, self.config)
        architecture = catalog.architecture(toy.plan.architecture).item
        read: Any = architecture.config(self.config)
        if not self.in_gguf or dialect is None or not attrs.has(type(read)):
            pytest.skip("GGUF files cannot say this config, or no plugin reads them")
        known = reference.config.to_dict() if hasattr(reference, "config") else {}
        model_config, tensors = recast(dialect, self.config, checkpoint_tensors(toy, catalog))
        fields = {**known, **model_config, **self.gguf_fields}
        write_gguf(tmp_path / "toy.gguf", dialect, fields, tensors, "F16")
        _, opened = catalog.open(tmp_path / "toy.gguf")
        config = {**opened.config}
        opened.close()
        [name] = config["architectures"]
        converted: Any = catalog.architecture(name).item.config(config)
        assert name == self.config["architectures"][0]
        ours, theirs = (
            {
                field: value
                for field, value in attrs.asdict(model, recurse=False).items()
                if field not in self.gguf_unsaid and not isinstance(value, RopeConfig)
            }
            for model in (converted, read)
        )
        assert ours == theirs

    @alike
    def test_a_gguf_file_that_inferno_writes_gives_the_same_tokens(
        self,
        toy: Toy,
        checkpoint: Path,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """In float32, which changes no value; or the conversion is refused with a reason."""
        if gguf_dialect(catalog, toy.plan.architecture) is None:
            pytest.skip("no dialect of GGUF files")
        folder = Path(shutil.copytree(checkpoint, tmp_path / "source"))
        (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
        path = tmp_path / "written.gguf"
        if not (self.in_gguf and self.gguf_written):
            with pytest.raises(UnsupportedError) as caught:
                convert(str(folder), "f32", path, catalog=catalog)
            assert caught.value.cause and caught.value.remedy and not path.exists()
            return
        convert(str(folder), "f32", path, catalog=catalog)
        exact = torch_only()
        ours, theirs = (
            generate(load_toy(source, exact), prompts, NUM_GGUF) for source in (path, checkpoint)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one.logits_NV, other.logits_NV)
            assert one.token_ids == other.token_ids

    def test_names_in_gguf_files_are_those_of_llama_cpp(self, catalog: Catalog) -> None:
        dialects = catalog.architecture(self.config["architectures"][0]).item.dialects
        if "gguf" not in dialects:
            pytest.skip("no dialect of GGUF files")
        pytest.importorskip("gguf")
        dialect = dialects["gguf"]
        every = (dialect, *dialect.variants)
        assert [name for each in every for name in check_names(each, self.gguf_like)] == []


def tiny_tokenizer() -> bytes:
    """A byte-level `tokenizer.json` of a few tokens, for models with few embeddings."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    letters = ["a", "b", "c", "d", "e", "\u0120"]
    vocab = {token: i for i, token in enumerate([*letters, "ab", "<|end|>"])}
    end = {"id": 7, "content": "<|end|>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
    }
    return json.dumps(document).encode()


def checkpoint_tensors(toy: Toy, catalog: Catalog) -> dict[str, Tensor]:
    """What the model reads of its checkpoint."""
    with reopen(toy.plan, catalog) as opened:
        checkpoint, unused = opened.checkpoint, unused_tensors(opened.config)
        names = [n for n in checkpoint.tensors if not any(fnmatchcase(n, p) for p in unused)]
        return {name: checkpoint.read(name) for name in names}


def _lost(ours: Outcome, theirs: Outcome) -> float:
    """How far below their choice their logits have ours, where the two first differ; 0 where they
    never do."""
    pairs = zip(ours.token_ids, theirs.token_ids, theirs.logits_NV, strict=True)
    return next(
        (float(logits_V[other] - logits_V[one]) for one, other, logits_V in pairs if one != other),
        0.0,
    )
