"""Beam search as one would explain it: one input, no cache, no tensors of hypotheses; slow, and the judge."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import Decoder, EncoderDecoder
from clearhead.decode import Hypothesis

Scores = Callable[[list[int]], Tensor]  # of the next token, after these


def of_translator(model: EncoderDecoder, source: list[int], start: int) -> Scores:
    def scores(tokens: list[int]) -> Tensor:
        return model.logits(model(torch.tensor([source]), torch.tensor([[start, *tokens]])))[0, -1]

    return scores


def of_continuer(model: Decoder, prompt: list[int]) -> Scores:
    return lambda tokens: model.logits(model(torch.tensor([prompt + tokens])))[0, -1]


def search(
    scores: Scores,
    *,
    end: int,
    max_length: int,
    beams: int,
    length_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    prefix: list[int] | None = None,
    forbidden: tuple[int, ...] = (),
) -> list[Hypothesis]:
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    kept: list[Hypothesis] = []
    for length in range(1, max_length + 1):
        candidates = []
        for total, tokens in running:
            log_probabilities = scores(tokens).log_softmax(-1).tolist()
            for token, log_probability in enumerate(log_probabilities):
                if may_follow(tokens, token, no_repeat_ngram, prefix or [], forbidden):
                    candidates.append((total + log_probability, [*tokens, token]))
        candidates.sort(key=lambda candidate: -candidate[0])
        running = []
        for rank, (total, tokens) in enumerate(candidates[: 2 * beams]):
            finished = tokens[-1] == end
            if not finished and length < max_length:
                running.append((total, tokens))
            elif rank < beams:
                words = tokens[:-1] if finished else tokens
                kept.append(Hypothesis(words, total / length**length_penalty, total, finished))
        running = running[:beams]
        kept = sorted(kept, key=lambda hypothesis: -hypothesis.score)[:beams]
        if not running:
            break
        if len(kept) == beams and running[0][0] / length**length_penalty <= kept[-1].score:
            break
    return kept


def may_follow(tokens: list[int], token: int, ngram: int, prefix: list[int], forbidden: tuple[int, ...]) -> bool:
    if len(tokens) < len(prefix):
        return token == prefix[len(tokens)]
    if token in forbidden:
        return False
    text = [*tokens, token]
    grams = [text[place : place + ngram] for place in range(len(text) - ngram + 1)]
    return not ngram or text[-ngram:] not in grams[:-1]
