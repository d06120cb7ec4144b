"""How Sphinx builds the site: `make docs`. It needs no network, and a warning is an error there."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from wdjax.version import __version__  # noqa: E402

project = "wdjax"
copyright = "the authors of wdjax, Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"wdjax {release}"
html_static_path = ["data_flow.svg"]
html_show_sourcelink = False

# MathJax, which its pages fetch from its own network: without one, TeX is seen
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache" if os.environ.get("EXECUTE") else "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 600

default_role = "code"  # docstrings mark code by one backtick
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
nitpicky = True
# of signatures: most name a type of another library
nitpick_ignore_regex = [("py:(class|obj|data|exc)", ".*")]
