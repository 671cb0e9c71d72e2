"""Support for devices other than the CPU: checks, errors, copies, CUDA graphs."""

from inferno.device.check import check_device
from inferno.device.failures import device_errors
from inferno.device.graphs import GraphCapture
from inferno.device.staging import Arriving
from inferno.device.streaming import WeightStream

__all__ = ["Arriving", "GraphCapture", "WeightStream", "check_device", "device_errors"]
