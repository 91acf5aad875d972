"""THE EYE: what every head looks at, exactly, in O(n) memory."""

from clearhead.lens.ablation import ablate, effect, head_effects
from clearhead.lens.flow import Rollout, rollout
from clearhead.lens.heads import coverage, head_roles
from clearhead.lens.measures import Measures
from clearhead.lens.measuring import measure
from clearhead.lens.norms import norm_received, norm_weights
from clearhead.lens.record import Record
from clearhead.lens.roles import ROLES, HeadRole, HeadRoles
from clearhead.lens.sights import Forward, Sight
from clearhead.lens.watching import expected_bytes, watch

__all__ = [
    "ROLES",
    "Forward",
    "HeadRole",
    "HeadRoles",
    "Measures",
    "Record",
    "Rollout",
    "Sight",
    "ablate",
    "coverage",
    "effect",
    "expected_bytes",
    "head_effects",
    "head_roles",
    "measure",
    "norm_received",
    "norm_weights",
    "rollout",
    "watch",
]
