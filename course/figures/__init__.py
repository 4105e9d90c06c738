"""The course's figures: one look, readable in light and dark notebooks, safe for colour-blind eyes."""

from .blocks import block_bytes
from .cache import cache_rows
from .course_map import course_map
from .curves import bars, curves
from .graph import state_graph
from .grid import quant_grid
from .layer import transformer_layer
from .line import number_line
from .loop import loop_states
from .passes import pass_timeline
from .pool import prefix_pool
from .roofline import lanes_layout, roofline
from .sliders import slider
from .svg import Drawing, Figure
from .tokens import accept_reject, token_strip

__all__ = [
    "Drawing",
    "Figure",
    "accept_reject",
    "bars",
    "block_bytes",
    "cache_rows",
    "course_map",
    "curves",
    "lanes_layout",
    "loop_states",
    "number_line",
    "pass_timeline",
    "prefix_pool",
    "quant_grid",
    "roofline",
    "slider",
    "state_graph",
    "token_strip",
    "transformer_layer",
]
