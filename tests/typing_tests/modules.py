"""Modules as implementations of a hook's Protocol: the line a plugin has in its own tests."""

from __future__ import annotations

import good
import misspelt

from inferno.hookspecs import ProvidesArchitectures, ProvidesHints, ProvidesSources

right: ProvidesArchitectures = good
hints: ProvidesHints = good
wrong: ProvidesArchitectures = misspelt  # error: assignment
absent: ProvidesSources = good  # error: assignment
