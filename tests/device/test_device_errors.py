"""What users read when a GPU or its driver fails: torch's own errors become a cause and a
remedy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from inferno.contracts import Device
from inferno.device import check_device, device_errors
from inferno.device.check import runs_on
from inferno.errors import DeviceError, InfernoError, OutOfMemoryError

GPU = Device("cuda", name="NVIDIA H200", capability=(9, 0))
ACCELERATOR: type[Exception] = getattr(torch, "AcceleratorError", RuntimeError)

TORCH_OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.8 GiB of "
    "which 1.00 GiB is free. Process 7 has 138 GiB memory in use."
)
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com"
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed "
    "a driver from http://www.nvidia.com/Download/index.aspx"
)
NO_IMAGE = (
    "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors "
    "might be asynchronously reported at some other API call."
)
CPU_OOM = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 99999999999 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "expected", "cause", "remedy"),
    [
        (torch.OutOfMemoryError(TORCH_OOM), OutOfMemoryError, "allocate 2.00 GiB", "quantized"),
        (ACCELERATOR("CUDA error: out of memory\nCompile with"), OutOfMemoryError, "H200", "smal"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate()`"),
            OutOfMemoryError,
            "too little free memory to load the weights",
            "stop what else uses",
        ),
        (RuntimeError(CPU_OOM), OutOfMemoryError, "can't allocate memory", "smaller"),
        (MemoryError(), OutOfMemoryError, "too little free memory to load the weights", "smal"),
        (RuntimeError(NO_DRIVER), DeviceError, "no NVIDIA driver", "--gpus all"),
        (RuntimeError(OLD_DRIVER), DeviceError, "too old for torch", "Update the driver"),
        (
            ACCELERATOR("CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
            DeviceError,
            "too old for torch",
            "older CUDA",
        ),
        (ACCELERATOR(NO_IMAGE), DeviceError, "no kernels for .*sm_90", "--device cpu"),
        (
            AssertionError("Torch not compiled with CUDA enabled"),
            DeviceError,
            "built without CUDA",
            "Install a build of torch for CUDA",
        ),
        (
            ACCELERATOR("CUDA error: all CUDA-capable devices are busy or unavailable"),
            DeviceError,
            "another process",
            "nvidia-smi",
        ),
        (
            RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 804: forward "
                         "compatibility was attempted on non supported HW"),
            DeviceError,
            "do not fit together",
            "Restart",
        ),
        (
            RuntimeError("CUDA unknown error - this may be due to an incorrectly set up "
                         "environment"),
            DeviceError,
            "cannot start",
            "nvidia_uvm",
        ),
        (RuntimeError("No CUDA GPUs are available"), DeviceError, "no device cuda:0", "CUDA_VIS"),
    ],
)  # fmt: skip
def test_torchs_errors_about_a_device_have_a_remedy(
    error: Exception, expected: type[InfernoError], cause: str, remedy: str
) -> None:
    with pytest.raises(expected, match=cause) as caught, device_errors(GPU, "load the weights"):
        raise error
    assert remedy in caught.value.remedy and caught.value.__cause__ is error
    assert "\n" not in caught.value.cause and len(caught.value.cause) < 300


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ACCELERATOR("CUDA error: an illegal memory access was encountered"),
        AssertionError("one tensor per layer"),
        KeyError("layer"),
        OutOfMemoryError("already told", "as it is"),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, device_errors(GPU):
        raise error
    assert caught.value is error


def test_the_remedy_depends_on_what_the_memory_was_for() -> None:
    remedies = {}
    for purpose in ("load the weights", "allocate its cache", "compute a step of the most tokens"):
        with pytest.raises(OutOfMemoryError, match=f"memory to {purpose}") as caught:
            with device_errors(GPU, purpose):
                raise torch.OutOfMemoryError(TORCH_OOM)
        remedies[purpose] = caught.value.remedy
    assert "quantized model" in remedies["load the weights"]
    assert remedies["allocate its cache"].startswith("Lower --memory")
    assert "--max-num-batched-tokens" in remedies["compute a step of the most tokens"]


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((12, 0), ["sm_90", "compute_90a"], False),
        ((12, 1), ["sm_120"], True),
        ((9, 0), [], True),
        ((9, 4), ["gfx942"], True),
    ],
)
def test_which_chips_code_runs_on(
    capability: tuple[int, int], built: list[str], runs: bool
) -> None:
    assert runs_on(capability, built) == runs


@pytest.fixture
def torch_finds_an_h200(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that were made the current one."""
    made: list[int] = []
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    return made


def test_the_device_becomes_the_current_one(torch_finds_an_h200: list[int]) -> None:
    check_device(Device("cuda", 3, name="NVIDIA H200", capability=(9, 0)))
    assert torch_finds_an_h200 == [3]


def test_a_build_without_kernels_for_the_chip_is_refused_before_it_fails(
    torch_finds_an_h200: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    with pytest.raises(DeviceError, match="no kernels for .*H200.*sm_90.* for sm_75, sm_80"):
        check_device(GPU)
    assert torch_finds_an_h200 == []


def test_a_driver_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError(OLD_DRIVER)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", fails)
    with pytest.raises(DeviceError, match="too old for torch .* CUDA 13.0"):
        check_device(GPU)
