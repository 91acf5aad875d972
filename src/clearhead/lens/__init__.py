"""THE EYE: what every head looks at, exactly, in O(n) memory."""

from clearhead.lens.measures import Measures
from clearhead.lens.measuring import measure
from clearhead.lens.record import Record
from clearhead.lens.sights import Forward, Sight
from clearhead.lens.watching import watch

__all__ = ["Forward", "Measures", "Record", "Sight", "measure", "watch"]
