"""Tests of every checkpoint format: it returns what was written, or raises a clear error."""

from __future__ import annotations

import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferno.catalog import Catalog
from inferno.contracts import Architecture, CheckpointFormat
from inferno.errors import CheckpointError
from inferno.testing.installed import Installed
from inferno.testing.tiny import run_python

SLACK = 8 << 20
"""Maximum of bytes to read a checkpoint of a few KB, whatever its damaged headers claim."""

_repeatable = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


class CheckpointFormatTests(Installed):
    """Set `format` to its registered name, and implement `write`."""

    format: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {
        "architectures": ["ToyForCausalLM"],
        "hidden_size": 32,
        "vocab_size": 64,
    }
    architectures: ClassVar[Sequence[Architecture]] = ()
    """Architectures whose dialects translate the format's own names, if it has some."""

    def write(self, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint into the folder; return the path that a user would give."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to write, under Hugging Face's names. Override if the format translates only
        a real model's names."""
        generator = torch.Generator().manual_seed(0)
        return {
            "model.embed_tokens.weight": torch.randn(64, 32, generator=generator),
            "model.layers.0.mlp.down_proj.weight": torch.randn(
                32, 48, generator=generator
            ).bfloat16(),
            "model.layers.0.mlp.up_proj.weight": torch.randn(48, 32, generator=generator).half(),
            "model.norm.weight": torch.randn(32, generator=generator),
        }

    @pytest.fixture(scope="class")
    @classmethod
    def item(cls, catalog: Catalog) -> CheckpointFormat:
        return catalog.named(CheckpointFormat, cls.format).item

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        toy = cls()
        return toy.write(tmp_path_factory.mktemp("checkpoint"), cls.config, toy.tensors())

    def test_the_catalog_knows_it_by_its_path(
        self, item: CheckpointFormat, catalog: Catalog, written: Path, tmp_path: Path
    ) -> None:
        assert catalog.format_of(written).item.name == self.format
        (tmp_path / "notes.txt").write_text("no model")
        for other in (tmp_path, tmp_path / "notes.txt", tmp_path / "missing"):
            assert not item.matches(other)

    def test_gives_back_what_was_written(self, item: CheckpointFormat, written: Path) -> None:
        checkpoint = item.open(written, self.architectures)
        wanted = self.tensors()
        assert set(checkpoint.tensors) == set(wanted)
        assert self.config.items() <= dict(checkpoint.config).items()
        for name, tensor in wanted.items():
            info, stored = checkpoint.tensors[name], checkpoint.read(name)
            assert info.shape == tuple(tensor.shape) and info.nbytes == stored.nbytes
            assert f"torch.{info.dtype}" == str(stored.dtype)
            assert stored.device.type == "cpu" and torch.equal(stored, tensor)
            if (of_format := getattr(checkpoint, "peek", None)) is not None:
                assert of_format(name) == stored.contiguous().view(torch.uint8).numpy().tobytes()
        files = getattr(checkpoint, "files", ())
        checkpoint.close()
        assert getattr(checkpoint, "files", ()) == files, "blocks are told apart by them later"

    def test_opening_imports_no_torch(self, written: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from inferno.catalog import load_catalog\n"
            "_, checkpoint = load_catalog().open(Path(sys.argv[1]))\n"
            "checkpoint.config, checkpoint.tensors, checkpoint.text()\n"
            "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
        )
        done = run_python(code, str(written))
        assert done.returncode == 0, done.stderr

    def test_a_truncated_file_is_an_error_that_says_so(
        self, item: CheckpointFormat, written: Path
    ) -> None:
        @_repeatable
        @given(st.floats(0, 1, exclude_max=True))
        def run(share: float) -> None:
            with _copy(written) as (path, files):
                file = max(files, key=lambda f: f.stat().st_size)
                content = file.read_bytes()
                file.write_bytes(content[: int(share * len(content))])
                with pytest.raises(CheckpointError) as caught:
                    _read_all(item, path, self.architectures)
                assert caught.value.cause and caught.value.remedy

        run()

    def test_damage_anywhere_is_an_error_or_harmless(
        self, item: CheckpointFormat, written: Path
    ) -> None:
        """Damage causes no other exception, no crash, and no allocation of a size only claimed."""

        @_repeatable
        @given(st.data())
        def run(data: st.DataObject) -> None:
            with _copy(written) as (path, files):
                file = data.draw(st.sampled_from(files), label="file")
                content = bytearray(file.read_bytes())
                # Headers are at the start: half of the damage goes there.
                last = data.draw(st.sampled_from([min(600, len(content)), len(content)])) - 1
                for place in data.draw(
                    st.lists(st.integers(0, last), min_size=1, max_size=4), label="places"
                ):
                    content[place] = data.draw(st.integers(0, 255), label="byte")
                file.write_bytes(content)
                try:
                    _read_all(item, path, self.architectures)
                except CheckpointError as error:
                    assert error.cause

        run()


@contextmanager
def _copy(written: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A copy of the checkpoint, to be damaged."""
    source = written if written.is_dir() else written.parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(source, Path(name) / "copy"))
        path = folder if written.is_dir() else folder / written.name
        yield path, sorted(f for f in folder.rglob("*") if f.is_file())


def _read_all(item: CheckpointFormat, path: Path, architectures: Sequence[Architecture]) -> None:
    tracemalloc.start()
    try:
        checkpoint = item.open(path, architectures)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < SLACK, f"opening took {peak} bytes"
    try:
        checkpoint.text()
        claimed = sum(info.nbytes for info in checkpoint.tensors.values())
        assert claimed < SLACK, f"the headers claim {claimed} bytes and were believed"
        for name in checkpoint.tensors:
            checkpoint.read(name)
    finally:
        checkpoint.close()
