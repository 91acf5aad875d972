"""LabelColumn: what is written in the label column of a file, as names of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.errors import DataError
from clearhead.formatting import parse_whole_number
from clearhead.text import Row


@dataclass(frozen=True)
class LabelColumn:
    """How the label column is parsed: one label, or several with a separator; as names, or as indices into `names`.

    >>> LabelColumn(multi_label=True, names=("anger", "fear", "joy")).parse("2, 0")
    ('joy', 'anger')
    >>> LabelColumn().parse("a,b"), LabelColumn(multi_label=True).parse("")
    (('a,b',), ())
    """

    multi_label: bool = False
    separator: str = ","
    names: tuple[str, ...] = ()

    def parse(self, written: str) -> tuple[str, ...]:
        """The labels of one row, each once; none where nothing is written."""
        parts = written.split(self.separator) if self.multi_label else [written]
        stripped = (part.strip() for part in parts)
        return tuple(dict.fromkeys(self._name(part) for part in stripped if part))

    def collect(self, rows: Sequence[Row]) -> dict[str, int]:
        """The labels that occur and how often, in the order of `names`, or else sorted."""
        counts = Counter[str]()
        for row in rows:
            labels = self.parse(row.values[-1])
            if self.names and (unknown := [label for label in labels if label not in self.names]):
                raise DataError(
                    f"{row.where}: the label {unknown[0]!r} is not one of the {len(self.names)} in data.label_names, "
                    f"nor an index into it (0 to {len(self.names) - 1})"
                )
            counts.update(labels)
        # One label of many is something to tell apart if there are texts without it.
        if len(counts) < 2 and not (self.multi_label and counts and max(counts.values()) < len(rows)):
            place = f"{rows[0].file}: " if rows else ""
            said = f"at least two different labels are needed; found {', '.join(counts) or 'none'}"
            raise DataError(f"{place}{said}")
        return {label: counts[label] for label in (self.names or sorted(counts)) if label in counts}

    def _name(self, part: str) -> str:
        number = parse_whole_number(part)
        if part in self.names or number is None:
            return part
        return self.names[number] if number < len(self.names) else part
