"""The file that a model's encoder of images is in, if its format stores encoders apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from attrs import frozen

from inferno.catalog import Catalog
from inferno.contracts import Checkpoint, FetchOptions
from inferno.errors import OptionError

if TYPE_CHECKING:
    from inferno.plan.plan import Plan

AUTO, NONE = "auto", "none"


@frozen(kw_only=True)
class EncoderChoice:
    """The file, and why there is none."""

    path: Path | None = None
    notes: tuple[str, ...] = ()


def choose_encoder(
    catalog: Catalog, model: Path, wanted: str, fetch: FetchOptions
) -> EncoderChoice:
    """Return the encoder's file that `wanted` names: a reference, `auto` for one beside the model,
    `none`. Raises OptionError, and what fetching does."""
    format = catalog.format_of(model).item
    if wanted == NONE:
        return EncoderChoice()
    if wanted != AUTO:
        if format.join is None:
            raise OptionError(
                f"--mmproj {wanted}: {model.name} is of the format {format.name}, whose models "
                "have their encoders in their own files",
                "Leave --mmproj out.",
            )
        alone = attrs.evolve(fetch, revision=None, encoder=False)
        return EncoderChoice(path=catalog.source_of(wanted).item.fetch(wanted, alone))
    files = format.encoders(model, [offer.item for offer in catalog.of("inferno_architectures")])
    if chosen := next((each.path for each in files if not each.refusal), None):
        return EncoderChoice(path=chosen)
    return EncoderChoice(notes=tuple(f"images are off: {each.refusal}" for each in files[:1]))


def open_stored(plan: Plan, catalog: Catalog) -> Checkpoint:
    """Open a plan's model again, as its format stores it. Raises CheckpointError."""
    file = plan.images.file if plan.images is not None else ""
    return catalog.open(Path(plan.path), Path(file) if file else None)[1]
