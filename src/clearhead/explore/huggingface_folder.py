"""Loads a local Hugging Face folder as a LiveModel; nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import CheckpointError, DataError, LensError, import_extra
from clearhead.explore.live_model import LiveModel, count_positions
from clearhead.lens.record.token_labels import make_namer
from clearhead.model.devices import resolve_device
from clearhead.tasks.settings import Options, option
from clearhead.tasks.trace import ContinuableTracer, Trace

MAX_SCORES = 2**28  # tokens × vocabulary: for longer texts no probabilities are computed
MAX_NEW_TOKENS = 64  # that an encoder-decoder writes by default


def load_huggingface_folder(path: Path, *, device: str = "auto", **options: Any) -> LiveModel:
    """The model of the class that its config names, and its tokenizer; code in the folder is not run."""
    transformers = import_extra("transformers", "a Hugging Face folder", "hf")
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(path, **local)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **local)
        names = [name for name in config.architectures or () if hasattr(transformers, name)]
        kind = getattr(transformers, names[0]) if names else transformers.AutoModel
        model = kind.from_pretrained(path, local_files_only=True).to(resolve_device(device)).eval()
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read as a Hugging Face model: {_first_line(error)}") from error
    finally:
        if shown:
            bars.enable_progress_bar()
    model.requires_grad_(False)
    tracer = HuggingFaceTracer(model, tokenizer)
    return LiveModel(tracer, path.resolve().name, **{"norms": _has_norms(model), **options})


class HuggingFaceOptions(Options):
    beams: int | None = option(None, "How many beams the search keeps.", flag="--beam", ge=1)
    most: int | None = option(None, "Maximum number of tokens that the model writes.", ge=1)


class HuggingFaceTracer(ContinuableTracer):
    """Traces Hugging Face encoders, decoders and encoder-decoders on a text, with their own tokenizer."""

    name = "text"
    options = HuggingFaceOptions
    model: Any

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self.token_name = model, tokenizer, make_namer(tokenizer)

    def with_model(self, model: Any) -> HuggingFaceTracer:
        return HuggingFaceTracer(model, self.tokenizer)

    def traces(self, given: str, *, answer: str | None, options: HuggingFaceOptions) -> list[Trace]:
        """One trace. A decoder reads the text and then the given answer, or `most` tokens that it generates.

        An encoder-decoder generates 64 tokens at most by default.
        """
        numbers, beams, most = self._tokenize(given), options.beams or 1, options.most
        if not numbers:
            return []
        positions = count_positions(self.model)
        if positions is not None and len(numbers) > positions:
            raise DataError(f"the text has {len(numbers):,} tokens; the model reads {positions:,} at most")
        if self.model.config.is_encoder_decoder:
            return [self._trace_encoder_decoder(numbers, answer, beams, most or MAX_NEW_TOKENS)]
        if not self.model.can_generate():
            return [Trace({"tokens": numbers})]
        more = self._generate(numbers, beams, most) if answer is None and most else []
        if answer is not None:
            more = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        whole, text = [*numbers, *more], self.tokenizer.decode(more)
        return [Trace({"tokens": whole}, [*whole[1:], -1], text, answer is not None, prompt=len(numbers))]

    def _trace_encoder_decoder(self, source: list[int], answer: str | None, beams: int, most: int) -> Trace:
        if answer is None:
            target = self._generate(source, beams, most)
        else:
            target = list(self.tokenizer(text_target=answer)["input_ids"])
        trace = self._trace_target(source, target)
        return trace if answer is None else trace._replace(text=answer, given=True)

    def _trace_target(self, source: list[int], target: list[int]) -> Trace:
        start = _find_start(self.model)
        target = [number for number in target if number not in (start, self.model.config.pad_token_id)] or [start]
        trace = Trace({"source": source, "target": [start, *target[:-1]]}, target)
        return trace._replace(text=self.written_text(trace))

    def continue_trace(self, trace: Trace, written: Sequence[int], *, options: HuggingFaceOptions) -> Trace:
        """The same text with an answer that begins with these tokens; it has `most` or 64 in all, or as many as fit."""
        beams, most = options.beams or 1, options.most or MAX_NEW_TOKENS
        ended = written[-1] in _find_ends(self.model)
        if "source" in trace.reads:
            most = max(1, most - len(written))
            target = list(written) if ended else self._generate(trace.reads["source"], beams, most, written)
            return self._trace_target(trace.reads["source"], target)._replace(forced=len(written))
        tokens, prompt = [*trace.reads["tokens"][:1], *written], min(trace.prompt, len(written))
        room = (count_positions(self.model) or len(tokens) + most) - len(tokens)
        most = min(room, most + prompt - len(tokens))
        more = self._generate(tokens, beams, most) if most > 0 and not ended else []
        whole = [*tokens, *more]
        continued = Trace({"tokens": whole}, [*whole[1:], -1], prompt=prompt, forced=len(written))
        return continued._replace(text=self.written_text(continued))

    def written_text(self, trace: Trace) -> str:
        pair = "target" in trace.reads
        tokens = list(trace.writes) if pair else trace.reads["tokens"][trace.prompt :]
        return str(self.tokenizer.decode(tokens, skip_special_tokens=pair))

    def _generate(self, numbers: list[int], beams: int, most: int | None, begin: Sequence[int] = ()) -> list[int]:
        """What the model writes, after the tokens `begin` of an answer."""
        tokens = torch.tensor([numbers], device=self.model.device)
        options: dict[str, Any] = {"max_new_tokens": most or MAX_NEW_TOKENS, "num_beams": beams, "do_sample": False}
        if begin:
            options["decoder_input_ids"] = torch.tensor([[_find_start(self.model), *begin]], device=self.model.device)
        written: list[int] = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[0].tolist()
        return written if self.model.config.is_encoder_decoder else written[len(numbers) :]

    def run(self, trace: Trace) -> Float[Tensor, "tokens vocabulary"] | None:
        tensors = {kind: torch.tensor([numbers], device=self.model.device) for kind, numbers in trace.reads.items()}
        if "source" in tensors:
            output = self.model(input_ids=tensors["source"], decoder_input_ids=tensors["target"], use_cache=False)
            scores: Tensor | None = getattr(output, "logits", None)
            return None if scores is None else scores[0]
        tokens, parameters = tensors["tokens"], inspect.signature(self.model.forward).parameters
        options: dict[str, Any] = {"use_cache": False} if "use_cache" in parameters else {}
        large = tokens.numel() * int(self.model.config.get_text_config().vocab_size) > MAX_SCORES
        without_scores = not trace.writes or (large and "logits_to_keep" in parameters)
        if trace.writes and without_scores:
            options["logits_to_keep"] = 1
        output = self.model(input_ids=tokens, **options)
        return None if without_scores else output.logits[0]

    def pieces(self, kind: str, numbers: Sequence[int]) -> list[str]:
        return [self.token_name(int(number)) if number >= 0 else "" for number in numbers]

    def _tokenize(self, text: str) -> list[int]:
        if not text.strip():
            return []
        try:
            return list(self.tokenizer(text)["input_ids"])
        except (TypeError, ValueError) as error:
            raise DataError(f"the tokenizer cannot read this text: {_first_line(error)}") from error


def _find_start(model: Any) -> int:
    """The first token that the decoder of an encoder-decoder reads."""
    start: int | None = model.config.decoder_start_token_id
    start = model.config.bos_token_id if start is None else start
    if start is None:
        raise LensError("config.json has no decoder_start_token_id, the first token of every answer; add it there")
    return start


def _find_ends(model: Any) -> tuple[int, ...]:
    ends = model.generation_config.eos_token_id
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


def _has_norms(model: nn.Module) -> bool:
    """Whether the output projections of all attentions are found, so that norms of values can be measured."""
    from clearhead.lens.huggingface.discovery import describe_attentions, find_attentions

    try:
        describe_attentions(model, tuple(find_attentions(model)))
    except LensError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
