"""Record: everything a watch measured; index it by attention name, save it, load it, merge it with others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from clearhead.errors import RecordError
from clearhead.lens.record.attention_views import Forward, Sight, check_seen_name
from clearhead.lens.record.record_tables import HeadChange, RunningStatistics, Statistics, compare_records, make_table
from clearhead.lens.record.token_labels import make_namer


def _add_call(call: Forward, running: dict[str, RunningStatistics]) -> None:
    """Adds the attentions of a call, unless an exception interrupted it."""
    for name in call.names if call.interrupted is None else ():
        running.setdefault(name, RunningStatistics()).add(call[name])


VIEWER = "clearhead.explore"  # by name: the lens must not import it


class Record:
    """The recorded attentions: `record[name]` if it ran once, `record.calls[i][name]` if the model ran several times.

    A call whose forward pass raised has `interrupted`, the exception: `record[name]` prefers one that was complete.

    >>> import torch
    >>> from clearhead import Encoder, ModelConfig, watch
    >>> model = Encoder(ModelConfig.named("tiny", vocabulary=11))
    >>> with watch(model) as record:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> record.names
    ['encoder.0.self', 'encoder.1.self']
    >>> record["encoder.0.self"]
    Sight('encoder.0.self': 1 sample × 4 heads × 3 queries × 3 keys)
    """

    def __init__(self, names: Sequence[str] = (), calls: Iterable[Forward] = ()) -> None:
        self.watched, self.calls = list(names), list(calls)
        self.settings: dict[str, Any] = {}  # the options of watch
        self.running: dict[str, RunningStatistics] = {}  # of calls that keep="statistics" did not keep
        self.expected_bytes = 0  # an estimate from the first attention of each call

    @property
    def names(self) -> list[str]:
        """The recorded attentions, in the order of the model."""
        seen = dict.fromkeys([*self.running, *(name for call in self.calls for name in call.names)])
        order = {name: number for number, name in enumerate(self.watched)}
        return sorted(seen, key=lambda name: order.get(name.partition(":")[0], len(order)))

    @property
    def missing(self) -> list[str]:
        """The watched attentions that were not recorded: they did not run, or not in a way that can be observed."""
        seen = {name.partition(":")[0] for name in self.names}
        return [name for name in self.watched if name not in seen]

    def __getitem__(self, name: str) -> Sight:
        check_seen_name(name, self.names)
        numbers = [number for number, call in enumerate(self.calls) if name in call]
        numbers = [number for number in numbers if self.calls[number].interrupted is None] or numbers
        if not numbers:
            raise RecordError(f"of {name!r} only record.statistics() was kept, by watch(…, keep='statistics')")
        if len(numbers) > 1:
            raise RecordError(
                f"{name!r} ran in {len(numbers)} of {len(self.calls)} calls: say which, as "
                f"record.calls[{numbers[0]}][{name!r}]; record.statistics() has numbers over all of them"
            )
        return self.calls[numbers[0]][name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def merge(cls, records: Iterable[Record]) -> Record:
        """All calls of several records in one, in their order: for statistics over a corpus."""
        records = list(records) if isinstance(records, Iterable) else [records]
        if strange := [record for record in records if not isinstance(record, Record)]:
            raise RecordError(f"merge takes a list of records, got {strange[0]!r:.60}")
        if not records:
            raise RecordError("there are no records to merge")
        merged = cls(
            list(dict.fromkeys(name for record in records for name in record.watched)),
            [call for record in records for call in record.calls],
        )
        for record in records:
            for name, running in record.running.items():
                merged.running.setdefault(name, RunningStatistics()).merge(running)
        merged.expected_bytes = sum(record.expected_bytes for record in records)
        return merged

    def statistics(self) -> dict[str, Statistics]:
        """Of every attention and head: the mean and spread of its measures over all queries that see anything.

        Calls that an exception interrupted are left out.
        """
        running = copy.deepcopy(self.running)
        for call in self.calls:
            _add_call(call, running)
        return {name: running[name].result() for name in self.names if name in running}

    def reduce(self, call: Forward) -> None:
        """Adds a call to the running statistics and drops it."""
        _add_call(call, self.running)
        self.calls[:] = [other for other in self.calls if other is not call]

    def to_numpy(self, level: str = "head") -> dict[str, Any]:
        """A table as columns of NumPy arrays: one row per "head" (means and spreads over all calls), "query" or "key".

        >>> import torch
        >>> from clearhead import Encoder, ModelConfig, watch
        >>> model = Encoder(ModelConfig.named("tiny", vocabulary=11))
        >>> with watch(model) as record:
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> table = record.to_numpy("query")  # spans and probes are columns too: "mass passage", "probe before"
        >>> list(table)[:6], len(table["entropy"])
        (['call', 'name', 'sample', 'head', 'query', 'logsumexp'], 24)
        """
        return make_table(self, level)

    def to_pandas(self, level: str = "head") -> Any:
        """The table of `to_numpy` as a pandas DataFrame; needs pandas."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            raise RecordError("to_pandas needs the package pandas: pip install pandas, or use to_numpy()") from None
        return pandas.DataFrame(make_table(self, level))

    @classmethod
    def compare(cls, a: Record, b: Record) -> list[HeadChange]:
        """What changed from one record to another of the same attentions: per head and measure, the largest first.

        For two checkpoints of a model, or two prompts. A difference is ranked by its size in standard deviations over
        queries, since distances and entropies have different scales.
        """
        if strange := [record for record in (a, b) if not isinstance(record, Record)]:
            raise RecordError(
                f"compare takes two records, got a {type(strange[0]).__name__}; Record.merge joins several into one"
            )
        return compare_records(a, b)

    def label(self, namer: Any = None, **kinds: Any) -> Record:
        """Gives every token its text, from a tokenizer or a function of its id. Returns the record.

        If the tokenizers differ: `record.label(source=…, target=…)`.
        """
        recorded = {kind for call in self.calls for kind in call.ids}
        if unknown := sorted(set(kinds) - recorded):
            raise RecordError(
                f"the record has no tokens of {unknown[0]!r}; it has {', '.join(sorted(recorded)) or 'none'}"
            )
        if not recorded:
            raise RecordError(
                "the record has no token ids: the input was vectors or pictures, or one pass read several texts"
            )
        namers = {kind: kinds.get(kind, namer) for kind in recorded}
        names = {kind: make_namer(chooser) for kind, chooser in namers.items() if chooser is not None}
        for call in self.calls:
            for kind, ids in call.ids.items():
                if kind in names:
                    numbers = sorted(set(ids.unique().tolist()) - {-1})
                    call.labels[kind] = {number: names[kind](number) for number in numbers}
                    (call.about.surfaces or {}).pop(kind, None)
        return self

    def save(self, path: str | Path) -> None:
        """Writes all of it to one file, which may replace an older record but no other file.

        It holds the tokens, and what keep="qk" kept can reveal them too.
        """
        from clearhead.lens.record.record_file import write_record

        write_record(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """The saved record; RecordError if the file cannot be read."""
        from clearhead.lens.record.record_file import read_record

        return read_record(Path(path))

    def open(self, **options: Any) -> Any:
        """Shows every weight on a page, from a server on this machine; see `clearhead.explore.open_record`.

        The page and its address contain the input: they are for this machine alone.
        """
        return import_module(VIEWER).open_record(self, **options)

    def _repr_html_(self) -> str | None:
        shown: str | None = import_module(VIEWER).show_record(self) if self.calls else None
        return shown

    def __repr__(self) -> str:
        calls = f"{len(self.calls)} call{'s' * (len(self.calls) != 1)}"
        if self.running:
            calls = f"statistics and {calls}"
        lines = [f"  {call[name]!r}" for call in self.calls[:1] for name in call.names[:24]]
        more = max(0, len(self.calls[0].names) - 24) if self.calls else 0
        rest = [f"  … and {more} more"] if more else []
        if self.calls and (missing := self.missing):
            shown = ", ".join(missing[:6]) + (", …" if len(missing) > 6 else "")
            rest.append(f"  not recorded, of {len(self.watched)} that were watched: {shown}")
        rest += [f"  call {n} interrupted: {call.interrupted}" for n, call in enumerate(self.calls) if call.interrupted]
        return "\n".join([f"Record of {calls}, {len(self.names)} attentions", *lines, *rest])
