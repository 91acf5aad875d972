"""Sight: what was seen of one attention, in document positions, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.attention.inputs import Call
from clearhead.errors import RecordError
from clearhead.lens.kept import Kept
from clearhead.lens.measures import Measures


class Looked(NamedTuple):
    """A key that a query looked at: its position, the weight that it got, and its text where that is known."""

    key: int
    weight: float
    text: str | None


@dataclass(frozen=True, repr=False)
class Sight(Measures):
    """All measures of one attention in one forward pass, or in a generation that grew step by step.

    Keys are document positions, also those in `peak_key` and `top_keys`. The map's rows are `blocks[0]` of the
    measured queries each, its columns `blocks[1]` positions. A sample that was done before the others, or a beam of
    such an input, sees nothing from then on.
    """

    name: str = ""
    cross: bool = False  # whether the keys are those of another text
    heads: tuple[int, ...] = ()  # the numbers of the heads that were measured
    queries: Int[Tensor, " queries"] = field(kw_only=True)  # the positions of the queries that were measured
    blocks: tuple[int, int] = (0, 0)
    inputs: tuple[int, ...] = ()  # which input each sample belongs to: several, where beams are
    probes: dict[str, Float[Tensor, "batch heads queries"]] = field(default_factory=dict)
    norms: Float[Tensor, "batch heads keys"] | None = None  # ‖v W_O‖ of each key
    kept: Kept | None = None
    texts: Sequence[Sequence[str | None]] | None = None  # of the keys, sample by sample

    @property
    def keys(self) -> int:
        """How many positions the keys have."""
        return 0 if self.received is None else self.received.shape[2]

    def top(self, batch: int, head: int, query: int) -> list[Looked]:
        """The keys that the query at this position looked at most, largest weight first."""
        place, row = self.place_of(head), self.row_of(query)
        self._check_sample(batch)
        keys, weights = self.top_keys[batch, place, row].tolist(), self.top_weights[batch, place, row].tolist()
        texts = None if self.texts is None else self.texts[batch]
        return [
            Looked(key, weight, None if texts is None or key >= len(texts) else texts[key])
            for key, weight in zip(keys, weights, strict=True)
            if key >= 0
        ]

    def weights(
        self, batch: int, head: int, queries: int | slice | None = None, keys: int | slice | None = None
    ) -> Float[Tensor, "queries keys"]:
        """The exact weights of a window, from the kept q and k; queries and keys are document positions.

        It takes time and memory for the window alone. One number instead of a slice keeps its axis.
        """
        self._check_sample(batch)
        return self._kept().window(batch, self.place_of(head), queries, keys)

    def attention(self) -> Call:
        """Everything that went in, as one attention over the heads that were watched; v is not kept, k stands in."""
        return self._kept().call()

    def place_of(self, head: int) -> int:
        """Where a head lies in the tensors, by its number."""
        if head not in self.heads:
            raise RecordError(f"{self.name!r} was watched for heads {list(self.heads)}, not {head!r}")
        return self.heads.index(head)

    def row_of(self, query: int) -> int:
        """Where the query at a position lies in the tensors."""
        found = (self.queries == query).nonzero()
        if not len(found):
            apart = (self.queries - query).abs()
            near = f"; the nearest is {self.queries[apart.argmin()]}" if len(apart) else ""
            raise RecordError(f"no query at position {query} was measured by {self.name!r}{near}")
        return int(found[0])

    def _kept(self) -> Kept:
        if self.kept is None:
            raise RecordError(f"the q and k of {self.name!r} were not kept; watch(…, keep='qk') keeps them")
        return self.kept

    def _check_sample(self, batch: int) -> None:
        if not 0 <= batch < self.entropy.shape[0]:
            raise RecordError(f"{self.name!r} has {self.entropy.shape[0]} samples, numbered from 0, not {batch!r}")

    def __repr__(self) -> str:
        batch, heads, queries = self.entropy.shape
        kept = ", q and k kept" if self.kept is not None else ""
        return f"Sight({self.name!r}: {batch} samples × {heads} heads × {queries} queries × {self.keys} keys{kept})"
