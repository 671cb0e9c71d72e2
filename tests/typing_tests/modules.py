"""Modules as implementations of a hook's Protocol: the line a plugin has in its own tests."""

from __future__ import annotations

import good
import misspelt

from inferno.hookspecs import ProvidesArchitectures, ProvidesHints, ProvidesWriters

right: ProvidesArchitectures = good
hints: ProvidesHints = good
wrong: ProvidesArchitectures = misspelt  # error: assignment
absent: ProvidesWriters = good  # error: assignment
