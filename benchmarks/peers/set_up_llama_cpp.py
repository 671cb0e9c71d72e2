"""Compiles llama.cpp out of llama-cpp-python's source distribution, once: the libraries that the
package then loads, and beside them its own `llama-bench` and `llama-server`.

python set_up_llama_cpp.py VERSION

Runs in the environment that is to have it, with cmake and ninja. May be repeated: what was compiled
is kept, in `llama.cpp` of the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

ENVIRONMENT = Path(sys.prefix)
BUILD = ENVIRONMENT / "llama.cpp"
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
"""What llama-cpp-python's own build sets, and its tools."""
TARGETS = ("llama", "llama-bench", "llama-server")


def sources(version: str) -> Path:
    """The unpacked source distribution."""
    folder = ENVIRONMENT / "src" / f"llama_cpp_python-{version}"
    if not folder.exists():
        archives = folder.parent
        pip(
            *("download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", str(archives)),
            f"llama-cpp-python=={version}",
        )
        with tarfile.open(next(archives.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(archives, filter="data")
    return folder


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def main() -> None:
    folder = sources(sys.argv[1])
    # The wheels of cmake and ninja put their programs beside the interpreter.
    os.environ["PATH"] = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    source = folder / "vendor" / "llama.cpp"
    subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", BUILD, *FLAGS], check=True)
    subprocess.run(["cmake", "--build", BUILD, "--target", *TARGETS], check=True)
    os.environ["CMAKE_ARGS"] = "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"
    pip("install", str(folder))
    package = next(ENVIRONMENT.glob("lib/python*/site-packages/llama_cpp"))
    if not (package / "lib").exists():
        (package / "lib").symlink_to(BUILD / "bin")


if __name__ == "__main__":
    main()
