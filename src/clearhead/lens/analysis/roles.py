"""Head roles: their formulas and thresholds, and HeadRoles, the table of all heads with the role of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.errors import LensError
from clearhead.lens.analysis.repeated_tokens import MIN_VISIBLE
from clearhead.lens.attention_names import check_name

NEAR = 2  # tokens on either side that are local
LOCAL_FACTOR = 4  # times as many keys as are near, for `local`
CAVEAT = "Where a head looks is not why the model answers: switch it off (ablate) to see what it does."
NONE = "none of these"
SYNONYMS = {  # names of roles in papers, and ours
    "sink": "'first'",
    "attention sink": "'first'",
    "previous token": "'previous'",
    "duplicate token": "'duplicate'",
    "retrieval": "no role, but a recipe in docs/lens-recipes.md,",
}


class Role(NamedTuple):
    """A role: its score lies between 0 and 1, and a head has the role from `threshold` on."""

    formula: str
    paper: str
    threshold: float
    rank: int  # of several roles a head gets the one with the lowest rank


# w(i, j) is the weight that query i gives to key j, t(i) its token; the mean is over all queries that count.
ROLES = {
    "induction": Role("mean of w(i, j+1), t(j) = t(i), j < i, on repeated random tokens", "Olsson et al. 2022", 0.4, 0),
    "duplicate": Role("mean of w(i, j), t(j) = t(i), j < i, on repeated random tokens", "Wang et al. 2022", 0.4, 0),
    "previous": Role("mean of w(i, i−1)", "Clark et al. 2019, Voita et al. 2019", 0.4, 1),
    "itself": Role("mean of w(i, i)", "Kovaleva et al. 2019", 0.4, 1),
    "next": Role("mean of w(i, i+1)", "Clark et al. 2019, Voita et al. 2019", 0.4, 1),
    "first": Role("mean of w(i, first visible key)", "Vig and Belinkov 2019, Xiao et al. 2023", 0.4, 2),
    "delimiter": Role("Σ of w(i, j) over delimiters j / Σ of all w(i, j)", "Clark et al. 2019", 0.5, 3),
    "local": Role("mean of Σ w(i, j) over |i−j| ≤ near; i sees ≥ 4·(2·near+1) keys", "Sukhbaatar et al. 2019", 0.6, 4),
    "broad": Role("mean of −Σ w ln w / ln(number of visible keys)", "Clark et al. 2019", 0.9, 5),
}


def counts_queries(role: str, visible: Int[Tensor, "..."], near: int = NEAR) -> Bool[Tensor, "..."]:
    """Which queries count for a role, from the number of keys that each sees.

    With fewer than 5 keys each gets much weight by chance alone. `local` needs 4 times as many as are near: a head that
    spreads its weight evenly then scores at most 1/4, well below the threshold.
    """
    return visible >= (LOCAL_FACTOR * (2 * near + 1) if role == "local" else MIN_VISIBLE)


class HeadRole(NamedTuple):
    """One head: its role and score, and its scores in all measured roles."""

    name: str
    head: int
    role: str
    score: float
    scores: dict[str, float]


class HeadRoles:
    """The heads of a model, each with its role; print it for a table. `roles["decoder.0.self", 1]` is one head.

    >>> roles = HeadRoles([("decoder.0.self", 1, {"previous": 0.93, "local": 0.95, "broad": 0.1})])
    >>> roles["decoder.0.self", 1].role, [one.head for one in roles.of("previous")]
    ('previous', [1])
    """

    def __init__(
        self,
        scores: Iterable[tuple[str, int, Mapping[str, float]]],
        thresholds: Mapping[str, float] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        for role, threshold in (thresholds or {}).items():
            check_role(role)
            if not _is_number(threshold):
                raise LensError(f"the threshold of {role!r} must be a number, got {threshold!r}")
        self.thresholds = {role: one.threshold for role, one in ROLES.items()} | dict(thresholds or {})
        self.notes = tuple(notes)
        self.heads = [self._called(name, head, dict(found)) for name, head, found in scores]

    def _called(self, name: str, head: int, scores: dict[str, float]) -> HeadRole:
        """The lowest-ranked role whose threshold is reached; within a rank, the one with the largest score."""
        reached = [role for role, score in scores.items() if score >= self.thresholds[role]]
        if not reached:
            return HeadRole(name, head, NONE, max(scores.values(), default=0.0), scores)
        role = min(reached, key=lambda one: (ROLES[one].rank, -scores[one]))
        return HeadRole(name, head, role, scores[role], scores)

    def of(self, role: str, *, min_score: float | None = None) -> list[HeadRole]:
        """The heads that play this role, best first; with `min_score`, all whose score in it is at least that.

        A head plays one role, the most special that it reaches: a sink that repeats the token before it is `previous`.
        What `min_score` finds has this role and its score in it.

        >>> roles = HeadRoles([("decoder.0.self", 1, {"previous": 0.5, "first": 0.45})])
        >>> roles.of("first"), [(one.head, one.score) for one in roles.of("first", min_score=0.4)]
        ([], [(1, 0.45)])
        """
        if role != NONE or min_score is not None:
            check_role(role)
        if min_score is None:
            return sorted((one for one in self.heads if one.role == role), key=lambda one: -one.score)
        if not _is_number(min_score) or not 0 <= min_score <= 1:
            raise LensError(f"min_score must be a number from 0 to 1, as scores are, got {min_score!r}")
        scored = self._score(role)
        return sorted((one for one in scored if one.score >= min_score), key=lambda one: -one.score)

    def best(self, role: str) -> HeadRole:
        """The head with the largest score in this role, with that score, whether it is called so or not.

        `roles[name, head]` has the role that it gets.
        """
        check_role(role)
        return max(self._score(role), key=lambda one: one.score)

    def _score(self, role: str) -> list[HeadRole]:
        """The heads that were measured for a role, each with its score in it."""
        scored = [one._replace(role=role, score=one.scores[role]) for one in self.heads if role in one.scores]
        if not scored:
            raise LensError("; ".join([f"the role {role!r} was measured of no head", *self.notes]))
        return scored

    def table(self) -> str:
        """One line per head: its role, and its score in every role, in hundredths; · for what was not measured."""
        measured = [role for role in ROLES if any(role in one.scores for one in self.heads)]
        wide = max([len("attention"), *(len(one.name) for one in self.heads)])
        lines = [f"{'attention':{wide}} head  {'role':13} score   {'  '.join(measured)}"]
        for name, head, role, score, scores in self.heads:
            cells = (f"{100 * scores[one]:z.0f}" if one in scores else "·" for one in measured)
            others = "  ".join(f"{cell:>{len(one)}}" for cell, one in zip(cells, measured, strict=True))
            shown = f"{100 * score:5.0f}" if role != NONE else "    –"
            lines.append(f"{name:{wide}} {head:4}  {role:13} {shown}   {others}")
        return "\n".join(lines)

    def legend(self) -> str:
        """How each role is measured, and who found it."""
        return "\n".join(
            f"{role:10} {one.formula}, from {self.thresholds[role]:g} on ({one.paper})" for role, one in ROLES.items()
        )

    def __getitem__(self, place: tuple[str, int]) -> HeadRole:
        if not isinstance(place, tuple) or len(place) != 2:
            name, head, *_ = self.heads[0] if self.heads else ("decoder.0.self", 0)
            raise LensError(f"roles are indexed by a name and a head, such as roles[{name!r}, {head}], got {place!r}")
        name, head = place
        check_name(name, dict.fromkeys(one.name for one in self.heads))
        found = [one for one in self.heads if one.name == name]
        if head not in [one.head for one in found]:
            raise LensError(f"{name!r}: heads {', '.join(str(one.head) for one in found)} were measured, not {head!r}")
        return next(one for one in found if one.head == head)

    def __iter__(self) -> Iterator[HeadRole]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __str__(self) -> str:
        return "\n".join([self.table(), "", *self.notes, CAVEAT])

    def __repr__(self) -> str:
        counts = {role: len(self.of(role)) for role in [*ROLES, NONE]}
        summary = ", ".join(f"{count} {role}" for role, count in counts.items() if count)
        return f"HeadRoles({len(self)} heads: {summary})"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_role(role: str) -> None:
    """Raises LensError for an unknown role, with the name under which we have it."""
    if role not in ROLES:
        hint = f"it is {SYNONYMS[role]} here" if role in SYNONYMS else f"there are {', '.join(ROLES)}"
        raise LensError(f"no role is called {role!r}; {hint}")
