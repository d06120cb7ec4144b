"""Sphinx configuration of the site: `make docs`.

It needs no network. Warnings are errors. EXECUTE=0 skips running the notebooks.
"""

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
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False

# pages load MathJax from the network; without a network they show TeX
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off" if os.environ.get("EXECUTE") == "0" else "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600

# fields as a list; napoleon's own style links names such as "memory" to unrelated objects
napoleon_custom_sections = [("Attributes", "params_style")]
default_role = "code"  # docstrings mark code with single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
nitpicky = True
# types in signatures, most of them from other libraries
nitpick_ignore_regex = [("py:(class|obj|data|exc)", ".*")]
