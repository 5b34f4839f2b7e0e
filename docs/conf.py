"""How Sphinx makes the documentation site of this folder's Markdown: ``tox run -e docs``."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "netspy-scrapy"
copyright = "the netspy-scrapy contributors"  # noqa: A001 - Sphinx's name for it

release = metadata.version("netspy-scrapy")

extensions = ["myst_parser", "sphinx.ext.autodoc", "tables"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# A link that leads nowhere is a warning, and a warning ends the build.
nitpicky = True
# Docstrings name types of Scrapy and Python, which are documented elsewhere.
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Titles get the anchors that they have where the repository is browsed.
myst_heading_anchors = 3
# A block without a language is what a terminal or a log shows.
highlight_language = "none"

# Plain, reads well on a phone, and loads nothing from anywhere else.
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
