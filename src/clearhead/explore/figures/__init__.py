"""Figures of attention as PNG, SVG or PDF, drawn with matplotlib from recorded attention or plain tensors."""

from clearhead.explore.figures.atlas import head_atlas
from clearhead.explore.figures.confusion import confusion_matrix
from clearhead.explore.figures.heatmaps import alignment, head_grid, head_map
from clearhead.explore.figures.lesson_figures import Cost, cost, measure_costs, positional_encodings, saturation
from clearhead.explore.figures.media_figures import sound_alignment, word_overlays
from clearhead.explore.figures.style import save, theme

__all__ = [
    "Cost",
    "alignment",
    "confusion_matrix",
    "cost",
    "head_atlas",
    "head_grid",
    "head_map",
    "measure_costs",
    "positional_encodings",
    "saturation",
    "save",
    "sound_alignment",
    "theme",
    "word_overlays",
]
