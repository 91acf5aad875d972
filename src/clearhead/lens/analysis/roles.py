"""Head roles: formulas, thresholds, a table of all heads, and the repeated tokens on which induction is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from clearhead.errors import LensError
from clearhead.lens.attention_names import check_name, to_python_number
from clearhead.lens.capture.watch_context import watch
from clearhead.lens.capture.watch_settings import Probe
from clearhead.lens.measures.selections import is_whole

PASSAGE = 64  # random tokens, at most, which are then repeated
SAMPLES = 4  # texts of repeated random tokens
MIN_VISIBLE = 5  # keys that a query must see to count: with fewer, each gets much weight by chance alone
NEAR = 2  # tokens on either side that are local
LOCAL_FACTOR = 4  # for `local`, a query must see this many times the keys that are near
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
    >>> roles["decoder.0.self", 1].role, [head.head for head in roles.of("previous")]
    ('previous', [1])
    """

    def __init__(self, scores: Iterable[tuple[str, int, Mapping[str, float]]], notes: Sequence[str] = ()) -> None:
        self.notes = tuple(notes)
        self.heads = [_choose_role(name, head, dict(of_head)) for name, head, of_head in scores]

    def of(self, role: str, *, min_score: float | None = None) -> list[HeadRole]:
        """The heads that play this role, best first; with `min_score`, all whose score in it is at least that.

        A head plays one role, the most special that it reaches: a sink that repeats the token before it is `previous`.
        What `min_score` finds has this role and its score in it.

        >>> roles = HeadRoles([("decoder.0.self", 1, {"previous": 0.5, "first": 0.45})])
        >>> roles.of("first"), [(head.head, head.score) for head in roles.of("first", min_score=0.4)]
        ([], [(1, 0.45)])
        """
        if role != NONE or min_score is not None:
            check_role(role)
        if min_score is None:
            heads = [head for head in self.heads if head.role == role]
        elif isinstance(min_score, bool) or not isinstance(min_score, (int, float)) or not 0 <= min_score <= 1:
            raise LensError(f"min_score must be a number from 0 to 1, as scores are, got {min_score!r}")
        else:
            heads = [head for head in self._score(role) if head.score >= min_score]
        return sorted(heads, key=lambda head: -head.score)

    def best(self, role: str) -> HeadRole:
        """The head with the largest score in this role, with that score, whatever role `roles[name, head]` has."""
        check_role(role)
        return max(self._score(role), key=lambda head: head.score)

    def _score(self, role: str) -> list[HeadRole]:
        """The heads that were measured for a role, each with its score in it."""
        scored = [head._replace(role=role, score=head.scores[role]) for head in self.heads if role in head.scores]
        if not scored:
            raise LensError("; ".join([f"the role {role!r} was measured of no head", *self.notes]))
        return scored

    def table(self) -> str:
        """One line per head: its role, and its score in every role, in hundredths; · for what was not measured."""
        measured = [role for role in ROLES if any(role in head.scores for head in self.heads)]
        wide = max([len("attention"), *(len(head.name) for head in self.heads)])
        lines = [f"{'attention':{wide}} head  {'role':13} score   {'  '.join(measured)}"]
        for name, head, role, score, scores in self.heads:
            cells = {column: f"{100 * scores[column]:z.0f}" if column in scores else "·" for column in measured}
            others = "  ".join(f"{cell:>{len(column)}}" for column, cell in cells.items())
            shown = f"{100 * score:5.0f}" if role != NONE else "    –"
            lines.append(f"{name:{wide}} {head:4}  {role:13} {shown}   {others}")
        return "\n".join(lines)

    def legend(self) -> str:
        """How each role is measured, and who found it."""
        return "\n".join(
            f"{name:10} {role.formula}, from {role.threshold:g} on ({role.paper})" for name, role in ROLES.items()
        )

    def __getitem__(self, pair: tuple[str, int | Tensor]) -> HeadRole:
        if not isinstance(pair, tuple) or len(pair) != 2:
            name, head, *_ = self.heads[0] if self.heads else ("decoder.0.self", 0)
            raise LensError(f"roles are indexed by a name and a head, such as roles[{name!r}, {head}], got {pair!r}")
        name, number = pair[0], to_python_number(pair[1])
        check_name(name, dict.fromkeys(head.name for head in self.heads))
        of_attention = {head.head: head for head in self.heads if head.name == name}
        if not is_whole(number) or number not in of_attention:
            raise LensError(f"{name!r}: heads {', '.join(map(str, of_attention))} were measured, not {number!r}")
        return of_attention[number]

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


