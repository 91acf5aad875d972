"""Entities of texts with their probabilities, their scores, and the forward passes that `look` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from clearhead.tasks.answerer import Answerer, Scores
from clearhead.tasks.settings import Options
from clearhead.tasks.tagging.entity_tables import count_tables
from clearhead.tasks.tagging.sentences import Sentence
from clearhead.tasks.tagging.tagged_text import TaggedText
from clearhead.tasks.tagging.tagger import Tagger, score_words
from clearhead.tasks.tagging.tagging_examples import WindowTokens
from clearhead.tasks.tagging.tagging_processor import TaggingProcessor
from clearhead.tasks.trace import TaskTracer, Trace, note_unknown

if TYPE_CHECKING:
    from clearhead.text import Row


class TaggingAnswerer(Answerer[TaggingProcessor, Tagger, Sentence, Options]):
    @torch.no_grad()
    def predict(self, inputs: Sequence[Sentence], options: Options, *, inputs_before: int = 0) -> list[TaggedText]:
        processor, model = self.processor, self.model
        scores = score_words(model, processor.encode(inputs), pad=processor.tokenizer.pad, most=options.batch)
        decoded = processor.decoder.decode(scores, model.steps())
        return [TaggedText.describe(sentence, spans) for sentence, spans in zip(inputs, decoded, strict=True)]

    def score(self, rows: Sequence[Row], predictions: Sequence[TaggedText], options: Options) -> Scores:
        sentences = [self.processor.inputs.of_row(row) for row in rows]
        return count_tables(sentences, [answer.spans for answer in predictions]).scores()


class TaggingTrace(Trace):
    """A trace with the additional inputs of a tagger."""

    window: WindowTokens


class TaggingTracer(TaskTracer[TaggingAnswerer]):
    def traces(self, given: str, *, answer: str | None, options: Options) -> list[Trace]:
        """A text, read once; a long one once for each window."""
        self.refuse_answer(answer)
        processor = self.answerer.processor
        sentence = processor.inputs.check(given)
        [prediction] = self.answerer.predict([sentence], options)
        [windows] = processor.encode([sentence])
        words = sentence.word_texts()
        surfaces, traces = processor.encoder.surfaces(words), list[Trace]()
        start, end = processor.tokenizer.pieces([processor.tokenizer.start, processor.tokenizer.end])
        for tokens in windows:
            begin, until, first, last = tokens.window
            inside = [piece for word in surfaces[begin:until] for piece in word]
            trace = TaggingTrace(
                {"tokens": tokens.tokens},
                text=prediction.mark_words(sentence, first, last),
                notes=[*prediction.notes, *note_unknown(processor.encoder.find_unknown(words[begin:until]))],
                surfaces={"tokens": [start, *inside, end]},
                parts=prediction.split_parts(sentence, first, last),
            )
            trace.window = tokens
            traces.append(trace)
        return traces

    def run(self, trace: Trace) -> None:
        assert isinstance(trace, TaggingTrace)
        model, window = self.answerer.model, trace.window
        device = model.vocabulary.words.weight.device
        tokens, cases = (torch.tensor([part], device=device) for part in (window.tokens, window.cases))
        model(tokens, cases=cases)
