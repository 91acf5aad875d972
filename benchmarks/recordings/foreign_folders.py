"""Hugging Face folders to start training from: a tiny BERT and a tiny GPT-2 with tokenizers, their weights random."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from recordings.data_files import read_corpus

transformers.utils.logging.disable_progress_bar()

SIZE = 400  # pieces of a vocabulary
BERT = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
GPT2 = {"n_embd": 24, "n_head": 4, "n_layer": 2, "n_positions": 96, "n_inner": 40}


def write_foreign_folders(folder: Path) -> None:
    texts = [row[0] for row in read_corpus("sentiment-en.train", 400)]
    _write_bert(folder / "bert", texts)
    _write_gpt2(folder / "gpt2", texts)


def _write_bert(folder: Path, texts: Sequence[str]) -> None:
    counts = Counter(word for text in texts for word in text.lower().split() if word.isalpha() and word.isascii())
    words = [word for word, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if len(word) > 1]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.printable[:94]]
    pieces = [one for one in pieces if not one.isupper() or one.startswith("[")]
    pieces += [f"##{letter}" for letter in string.ascii_lowercase]
    numbers = {piece: number for number, piece in enumerate([*pieces, *words[: SIZE - len(pieces)]])}
    engine = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, mask_token="[MASK]", model_max_length=64, **names
    ).save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=engine.get_vocab_size(), max_position_embeddings=64, **BERT)
    _save(transformers.BertModel, config, folder)


def _write_gpt2(folder: Path, texts: Sequence[str]) -> None:
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder, engine.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    engine.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=SIZE,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        ),
    )
    end = "<|endoftext|>"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token=end, eos_token=end, unk_token=end
    ).save_pretrained(folder)
    config = transformers.GPT2Config(vocab_size=engine.get_vocab_size(), bos_token_id=0, eos_token_id=0, **GPT2)
    _save(transformers.GPT2LMHeadModel, config, folder)


def _save(kind: type[transformers.PreTrainedModel], config: transformers.PretrainedConfig, folder: Path) -> None:
    torch.manual_seed(3)
    kind(config).save_pretrained(folder)
