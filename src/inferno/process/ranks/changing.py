"""Weights of several ranks: given back, restored and replaced in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from attrs import define, field

from inferno.process.ranks.group import Group
from inferno.process.ranks.messages import Change
from inferno.weights.resident import Loaded, Resident
from inferno.weights.updates import Update


@define(eq=False)
class LeadingResident(Resident):
    """Rank 0's part of a model, whose other parts change with it. What does not fit one of them
    changes none; an error once they change ends the group, which then begins anew."""

    group: Group = field(kw_only=True)

    @classmethod
    def leading(cls, resident: Resident, group: Group) -> Self:
        """Take over a model that is loaded."""
        return cls(resident.opened, resident.loaded, packed=resident._packed, group=group)

    def checked(self, path: Path, *, temporary: bool = False, held: bool = False) -> Update:
        # The others first: they open a temporary file before it loses its name.
        with self.group.together():
            self.group.begin_change(Change(action="check", path=str(path), temporary=temporary))
        try:
            self.group.end_change()
            return super().checked(path, temporary=temporary, held=held)
        except BaseException:
            if temporary:
                path.unlink(missing_ok=True)
            with self.group.changing(Change(action="forget")):
                pass
            raise

    def apply(self, update: Update, version: str | None = None, *, load: bool = True) -> None:
        with self.group.changing(Change(action="apply", load=load)):
            super().apply(update, version, load=load)

    def release(self, level: int) -> None:
        with self.group.changing(Change(action="release", level=level)):
            super().release(level)

    def restore(self) -> Loaded:
        with self.group.changing(Change(action="restore")):
            loaded = super().restore()
        return loaded
