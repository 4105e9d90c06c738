"""How Sphinx reads and lays out the book: what its file conf.py would say, and formulas as MathML.

Nothing here is loaded from a network when a page is read: formulas are MathML, which browsers know, and all else lies
beside the pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fucina

THEME = Path(__file__).resolve().parent / "theme"


def settings() -> dict[str, Any]:
    """The values of conf.py."""
    return {
        "project": "fucina",
        "author": "the fucina contributors",
        "release": fucina.__version__,
        "language": "en",
        "extensions": ["myst_nb", "course.book.settings"],
        "exclude_patterns": [],
        "nb_execution_mode": "off",  # the outputs are those that are stored
        "nb_ipywidgets_js": {},  # no widget lives without a kernel, and its scripts would come from a network
        "nb_code_prompt_show": "Guess first. Then show the {type}",
        "nb_code_prompt_hide": "Hide the {type}",
        "myst_enable_extensions": ["amsmath", "deflist", "dollarmath"],
        "myst_heading_anchors": 4,
        "smartquotes": False,  # a contract's b"" stays Python
        "html_theme": "furo",
        "html_title": "fucina: the book of the course",
        "html_static_path": [str(THEME)],
        "html_css_files": ["book.css"],
        "html_js_files": ["book.js"],
        "html_math_renderer": "mathml",
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_show_search_summary": False,  # it fetches pages, which a browser refuses for files
        "html_theme_options": {"navigation_with_keys": True},
        "pygments_style": "a11y-high-contrast-light",
        "pygments_dark_style": "a11y-high-contrast-dark",
    }


def setup(app: Any) -> dict[str, Any]:
    """Make Sphinx write formulas as MathML."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _mathml(latex: str, block: bool) -> str:
    from docutils.utils.math import latex2mathml

    # as_block sets the attribute display, which the style sheet of a page cannot do
    return latex2mathml.tex2mathml(latex, as_block=block)


def _inline(visitor: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    visitor.body.append(_mathml(node.astext(), False))
    raise SkipNode


def _block(visitor: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    visitor.body.append('<div class="formula" tabindex="0">' + _mathml(node.astext(), True) + "</div>\n")
    raise SkipNode