def _choose_role(name: str, head: int, scores: dict[str, float]) -> HeadRole:
    """The lowest-ranked role whose threshold is reached; within a rank, the one with the largest score."""
    reached = [role for role, score in scores.items() if score >= ROLES[role].threshold]
    if not reached:
        return HeadRole(name, head, NONE, max(scores.values(), default=0.0), scores)
    role = min(reached, key=lambda role: (ROLES[role].rank, -scores[role]))
    return HeadRole(name, head, role, scores[role], scores)


def check_role(role: str) -> None:
    """Raises LensError for an unknown role, with the name under which we have it."""
    if role not in ROLES:
        hint = f"it is {SYNONYMS[role]} here" if role in SYNONYMS else f"there are {', '.join(ROLES)}"
        raise LensError(f"no role is called {role!r}; {hint}")


def draw_repeated_tokens(
    numbers: Sequence[int], size: int = PASSAGE, *, chance: torch.Generator, samples: int = SAMPLES
) -> Int[Tensor, "samples tokens"]:
    """Rows of `size` distinct tokens drawn from `numbers`, each followed by the same tokens again.

    >>> draw_repeated_tokens([7, 8, 9], 3, chance=torch.Generator().manual_seed(0), samples=1)
    tensor([[9, 7, 8, 9, 7, 8]])
    """
    ids = torch.tensor(numbers)
    rows = [ids[torch.randperm(len(ids), generator=chance)[:size]] for _ in range(samples)]
    return torch.stack(rows).repeat(1, 2)


def make_repeat_probes(size: int) -> dict[str, Probe]:
    """Which key each query of the second copy is asked about: the same token before, and the token after that one."""

    def earlier(positions: Tensor, step: int) -> Tensor:
        return torch.where(positions >= size, positions - size + step, -1)

    return {"duplicate": partial(earlier, step=0), "induction": partial(earlier, step=1)}


@torch.no_grad()
def score_repeated_tokens(model: nn.Module, tokens: Int[Tensor, "samples tokens"]) -> dict[str, dict[str, list[float]]]:
    """The scores `previous`, `induction` and `duplicate` of every self-attention head, by the attention's name.

    `tokens` come from `draw_repeated_tokens`. `previous` is the mean weight on the token before, over all queries that
    see five keys or more; `induction` the mean weight of a token of the second copy on the one after its first
    occurrence, `duplicate` on its first occurrence (see `ROLES`).
    """
    size = tokens.shape[1] // 2
    if tokens.shape[1] < 2 * MIN_VISIBLE or not torch.equal(tokens[:, :size], tokens[:, size:]):
        raise LensError(f"tokens must be a block of at least {MIN_VISIBLE} that comes twice; got {tuple(tokens.shape)}")
    probes: dict[str, Probe] = {**make_repeat_probes(size), "previous": partial(torch.add, -1)}
    with watch(model, pixels=0, top=0, probes=probes) as record:
        model(tokens)
    scores: dict[str, dict[str, list[float]]] = {}
    for sight in (record[name] for name in record.names):
        if not sight.cross:
            first = {"previous": MIN_VISIBLE - 1, "induction": size, "duplicate": size}
            means = {role: sight.probes[role][..., start:].double().mean((0, 2)) for role, start in first.items()}
            scores[sight.name] = {role: mean.tolist() for role, mean in means.items()}
    return scores
