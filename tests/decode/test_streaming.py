"""stream: the tokens of greedy and sample, one by one."""

import pytest
import torch

from clearhead.decode import Writer, greedy, sample, stream
from clearhead.errors import DecodeError
from tests.decode.models import END, START, sources, translator

OPTIONS = {"start": START, "end": END, "max_length": 8}


@pytest.mark.parametrize("row", range(5))
def test_a_stream_is_what_greedy_or_sample_write(trained, row):
    source, lengths = sources(5)
    writer = Writer.translating(trained, source[row : row + 1], lengths[row : row + 1])
    assert [*stream(writer, **OPTIONS)] == greedy(writer, **OPTIONS)[0].tokens
    rules = {"prefix": [9, 5], "no_repeat_ngram": 2, "forbidden": [7]}
    wanted = greedy(writer, **OPTIONS, **rules | {"prefix": [[9, 5]]})[0].tokens
    assert [*stream(writer, **OPTIONS, **rules)] == wanted
    one, other = (torch.Generator().manual_seed(row) for _ in range(2))
    cuts = {"temperature": 1.5, "top_k": 30, "top_p": 0.95, "min_p": 0.001}
    assert [*stream(writer, generator=one, **cuts, **OPTIONS)] == sample(writer, generator=other, **cuts, **OPTIONS)[
        0
    ].tokens


def test_a_token_is_worked_out_when_it_is_asked_for(monkeypatch):
    calls = []
    advance = Writer.advance
    monkeypatch.setattr(Writer, "advance", lambda self, tokens: (calls.append(1), advance(self, tokens))[1])
    source, lengths = sources(1)
    tokens = stream(Writer.translating(translator(), source, lengths), forbidden=[5], prefix=[7, 8, 9], **OPTIONS)
    assert next(tokens) == 7
    assert not calls
    assert [next(tokens), next(tokens)] == [8, 9]
    assert len(calls) == 2
    tokens.close()


def test_wrong_options_are_refused_at_once():
    source, lengths = sources(2)
    with pytest.raises(DecodeError, match="got a writer with 2"):
        stream(Writer.translating(translator(), source, lengths), **OPTIONS)
    with pytest.raises(DecodeError, match="greater than 0, got -1"):
        stream(Writer.translating(translator(), source[:1], lengths[:1]), temperature=-1.0, **OPTIONS)
