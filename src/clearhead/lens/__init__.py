"""THE EYE: what every head looks at, exactly, in O(n) memory."""

from clearhead.lens.measures import Measures
from clearhead.lens.measuring import measure

__all__ = ["Measures", "measure"]
