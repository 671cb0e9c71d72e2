"""Build the native module in a variant for tests, and run this plugin's tests on it.

    python variants.py sanitize|threads|emulate|emulate-amx [arguments for pytest]

sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer. threads: with ThreadSanitizer, the
tests in which threads of Python call the kernels; an op has one thread, because the sanitizer does
not see how OpenMP's threads wait for each other. emulate: levels that this machine may lack
(AVX-VNNI, AVX-512, AMX) as plain code, which needs SIMDe (Debian: libsimde-dev); their tiles are
small. emulate-amx: only AMX's tiles, of full size, on a machine with AVX-512 and BF16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OPTIONS = {
    "sanitize": "-DINFERNO_SANITIZE=ON",
    "threads": "-DINFERNO_SANITIZE_THREADS=ON",
    "emulate": "-DINFERNO_EMULATE=ON",
    "emulate-amx": "-DINFERNO_EMULATE_AMX=ON",
}
ABOUT_INSTALLED = [
    f"--ignore={HERE / 'tests' / name}" for name in ("test_emulator.py", "test_instructions.py")
]


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in OPTIONS:
        print(__doc__, file=sys.stderr)
        return 2
    variant = sys.argv[1]
    build = HERE / "build" / variant
    options = [
        OPTIONS[variant],
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(["cmake", "-S", HERE, "-B", build, *options], check=True)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    subprocess.run(["cmake", "--build", build, "-j", jobs], check=True)
    # The package as a user imports it, but with the modules of this build.
    package = build / "inferno_cpu"
    package.mkdir(exist_ok=True)
    for file in [*(HERE / "src" / "inferno_cpu").glob("*.py"), *build.glob("_*.so")]:
        (package / file.name).unlink(missing_ok=True)
        (package / file.name).symlink_to(file)
    code = (
        "import sys, pytest\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'skbc' not in type(f).__module__]  # "
        "an editable installation's\n"
        f"sys.path.insert(0, {str(build)!r})\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    env, tests = dict(os.environ), [str(HERE / "tests"), *ABOUT_INSTALLED]
    if variant == "sanitize":
        env |= _sanitized()
    elif variant == "threads":
        env |= _sanitized_threads()
        tests = [str(HERE / "tests" / f"test_{name}.py") for name in ("recording", "shared_memory")]
        tests += ["-k", "each_thread or threads_compute or threads_share"]
        tests += ["--capture=no"]  # else the report is lost with the process
    return subprocess.run(
        [sys.executable, "-c", code, *tests, "-q", *sys.argv[2:]], env=env
    ).returncode


def _sanitized() -> dict[str, str]:
    """The environment of a sanitized module. Python itself is not instrumented: the runtime must be
    loaded first, and leaks of the interpreter are not reported."""
    return {
        "LD_PRELOAD": f"{_runtime('libasan.so')} {_runtime('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "2",
    }


def _sanitized_threads() -> dict[str, str]:
    """The same for a module whose races are looked for."""
    return {
        "LD_PRELOAD": _runtime("libtsan.so"),
        "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:exitcode=66",
        "OMP_NUM_THREADS": "1",
    }


def _runtime(name: str) -> str:
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
