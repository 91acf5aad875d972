"""Record: what was seen; ask it by name, save it, load it, merge it with others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from clearhead.errors import RecordError
from clearhead.lens.sights import Sight

Namer = Callable[[int], str]


class Pending(Protocol):
    """What is still being watched."""

    def sight(self, forward: Forward) -> Sight: ...


class Forward:
    """One forward pass, or a generation that grew step by step: `forward[name]` is what one attention saw.

    `ids` are the token numbers that went in, `(samples, tokens)`: of "source" and "target", or of "tokens".
    """

    def __init__(self, sights: Mapping[str, Sight | Pending] | None = None, ids: dict[str, Tensor] | None = None):
        self.sights: dict[str, Sight | Pending] = dict(sights or {})
        self.ids: dict[str, Tensor] = ids or {}
        self.labels: dict[str, dict[int, str]] = {}

    @property
    def names(self) -> list[str]:
        return list(self.sights)

    def __getitem__(self, name: str) -> Sight:
        check_known(name, self.names)
        found = self.sights[name]
        return found if isinstance(found, Sight) else found.sight(self)

    def __contains__(self, name: object) -> bool:
        return name in self.sights

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.sights)

    def __repr__(self) -> str:
        return f"Forward({', '.join(self.names)})"


class Record:
    """What was seen: `record[name]` of the only call, `record.calls[i][name]` where the model ran more than once."""

    def __init__(self, names: Sequence[str] = (), calls: Iterable[Forward] = ()) -> None:
        self.known, self.calls = list(names), list(calls)

    @property
    def names(self) -> list[str]:
        """The attentions that were seen, in the order of the model."""
        seen = dict.fromkeys(name for call in self.calls for name in call.names)
        return [name for name in self.known if name in seen] + [name for name in seen if name not in self.known]

    def __getitem__(self, name: str) -> Sight:
        check_known(name, self.names)
        if len(self.calls) > 1:
            raise RecordError(
                f"the model ran {len(self.calls)} times: say which, as record.calls[0][{name!r}]; "
                "record.statistics() has numbers over all of them"
            )
        return self.calls[0][name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @classmethod
    def merge(cls, records: Iterable[Record]) -> Record:
        """All calls of several records in one, in their order: for statistics over a corpus."""
        records = list(records)
        names = list(dict.fromkeys(name for record in records for name in record.known))
        return cls(names, [call for record in records for call in record.calls])

    def save(self, path: str | Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | Path) -> Record:
        raise NotImplementedError

    def label(self, namer: Any = None, **kinds: Any) -> Record:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Record({len(self.calls)} calls of {len(self.names)} attentions)"


def check_known(name: str, names: Sequence[str]) -> None:
    """Refuses a name that nothing was seen of, and says which comes near."""
    if name not in names:
        near = get_close_matches(str(name), names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:6]) or 'none'}"
        raise RecordError(f"nothing was seen of an attention called {name!r}; {hint}")
