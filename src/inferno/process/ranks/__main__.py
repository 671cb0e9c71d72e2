"""A rank's process: `python -m inferno.process.ranks FOLDER RANK PARENT`."""

from __future__ import annotations

from inferno.process.ranks.following import main

if __name__ == "__main__":
    main()
