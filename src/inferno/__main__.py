"""The `inferno` command, and `python -m inferno`."""

from __future__ import annotations

import sys

_WITH_ENGINE = frozenset({"chat", "generate", "serve"})
"""Commands that start an engine process at once."""
_NO_ENGINE = frozenset({"-h", "--help", "--print-config", "--url"})
"""Options with which they do not."""


def main() -> None:
    """Run the command. Does not return.

    The engine process imports torch, which takes most of a start, so it is launched before even the
    command line is imported. It ends with this process if the command does not need it after all.
    """
    early = None
    words = [word.partition("=")[0] for word in sys.argv[1:]]
    if words and words[0] in _WITH_ENGINE and not _NO_ENGINE.intersection(words):
        from inferno.process.launch import launch_early

        early = launch_early()
    from inferno.cli import main as run

    run(early=early)


if __name__ == "__main__":
    main()
