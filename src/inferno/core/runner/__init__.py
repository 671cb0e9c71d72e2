"""Runs steps on one device."""

from inferno.core.runner.launched import LaunchedStep
from inferno.core.runner.model_runner import ModelRunner
from inferno.core.runner.parts import PartResults, StepPart
from inferno.core.runner.tables import StepArrays, Tables

__all__ = ["LaunchedStep", "ModelRunner", "PartResults", "StepArrays", "StepPart", "Tables"]
