"""What steps need of images and audio: their embeddings, computed once and kept, and tokens'
positions.

Suffixes: T tokens of the step, N tokens of it that are given, M tokens of an image, P patches, or
frames of audio, W numbers of one, D hidden, R rows, 3 the temporal, the vertical and the
horizontal position.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from attrs import define, field
from torch import Tensor, nn

from inferno.images.mediums import IMAGE
from inferno.nn import ImageInputs, MediaEncoder
from inferno.plan import Plan
from inferno.request.requests import ImagePart, Request, overlapping

log = logging.getLogger("inferno.runner")
R = TypeVar("R")
Array = np.ndarray[Any, Any]


class Admitted(Protocol):
    """A sequence that takes a row: `core.types.NewSequence`."""

    @property
    def row(self) -> int: ...
    @property
    def request(self) -> Request: ...


class Arrays(Protocol):
    """A step: `core.runner.StepArrays`."""

    positions: Array
    query_starts: list[int]
    rows: Array


class Sent(Protocol):
    """What another machine has sent (`process.ranks.sending_pixels.SentPixels`)."""

    def get(self, digest: bytes) -> Array | None:
        """Return the values of an image; None if there are none."""
        ...


@define(eq=False)
class Embeddings:
    """Of the images and audio that were computed last, by digest, up to so many bytes."""

    max_bytes: int
    nbytes: int = 0
    _held: OrderedDict[bytes, Tensor] = field(factory=OrderedDict)

    def get(self, digest: bytes) -> Tensor | None:
        if (entry := self._held.get(digest)) is not None:
            self._held.move_to_end(digest)
        return entry

    def keep(self, digest: bytes, embeddings_MD: Tensor) -> None:
        self._held[digest] = embeddings_MD
        self.nbytes += embeddings_MD.nbytes
        while self.nbytes > self.max_bytes:
            self.nbytes -= self._held.popitem(last=False)[1].nbytes


@define(eq=False)
class Seeing:
    """Computes images and audio, and writes what layers read of them. A part of steps
    (`core.runner.StepPart`). Text costs one addition for each token's position."""

    encoders: Mapping[str, MediaEncoder]
    """By medium; none in a pipeline stage whose layers read no embeddings, but positions."""
    inputs: ImageInputs
    num_rows: int
    num_tokens: int
    """The most of a step, captured ones included."""
    width: int
    """D of the decoder."""
    device: str
    embeddings: Embeddings
    sent: Sent | None = None
    """Pixels that were sent here; None: this machine has their files."""
    computed: int = 0
    """How many images and pieces of audio the encoders have computed."""
    images: dict[int, tuple[ImagePart, ...]] = field(factory=dict)
    """Of rows whose prompts have any."""
    _positions: dict[int, Array] = field(factory=dict)
    """(3, prompt) of the same rows."""
    _delta_R: Array = field(init=False)
    """What is added to the index of each row's later tokens."""
    _is_given: bool = False

    def __attrs_post_init__(self) -> None:
        self._delta_R = np.zeros(self.num_rows, np.int64)
        if self.inputs.positions is not None:
            shape = 3, self.num_tokens
            self.inputs.positions_3T = torch.zeros(shape, dtype=torch.int64, device=self.device)

    @classmethod
    def of(cls, model: nn.Module, plan: Plan) -> list[Seeing]:
        """Return the part of a model that sees images or hears audio; none for others."""
        towers = (module for module in model.modules() if isinstance(module, MediaEncoder))
        encoders = {module.medium: module for module in towers}
        if not plan.media:
            return []
        inputs = next((each for each in model.modules() if isinstance(each, ImageInputs)), None)
        if inputs is None:
            return []
        captured = max(plan.capture.sizes, default=0) if plan.capture is not None else 0
        most = max(plan.max_num_batched_tokens, captured)
        cache = Embeddings(sum(use.cache_bytes for use in plan.media))
        sizes, device = (plan.max_num_seqs, most, inputs.width), plan.device.torch_name
        return [cls(encoders, inputs, *sizes, device, cache)]

    def admit(self, new: Admitted) -> None:
        row, images = new.row, new.request.images
        self.images.pop(row, None)
        self._positions.pop(row, None)
        self._delta_R[row] = 0
        if images:
            self.images[row] = images
            if self.inputs.positions is not None:
                # Of the prompt's beginning up to the last image, and one token more. Positions of
                # audio are as those of text.
                seen = [each for each in images if each.medium == "image"]
                known_3T = self.inputs.positions(seen, length := images[-1].stop + 1)
                self._positions[row] = known_3T
                self._delta_R[row] = known_3T[0, -1] + 1 - length

    def before(self, arrays: Arrays) -> None:
        rows_T = np.repeat(arrays.rows, np.diff(arrays.query_starts))
        count = len(rows_T)
        image_rows = [row for row in self.images if row in arrays.rows] if self.images else []
        if self.inputs.positions is not None:
            found_3T = np.empty((3, count), np.int64)
            found_3T[:] = arrays.positions + self._delta_R[rows_T]
            for row in image_rows:
                known_3T = self._positions[row]
                at_N = np.flatnonzero((rows_T == row) & (arrays.positions < known_3T.shape[1]))
                found_3T[:, at_N] = known_3T[:, arrays.positions[at_N]]
            self.inputs.positions_3T[:, :count].copy_(torch.from_numpy(found_3T))
        self.inputs.given = self.inputs.spans = None
        if image_rows:
            self._give(arrays.positions, rows_T, image_rows)
        self._is_given = self.inputs.spans is not None

    def _give(self, positions_T: Array, rows_T: Array, own: list[int]) -> None:
        """Give the step's tokens that are images', if there are any, and their embeddings."""
        at, rows = list[Array](), list[Tensor]()
        for row in own:
            mine_N = np.flatnonzero(rows_T == row)
            places_N = positions_T[mine_N]
            ends = (int(places_N[0]), int(places_N[-1]) + 1) if len(places_N) else (0, 0)
            for image in overlapping(self.images[row], *ends):
                inside = (places_N >= image.start) & (places_N < image.stop)
                if inside.any():
                    index_N = torch.from_numpy(places_N[inside] - image.start + image.first)
                    place_N = places_N[inside]
                    # A position of audio attends to none after it.
                    seen = image.medium == IMAGE.name
                    end_N = np.full_like(place_N, image.stop) if seen else place_N + 1
                    at.append(np.stack([mine_N[inside], place_N, end_N]))
                    if self.encoders:
                        rows.append(self._embeddings_of(image)[index_N.to(self.device)])
        if at:
            self.inputs.spans = spans = torch.from_numpy(np.concatenate(at, 1))
            if rows:
                self.inputs.given = spans[0].to(self.device), torch.cat(rows)

    def _embeddings_of(self, image: ImagePart) -> Tensor:
        """Return an image's embeddings, (M, D), which are computed unless they are kept."""
        if (entry := self.embeddings.get(image.digest)) is not None:
            return entry
        encoder = self.encoders[image.medium]
        if (pixels_PW := self._pixels_of(image, encoder.patches(image.grid))) is None:
            # The request fails, if anybody still wants it, and what it has cached is forgotten: its
            # numbers are not finite.
            log.warning("the file of an image or of audio is gone")
            shape = image.first + image.count, self.width
            return torch.full(shape, torch.nan, device=self.device)
        known: Tensor = encoder(pixels_PW.to(self.device), image.grid)
        # Audio has no features for layers.
        known = F.pad(known, (0, self.width - known.shape[1]))
        self.computed += 1
        self.embeddings.keep(image.digest, known)
        return known

    def _pixels_of(self, image: ImagePart, patches: int) -> Tensor | None:
        if self.sent is None:
            return read_pixels(image, patches)
        values = self.sent.get(image.digest)
        return None if values is None else as_patches(values, patches)

    def refuses_replay(self, arrays: object) -> bool:
        return self._is_given

    def replays(self, usual: R) -> R:
        return usual

    def after(self, step: object, arrays: object, hidden_TD: object, results: object) -> None:
        return None


def read_pixels(image: ImagePart, patches: int) -> Tensor | None:
    """Return the pixels of an image of `patches` patches, as the encoder reads them, (P, W). None
    if its file is gone, as it may be once nobody wants the request."""
    try:
        values = np.fromfile(Path(image.path), np.float32)
    except OSError:
        return None
    return as_patches(values, patches)


def as_patches(values: Array, patches: int) -> Tensor | None:
    """Return values as (P, W); None if they cannot be divided into that many patches."""
    whole = patches and len(values) and not len(values) % patches
    return torch.from_numpy(values.reshape(patches, -1)) if whole else None
