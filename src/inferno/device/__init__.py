"""What only devices other than the CPU need: their check, their errors, copies to them."""

from inferno.device.check import check_device
from inferno.device.failures import device_errors
from inferno.device.streaming import WeightStream

__all__ = ["WeightStream", "check_device", "device_errors"]
