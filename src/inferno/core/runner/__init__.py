"""Runs steps on one device."""

from inferno.core.runner.model_runner import LaunchedStep, ModelRunner
from inferno.core.runner.tables import StepArrays, Tables

__all__ = ["LaunchedStep", "ModelRunner", "StepArrays", "Tables"]
