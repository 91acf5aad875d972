"""What a Record holds: every measure of every attention by digest, windows of exact weights, tables."""

from __future__ import annotations

from typing import Any

from clearhead import ClearheadError, Record
from recordings.values import to_plain

PER_QUERY = ("queries", "logsumexp", "entropy", "peak", "peak_key", "distance", "first", "top_keys", "top_weights")
PER_KEY = ("received", "norms", "seen_by")
MEASURES = (*PER_QUERY, *PER_KEY, "map", "max_score", "span_mass", "visible", "probes")
PLACES = ("heads", "blocks", "inputs", "cross", "keys", "tokens", "sharing")


def describe_record(record: Record) -> dict[str, Any]:
    """All numbers of a record by call and attention. What was not recorded is None."""
    calls = [{name: describe_attention(call[name]) for name in call.names} for call in record.calls]
    found: dict[str, Any] = {"names": record.names, "missing": record.missing, "calls": calls}
    found["statistics"] = to_plain(record.statistics())
    if record.calls:
        found["queries"], found["keys"] = (to_plain(record.to_numpy(level)) for level in ("query", "key"))
    return found


def describe_attention(sight: Any) -> dict[str, Any]:
    """The measures of one attention, and windows of its weights, or why there are none."""
    found = {name: to_plain(getattr(sight, name, None)) for name in (*MEASURES, *PLACES)}
    last, rows = len(sight.entropy) - 1, sight.queries[-3:].tolist()
    try:
        found["all heads"] = to_plain(sight.weights(batch=0, queries=rows, keys=slice(0, 9)))
        found["last sample"] = to_plain(sight.weights(batch=last, head=sight.heads[-1], queries=rows))
    except ClearheadError as error:
        found["no weights"] = str(error)
    return found
