"""Quantizes a model's layers one after the other, by the inputs that a text gives them.

Each layer is a piece of work: its tensors are read, run, quantized and written, and then it runs
once more as it was written, so that the next layer's inputs have its errors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from inferno.contracts import Encoding, Piece, Scaling, Seen, StoredMatrix
from inferno.errors import CheckpointError, OptionError
from inferno.host import format_bytes
from inferno.nn import Weight
from inferno.text import Tokenizer
from inferno_convert.folder import Folder
from inferno_convert.layers import GRAMS, Layers, Sights
from inferno_convert.scaling import Scaler

LENGTH, MOST, LEAST = 512, 64, 16
"""Tokens of a sequence, the most sequences, and the fewest tokens of a text."""


def calibrated_pieces(
    folder: Folder, encoding: Encoding, text: str, notes: list[str]
) -> list[Piece]:
    """Return a piece for each layer. Raises OptionError for a text that is too short,
    CheckpointError without a tokenizer, UnsupportedError for models that cannot be calibrated."""
    run = Calibration(folder, encoding, _sequences(folder, text), notes)
    return [run.piece(number) for number in range(len(run.layers.layers))]


def _sequences(folder: Folder, text: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_assets(folder.view.text())
    if tokenizer is None:
        raise CheckpointError(
            "the model has no tokenizer, and calibration needs one",
            "Put tokenizer.json into the model's folder, or leave --calibrate out.",
        )
    ids = list(tokenizer.encode(text))
    if len(ids) < LEAST:
        raise OptionError(
            f"the text for calibration has {len(ids)} tokens",
            f"Give one of at least {LEAST}; some ten thousand are better.",
        )
    size = min(LENGTH, folder.source.model.max_position_embeddings)
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    return [part for part in parts if len(part) >= LEAST][:MOST]


class Calibration:
    """A run over the layers, in order."""

    def __init__(
        self, folder: Folder, encoding: Encoding, sequences: list[list[int]], notes: list[str]
    ) -> None:
        self._folder, self._encoding, self._notes = folder, encoding, notes
        self._sequences = sequences
        self._unseen = self._too_large = self._unscaled = 0

    @cached_property
    def layers(self) -> Layers:
        return Layers.of(self._folder.view, self._sequences)

    def piece(self, number: int) -> Piece:
        """Return the work of one layer."""
        start = f"{self.layers.paths[number]}."
        names: list[str] = []
        for name in self._folder.view.tensors:
            if name.startswith(start):
                encoded = self._folder.encoded.get(name)
                names += [name] if encoded is None else list(encoded.names())
        return Piece(
            tensors=tuple(names),
            make=partial(self._make, number),
            done=partial(self._done, number),
        )

    @torch.inference_mode()
    def _make(self, number: int) -> Iterator[tuple[str, Tensor]]:
        path = self.layers.paths[number]
        tensors, seen = self._calibrated(number)
        parts: dict[str, dict[str, Tensor]] = {}
        stored: dict[str, Tensor] = {}
        for name in list(tensors):
            full, tensor = f"{path}.{name}", tensors.pop(name)  # freed when it is encoded
            encoded = self._folder.encoded.get(full)
            if encoded is None:
                dtype = getattr(torch, self._folder.info(full).dtype)
                stored[name] = tensor.to(dtype)
                yield full, stored[name]
                continue
            made = dict(self._encoding.encode(encoded.path, tensor, seen.get(encoded.path)))
            parts[encoded.path] = made
            yield from ((f"{encoded.path}.{part}", value) for part, value in made.items())
        del tensor, seen
        self._advance(number, stored, parts)
        _release_memory()
        if number + 1 == len(self.layers.layers):
            self._tell()

    def _calibrated(self, number: int) -> tuple[dict[str, Tensor], Mapping[str, Seen]]:
        """Run a layer. Returns its tensors by names in it, scaled if the encoding wants it, and the
        inputs of its matrices by path."""
        layers, sights = self.layers, Sights()
        tensors = layers.tensors(number)
        layer, watched = layers.load(number, tensors, sights)
        outputs = layers.run(layer, number)
        first = next(outputs)
        for _ in outputs:
            pass
        seen = sights.found()
        quantized = {e.path for e in self._folder.encoded.values() if e.path in watched}
        self._too_large += len(quantized & sights.too_large)
        self._unseen += len(quantized - seen.keys() - sights.too_large)
        scaled = {path: sight for path, sight in seen.items() if path in quantized}
        return self._scaled(number, tensors, scaled, first), seen

    @torch.inference_mode()
    def _done(self, number: int, read: Callable[[str], memoryview]) -> None:
        """Compute the next layer's inputs from what an earlier run has written."""
        path, headers = self.layers.paths[number], self._folder.headers()

        def tensor(name: str) -> Tensor:
            info = headers[name]
            raw = torch.frombuffer(bytearray(read(name)), dtype=torch.uint8)
            return raw.view(getattr(torch, info.dtype)).view(info.shape)

        parts: dict[str, dict[str, Tensor]] = {}
        stored: dict[str, Tensor] = {}
        for name in self._folder.view.tensors:
            if not name.startswith(f"{path}."):
                continue
            encoded = self._folder.encoded.get(name)
            if encoded is None:
                stored[name.removeprefix(f"{path}.")] = tensor(name)
            else:
                parts[encoded.path] = {p: tensor(f"{encoded.path}.{p}") for p in encoded.parts}
        self._advance(number, stored, parts)

    def _advance(
        self,
        number: int,
        stored: Mapping[str, Tensor],
        parts: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """Run the layer as it was written."""
        path = self.layers.paths[number]
        weights = {each: self._loaded(each, made) for each, made in parts.items()}
        tensors = {name: tensor.float() for name, tensor in stored.items()}
        for each, weight in weights.items():  # of the right shape, and not read
            tensors[f"{each}.weight".removeprefix(f"{path}.")] = torch.empty(weight.shape)
        layer, watched = self.layers.load(number, tensors, None)
        for each, matrix in watched.items():
            matrix.quantized = weights.get(each)
        self.layers.advance(layer, number)

    def _loaded(self, path: str, parts: Mapping[str, Tensor]) -> Weight:
        """Load a matrix as the scheme that reads the result will."""
        infos = {part: self._folder.headers()[f"{path}.{part}"] for part in parts}
        config = self._encoding.config(self._folder.dense)
        matrix = StoredMatrix(path=path, parts=infos, quant_config=config)
        scheme = self._folder.source.catalog.scheme_of(matrix).item
        weight: Weight = scheme.load(matrix, dict(parts), dtype="float32")
        return weight

    def _scaled(
        self,
        number: int,
        tensors: dict[str, Tensor],
        seen: Mapping[str, Seen],
        before: Any,
    ) -> dict[str, Tensor]:
        """Return the layer's tensors, scaled if the encoding wants it. `seen` has the matrices that
        are quantized: others may have a shape that the encoding refuses."""
        if not isinstance(self._encoding, Scaling):
            return tensors
        start = f"{self.layers.paths[number]}."
        relative = {path.removeprefix(start): each for path, each in seen.items()}
        scaler = Scaler(self.layers, number, dict(tensors), before)
        scaler.run(relative, self._encoding)
        self._unscaled += len(relative.keys() - scaler.scaled)
        return scaler.tensors

    def _tell(self) -> None:
        if self._unseen:
            self._notes.append(
                f"{self._unseen} matrices were rounded to the nearest: calibration saw no input of "
                f"theirs"
            )
        if self._too_large:
            self._notes.append(
                f"{self._too_large} matrices were rounded to the nearest: what calibration keeps "
                f"of a layer's inputs would be larger than {format_bytes(GRAMS)}"
            )
        if self._unscaled:
            self._notes.append(
                f"{self._unscaled} matrices were not scaled: no module in front of them can take "
                f"the inverse"
            )


def _release_memory() -> None:
    """Give what is freed back to the system: between large tensors, glibc keeps what they leave."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
