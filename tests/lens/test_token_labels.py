"""Token labels: the text of each token, for every kind of tokenizer."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.models.clvp.tokenization_clvp import bytes_to_unicode

from clearhead import watch
from clearhead.explore.huggingface_folder import HuggingFaceTracer
from clearhead.explore.token_axis import display_tokens
from clearhead.lens.record.token_labels import byte_alphabet, make_namer

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLIT = pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTES])


def learned(before: object = BYTES, after: object = None) -> Tokenizer:
    """A BPE over bytes, in which 我爱 and hello are tokens, and others spell parts of characters."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = BYTES
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(["我爱 hello"] * 50, trainer)
    engine.pre_tokenizer, engine.decoder = before, after or decoders.ByteLevel()
    engine.add_tokens(["北京", "né"])
    engine.add_special_tokens(["<|im_start|>"])
    return engine


class Slow:
    """As transformers has them in Python: GPT-2's, before version 5."""

    def __init__(self) -> None:
        self.engine, self.byte_decoder = learned(), {mark: byte for byte, mark in bytes_to_unicode().items()}
        self.added_tokens_decoder, self.decoder = self.engine.get_added_tokens_decoder(), self.engine.get_vocab()

    def convert_ids_to_tokens(self, number: int) -> str | None:
        return self.engine.id_to_token(number)


KINDS = {
    "tokenizers": learned,
    "in a sequence": lambda: learned(SPLIT),
    "by the decoder alone": lambda: learned(pre_tokenizers.PreTokenizer.custom(object())),
    "by the other alone": lambda: learned(SPLIT, decoders.Fuse()),
    "fast": lambda: PreTrainedTokenizerFast(tokenizer_object=learned()),
    "slow": Slow,
}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_bytes_show_their_text(kind):
    name, numbers = make_namer(KINDS[kind]()), learned().encode("我爱 hello我 鏡<|im_start|>北京né\n").ids
    assert [name(number) for number in numbers] == [
        *["我爱", "▁hello", "<0xE6><0x88>", "<0x91>", "▁", "<0xE9>", "<0x8F>", "<0xA1>"],
        *["<|im_start|>", "北京", "né", "\n"],
    ]
    assert name(399) == "<399>"


def test_the_alphabet_of_bytes_is_that_of_gpt_2():
    assert byte_alphabet() == {mark: byte for byte, mark in bytes_to_unicode().items()}
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_tokens_of_characters_stay_as_they_are():
    pieces = ["▁the", "<0x0A>", "é", "æĪĳ", "Ġ"]
    engine = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)}, "é"))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.ByteFallback()
    bert = BertTokenizer(vocab={"[UNK]": 0, "é": 1, "##ing": 2})
    assert [make_namer(engine)(number) for number in range(5)] == pieces
    assert [make_namer(bert)(number) for number in range(3)] == ["[UNK]", "é", "##ing"]


def test_a_record_and_its_page_show_what_was_read():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learned(SPLIT))
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 7}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=400, num_hidden_layers=1, **sizes)).eval()
    numbers = tokenizer("我爱北京 hello鏡")["input_ids"]
    with watch(model) as record:
        model(torch.tensor([numbers]))
    sight = record.label(tokenizer)["decoder.0.self"]
    texts = ["我爱", "北京", "▁hello", "<0xE9>", "<0x8F>", "<0xA1>"]
    assert [sight.text(0, key) for key in range(6)] == texts
    assert HuggingFaceTracer(None, tokenizer).pieces("tokens", [*numbers, -1]) == [*texts, ""]
    assert display_tokens(texts).shown == ["我爱", "北京", "hello", "鏡₁", "鏡₂", "鏡₃"]
