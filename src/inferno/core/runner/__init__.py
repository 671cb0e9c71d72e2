"""Runs steps on one device."""

from inferno.core.runner.model_runner import ModelRunner
from inferno.core.runner.tables import StepArrays, Tables

__all__ = ["ModelRunner", "StepArrays", "Tables"]
