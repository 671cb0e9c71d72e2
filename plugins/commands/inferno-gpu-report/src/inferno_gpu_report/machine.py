"""Limits of the machine, from which other sections compute their floors."""

from __future__ import annotations

import platform
import subprocess
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from inferno_gpu_report.job import COPY, FP8_MATMUL, MATMUL, Job
from inferno_gpu_report.timing import timed

_PROGRAMS = ("torch", "triton", "transformers", "inferno")
_FP8_CAPABILITY = (8, 9)


def measure(job: Job) -> None:
    """Report versions, copy bandwidth, the rate of matrix products, and the cost of a launch."""
    device = job.device
    job.fact("device", device)
    job.fact("memory", f"{device.free / 1e9:.1f} of {device.total / 1e9:.1f} GB free")
    job.fact("python", platform.python_version())
    for name in _PROGRAMS:
        try:
            job.fact(name, version(name))
        except PackageNotFoundError:
            job.fact(name, "not installed")
    if device.kind == "cuda":
        _cuda_facts(job)
    job.attempt("copies", lambda: _copies(job))
    job.attempt("products", lambda: _products(job))
    job.attempt("fp8 products", lambda: _fp8_products(job))
    job.attempt("launches", lambda: _launches(job))
    for kind in ("attention", "kernels"):
        job.mention_missing(kind)
        for offer in job.catalog.of(f"inferno_{kind}{'_backends' * (kind == 'attention')}"):
            job.fact(f"{kind} {offer.item.name}", offer.distribution)


def _cuda_facts(job: Job) -> None:
    properties = torch.cuda.get_device_properties(job.device.index)
    job.fact("CUDA", torch.version.cuda)
    job.fact("multiprocessors", properties.multi_processor_count)
    job.fact("L2", f"{getattr(properties, 'L2_cache_size', 0) / 2**20:.0f} MiB")
    command = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.max.memory"]
    try:
        reply = subprocess.run(
            [*command, "--format=csv,noheader", "-i", str(job.device.index)],
            capture_output=True,
            text=True,
            timeout=20,
        )
        job.fact("driver, highest clocks", reply.stdout.strip() or "unknown")
    except (OSError, subprocess.TimeoutExpired):
        job.fact("driver", "nvidia-smi does not answer")


def _copies(job: Job) -> None:
    nbytes = 1 << 24 if job.small else min(1 << 32, job.device.free // 8)
    source = torch.ones(nbytes, dtype=torch.uint8, device=job.device.torch_name)
    # Not as a graph: its copies are slower than those of a stream (2.8 of 4.3 TB/s on an H200).
    copy = partial(torch.empty_like(source).copy_, source)
    took = timed(copy, job.device, capture=False)
    job.figure(COPY, 2 * nbytes / took.seconds / 1e9, "GB/s", detail="bytes read and written")
    if job.device.kind != "cuda":
        return
    host = torch.empty(min(nbytes, 1 << 28), dtype=torch.uint8, pin_memory=True)
    part = source[: len(host)]
    for name, move in (
        ("pinned memory to the device", lambda: part.copy_(host, non_blocking=True)),
        ("device to pinned memory", lambda: host.copy_(part, non_blocking=True)),
    ):
        seconds = timed(move, job.device, capture=False).seconds
        job.figure(name, len(host) / seconds / 1e9, "GB/s")


def _products(job: Job) -> None:
    size = 256 if job.small else 8192
    x, w = (
        torch.randn(size, size, device=job.device.torch_name, dtype=torch.bfloat16)
        for _ in range(2)
    )
    took = timed(lambda: x @ w, job.device)
    job.figure(MATMUL, 2 * size**3 / took.seconds / 1e12, "TFLOP/s", detail=f"{size} cubed")


def _fp8_products(job: Job) -> None:
    if job.device.capability is None or job.device.capability < _FP8_CAPABILITY:
        return
    size, name = 8192, job.device.torch_name
    x = torch.randn(size, size, device=name).to(torch.float8_e4m3fn)
    w = torch.randn(size, size, device=name).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=name)
    took = timed(
        lambda: torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        job.device,
    )
    job.figure(FP8_MATMUL, 2 * size**3 / took.seconds / 1e12, "TFLOP/s", detail=f"{size} cubed")


def _launches(job: Job) -> None:
    x = torch.zeros(1, device=job.device.torch_name)
    count = 200

    def adds() -> None:
        for _ in range(count):
            x.add_(1)

    each = timed(adds, job.device, capture=False)
    job.figure("operator called from Python", 1e6 * each.seconds / count, "us")
    if job.device.kind != "cuda":
        return
    graph = timed(adds, job.device)
    if graph.captured:
        job.figure("kernel of a CUDA graph", 1e6 * graph.seconds / count, "us")
    begin = time.perf_counter()
    for _ in range(count):
        x.add_(1).item()
    job.figure("operator and its result", 1e6 * (time.perf_counter() - begin) / count, "us")
