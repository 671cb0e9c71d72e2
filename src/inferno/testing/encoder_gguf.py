"""What an encoder must do with GGUF files of its models, where it has a dialect of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from safetensors.torch import save_file
from torch import Tensor

from inferno.catalog import Catalog, find_architecture
from inferno.configs import RopeConfig
from inferno.plan import Plan
from inferno.request.requests import Reduction
from inferno.testing.alike import alike
from inferno.testing.converting import convert
from inferno.testing.gguf import check_names, gguf_dialect, recast, write_gguf
from inferno.testing.gguf_twins import checkpoint_tensors, tiny_tokenizer
from inferno.testing.installed import Installed
from inferno.testing.pooled import embedded
from inferno.testing.tiny import Toy, assert_close, load_toy, plan_of, torch_only


class EncoderGguf(Installed):
    """The part of `EncoderTests` that writes the toy as a GGUF file."""

    config: ClassVar[dict[str, Any]]
    in_gguf: ClassVar[bool] = True
    """Whether GGUF files can say this config; asked where the architecture has a dialect of
    them."""
    gguf_unsaid: ClassVar[frozenset[str]] = frozenset()
    """Fields of the model's config that files do not store and that change no vector."""
    gguf_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of the dialect that `config.json` has not, as llama.cpp's converter writes them."""

    @classmethod
    def reduction(cls) -> Reduction:
        return "score" if str(cls.config["architectures"][0]).endswith("Classification") else "mean"

    @alike
    @pytest.mark.parametrize("kind", ["F16", "Q8_0"])
    def test_a_gguf_file_gives_the_same_vectors(
        self,
        kind: str,
        toy: Toy,
        reference: Any,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        """The same numbers from both formats, those that the file's types can hold, by torch; with
        the kernels that are installed, which may round activations, nearly."""
        tensors = self.written(tmp_path / "toy.gguf", kind, toy, reference, catalog)
        twin = tmp_path / "twin"
        twin.mkdir()
        save_file({n: t.contiguous() for n, t in tensors.items()}, twin / "model.safetensors")
        (twin / "config.json").write_text(json.dumps({**self.config, "dtype": "float32"}))
        exact, how = torch_only(), self.reduction()
        fast, ours, theirs = (
            embedded(load_toy(tmp_path / path, offers, dtype="float32"), prompts, how)
            for path, offers in (("toy.gguf", catalog), ("toy.gguf", exact), ("twin", exact))
        )
        assert_close(ours, theirs)
        off = float((fast - theirs).norm() / theirs.norm())
        assert off < 0.05, f"the vectors differ by {off:.3f} of their length"

    @alike
    def test_a_gguf_file_has_the_config_that_the_model_reads(
        self, toy: Toy, reference: Any, catalog: Catalog, tmp_path: Path
    ) -> None:
        """Field by field; rotary embeddings, of which files store other numbers, by the vectors."""
        self.written(tmp_path / "toy.gguf", "F16", toy, reference, catalog)
        converted, read = (
            attrs.asdict(_config(plan, catalog), recurse=False)
            for plan in (plan_of(tmp_path / "toy.gguf", catalog), toy.plan)
        )
        ours, theirs = (
            {
                name: value
                for name, value in fields.items()
                if name not in self.gguf_unsaid and not isinstance(value, RopeConfig)
            }
            for fields in (converted, read)
        )
        assert ours == theirs

    @alike
    def test_a_gguf_file_that_inferno_writes_gives_the_same_vectors(
        self,
        toy: Toy,
        checkpoint: Path,
        catalog: Catalog,
        prompts: list[list[int]],
        tmp_path: Path,
    ) -> None:
        if gguf_dialect(catalog, toy.plan.architecture) is None or not self.in_gguf:
            pytest.skip("no dialect of GGUF files, or they cannot say this config")
        folder = Path(shutil.copytree(checkpoint, tmp_path / "source"))
        (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
        path = tmp_path / "written.gguf"
        convert(str(folder), "f32", path, catalog=catalog)
        how, exact = self.reduction(), torch_only()
        ours, theirs = (
            embedded(load_toy(source, exact), prompts, how) for source in (path, checkpoint)
        )
        assert_close(ours, theirs)

    def test_names_in_gguf_files_are_those_of_llama_cpp(self, catalog: Catalog) -> None:
        dialects = find_architecture(catalog, self.config).item.dialects
        if "gguf" not in dialects:
            pytest.skip("no dialect of GGUF files")
        pytest.importorskip("gguf")
        dialect = dialects["gguf"]
        assert [name for each in (dialect, *dialect.variants) for name in check_names(each)] == []

    def written(
        self, path: Path, kind: str, toy: Toy, reference: Any, catalog: Catalog
    ) -> dict[str, Tensor]:
        """Write the toy as llama.cpp's converter does. Returns the values that the file holds, by
        the model's names. Skips the test if no file can say it."""
        dialect = gguf_dialect(catalog, toy.plan.architecture, self.config)
        if not self.in_gguf or dialect is None:
            pytest.skip("GGUF files cannot say this config, or no plugin reads them")
        known = {**reference.config.to_dict(), **self.config}
        inverted = dialect.inverse(known) if dialect.inverse is not None else {}
        _, tensors = recast(dialect, toy.plan.config, checkpoint_tensors(toy, catalog))
        fields = {**known, **inverted, **self.gguf_fields}
        return write_gguf(path, dialect, fields, tensors, kind)


def _config(plan: Plan, catalog: Catalog) -> Any:
    return find_architecture(catalog, plan.config).item.config(plan.config)
