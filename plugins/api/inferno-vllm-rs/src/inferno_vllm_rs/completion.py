"""`python -m inferno_vllm_rs.completion`: see `commands`."""

from __future__ import annotations

from inferno_vllm_rs.commands import run

if __name__ == "__main__":
    run("completion")
