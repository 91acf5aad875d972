"""The lens: exact statistics of every attention head of a running model, in O(n) memory."""

from clearhead.lens.analysis.ablation import ablate, head_effects
from clearhead.lens.analysis.attention_rollout import Rollout, rollout
from clearhead.lens.analysis.hidden_tokens import hide
from clearhead.lens.analysis.norms import coverage, norm_weights
from clearhead.lens.analysis.role_measurement import head_roles
from clearhead.lens.analysis.roles import ROLES, HeadRole, HeadRoles
from clearhead.lens.capture.watch_context import expected_bytes, watch
from clearhead.lens.measures.definition import Measures
from clearhead.lens.measures.measure_dispatch import measure
from clearhead.lens.record.attention_record import Record
from clearhead.lens.record.attention_views import Forward, Sight

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
    "expected_bytes",
    "head_effects",
    "head_roles",
    "hide",
    "measure",
    "norm_weights",
    "rollout",
    "watch",
]
