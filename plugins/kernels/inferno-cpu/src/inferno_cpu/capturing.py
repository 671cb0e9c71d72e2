"""Decode steps without Python: the native ops are recorded, torch's operators noted."""

from __future__ import annotations

from inferno.nn.capture import CallCapture
from inferno_cpu import _native


def capture() -> CallCapture:
    return CallCapture(_native.Recording)
