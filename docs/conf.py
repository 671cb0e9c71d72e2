from __future__ import annotations

import inferno

project = "inferno"
author = "the inferno authors"
release = inferno.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"inferno {release}"

myst_heading_anchors = 3
# `text` blocks are output, not a language.
highlight_language = "text"
