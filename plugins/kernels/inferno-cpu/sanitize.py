"""Build the native module with AddressSanitizer and UndefinedBehaviorSanitizer, and run this
plugin's tests on it.

python sanitize.py [arguments for pytest]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE / "build" / "sanitize"


def main() -> int:
    options = [
        "-DINFERNO_SANITIZE=ON",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(["cmake", "-S", HERE, "-B", BUILD, *options], check=True)
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count() or 1)], check=True)
    # The package as a user imports it, with this build's module in the place of the installed one.
    package = BUILD / "inferno_cpu"
    package.mkdir(exist_ok=True)
    for file in [*(HERE / "src" / "inferno_cpu").glob("*.py"), *BUILD.glob("_native*.so")]:
        (package / file.name).unlink(missing_ok=True)
        (package / file.name).symlink_to(file)
    # Python itself is not instrumented: the runtime must be loaded first, and leaks of the
    # interpreter are not reported.
    runtimes = [_runtime("libasan.so"), _runtime("libubsan.so")]
    env = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "2",
    }
    code = (
        "import sys, pytest\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'skbc' not in type(f).__module__]  # "
        "an editable installation's\n"
        f"sys.path.insert(0, {str(BUILD)!r})\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(HERE / "tests"), "-q", *sys.argv[1:]], env=env
    ).returncode


def _runtime(name: str) -> str:
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
