"""Runs steps on one device."""

from inferno.core.runner.model_runner import ModelRunner, StepArrays, Tables

__all__ = ["ModelRunner", "StepArrays", "Tables"]
