"""Labels of texts with their probabilities, their scores, and the forward passes that `look` repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.decode.prepacked_linear import decoding_view
from clearhead.model import Classifier
from clearhead.tasks.answerer import Answerer, Scores
from clearhead.tasks.classification.classifier_processor import ClassifierProcessor, Input, list_texts
from clearhead.tasks.classification.classifier_scores import score_answers, score_calibration
from clearhead.tasks.classification.classifier_settings import LabelOptions
from clearhead.tasks.classification.label_prediction import LabelPrediction
from clearhead.tasks.finite_scores import check_finite
from clearhead.tasks.text_windows import EncodedInput, cut_text, mask_padding, surface_windows, text_windows
from clearhead.tasks.trace import TaskTracer, Trace
from clearhead.text.batches import Ragged, token_batches

if TYPE_CHECKING:
    from clearhead.text import Row

TOKENS = 1024  # of a batch in prediction, pads included: what a CPU's cache holds is computed fastest
GPU_TOKENS = 32_768  # on other devices, where a batch should be large


class ClassifierAnswerer(Answerer[ClassifierProcessor, Classifier, Input, LabelOptions]):
    options = LabelOptions

    def predict(
        self, inputs: Sequence[Input], options: LabelOptions, *, inputs_before: int = 0
    ) -> list[LabelPrediction]:
        logits, notes = self.compute_logits([self.processor.inputs.check(one) for one in inputs], options.batch)
        shares = logits.sigmoid() if self.processor.column.multi_label else logits.softmax(-1)
        return [self._make_prediction(*one, options.best) for one in zip(shares.tolist(), notes, strict=True)]

    @torch.no_grad()
    def compute_logits(self, inputs: Sequence[Input], most: int) -> tuple[Tensor, list[list[str]]]:
        """Scores (inputs, labels) on the CPU, the mean over windows of long inputs; and notes on each input.

        At most `most` windows are computed together.
        """
        processor, model = self.processor, self.model
        tokenizer, texts = processor.tokenizer, processor.encode(inputs)
        marks = (processor.window, tokenizer.start, tokenizer.end)
        windows = [text_windows(text.parts, *marks) for text in texts]
        flat = [window for group in windows for window in group]
        weight = model.vocabulary.words.weight
        device, tokens_at_once = weight.device, TOKENS if weight.is_cpu else GPU_TOKENS
        if not weight.requires_grad:  # in training they would have to be packed again after every step
            model = decoding_view(model)
        logits = torch.empty(len(flat), len(processor.labels), dtype=model.to_labels.weight.dtype)
        for places in token_batches(list(map(len, flat)), tokens_at_once, most):
            ragged = Ragged([flat[place] for place in places])
            tokens, lengths = ragged.pad(torch.arange(len(places)), int(ragged.lengths.max()), tokenizer.pad)
            scores = score_labels(processor, model, tokens.to(device), lengths.to(device))
            logits[places] = scores.cpu().to(logits.dtype)
        check_finite(logits)
        if len(flat) > len(texts):
            logits = torch.stack([part.mean(0) for part in logits.split([len(group) for group in windows])])
        return logits, [self._make_notes(*pair) for pair in zip(texts, windows, strict=True)]

    def _make_notes(self, text: EncodedInput, windows: list[list[int]]) -> list[str]:
        empty = ["the text is empty"] if not any(text.parts) else []
        limit = f"the {self.processor.window:,} tokens that the model reads at once"
        many = f"the text is longer than {limit}: the mean over {len(windows)} windows"
        return [*empty, *text.notes, *([many] if len(windows) > 1 else [])]

    def _make_prediction(self, shares: list[float], notes: Sequence[str], best: int) -> LabelPrediction:
        labels = self.processor.labels
        order = sorted(range(len(labels)), key=lambda number: -shares[number])
        scores = {labels[number]: shares[number] for number in order}
        if not self.processor.column.multi_label:
            return LabelPrediction(labels[order[0]], notes, shares[order[0]], scores, best)
        chosen = tuple(labels[number] for number in order if shares[number] >= self.processor.thresholds[number])
        return LabelPrediction(", ".join(chosen), notes, shares[order[0]], scores, best, chosen)

    def score(self, rows: Sequence[Row], predictions: Sequence[LabelPrediction], options: LabelOptions) -> Scores:
        processor = self.processor
        right = [processor.column.parse(row.values[-1]) for row in rows]
        scores = score_answers(right, [one.answers for one in predictions], multi_label=processor.column.multi_label)
        if all(one.scores for one in predictions):
            scores |= score_calibration(right, predictions, processor.labels, processor.temperature)
        return scores


class ClassifierTracer(TaskTracer[ClassifierAnswerer]):
    def traces(self, given: Input, *, answer: str | None, options: LabelOptions) -> list[Trace]:
        """A text, read once, or once for each window of a long one."""
        self.refuse_answer(answer)
        checked, processor = self.inputs.check(given), self.answerer.processor
        [prediction] = self.answerer.predict([checked], options)
        notes = [prediction.describe(), *prediction.notes]
        texts = [cut_text(text)[0] for text in list_texts(checked)]
        return [
            Trace({"tokens": tokens}, (), prediction.text, False, notes, {"tokens": surfaces}, prediction.parts())
            for tokens, surfaces in surface_windows(processor.tokenizer, texts, processor.window)
        ]

    def run(self, trace: Trace) -> None:
        model = self.answerer.model
        tokens = torch.tensor([trace.reads["tokens"]], device=model.vocabulary.words.weight.device)
        model(tokens, segments=self.answerer.processor.mark_segments(tokens))


def score_labels(processor: ClassifierProcessor, model: Classifier, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The scores (texts, labels) of a batch of padded texts."""
    first = tokens.new_zeros(len(tokens), 1) if model.pooler is not None else None  # all that the pooler reads
    segments, mask = processor.mark_segments(tokens), mask_padding(tokens, lengths)
    hidden = model(tokens, segments=segments, mask=mask, places=first)
    return model.label_scores(hidden, lengths, tokens)
