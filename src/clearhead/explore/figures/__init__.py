"""Figures: what heads look at, as PNG, SVG or PDF; drawn with matplotlib, from Records, Sights or plain tensors."""

from clearhead.explore.figures.atlas import head_atlas
from clearhead.explore.figures.confusion import confusion_matrix
from clearhead.explore.figures.costs import Cost, cost, measure_costs
from clearhead.explore.figures.curves import curves
from clearhead.explore.figures.lessons import positional_encodings, saturation
from clearhead.explore.figures.look import save, theme
from clearhead.explore.figures.maps import alignment, head_grid, head_map, side_by_side
from clearhead.explore.figures.received import received, shaded_text

__all__ = [
    "Cost",
    "alignment",
    "confusion_matrix",
    "cost",
    "curves",
    "head_atlas",
    "head_grid",
    "head_map",
    "measure_costs",
    "positional_encodings",
    "received",
    "saturation",
    "save",
    "shaded_text",
    "side_by_side",
    "theme",
]
