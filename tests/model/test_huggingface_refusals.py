"""What cannot be read or written is refused in one clear line, whatever is in the files."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from clearhead import Encoder, EncoderDecoder, ModelConfig, from_huggingface, to_huggingface
from clearhead.errors import CheckpointError, DiskFullError
from clearhead.model import Labels, PooledEncoder
from clearhead.model.huggingface import write_checkpoint
from tests.model.checkpoints import BERT, GPT2, LLAMA, MARIAN, change_config, change_tensors, saved, shaken


def refused(folder: Path, *words: str) -> None:
    """Reading raises one line with all of these words, the folder among them."""
    with pytest.raises(CheckpointError) as raised:
        from_huggingface(folder)
    said = str(raised.value)
    assert "\n" not in said
    assert [word for word in (str(folder), *words) if word not in said] == [], said


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each family."""
    root = tmp_path_factory.mktemp("originals")
    models = {
        "bert": transformers.BertForMaskedLM(transformers.BertConfig(**BERT)),
        "roberta": transformers.RobertaForMaskedLM(transformers.RobertaConfig(**BERT)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)),
        "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(**LLAMA)),
        "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA)),
        "marian": transformers.MarianMTModel(transformers.MarianConfig(**MARIAN)),
    }
    for name, model in models.items():
        saved(shaken(model), root / name)
    return root


@pytest.fixture
def copy(originals: Path, tmp_path: Path) -> Any:
    return lambda kind: Path(shutil.copytree(originals / kind, tmp_path / kind))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("bert", {"model_type": "t5"}, ["model_type", "t5", "bert, roberta, xlm-roberta, gpt2, llama"]),
        ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
        ("bert", {"is_decoder": True}, ["is_decoder"]),
        ("bert", {"add_cross_attention": True}, ["add_cross_attention"]),
        ("bert", {"hidden_act": "quick_gelu"}, ["hidden_act", "quick_gelu", "gelu_new"]),
        ("bert", {"auto_map": {"AutoModel": "modeling.MyBert"}}, ["auto_map", "MyBert"]),
        ("bert", {"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ("roberta", {"hidden_act": "relu"}, ["always uses gelu", "relu"]),
        ("roberta", {"max_position_embeddings": 2}, ["max_length", "0"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx"]),
        ("gpt2", {"scale_attn_weights": False}, ["scale_attn_weights"]),
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention"]),
        ("llama", {"hidden_act": "relu"}, ["hidden_act", "relu", "silu and gelu"]),
        ("llama", {"qk_norm": True}, ["qk_norm"]),
        ("llama", {"num_local_experts": 8}, ["num_local_experts", "8"]),
        ("llama", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
        ("llama", {"use_attention_sinks": True}, ["use_attention_sinks"]),
        ("llama", {"sliding_window": 5}, ["sliding_window"]),
        ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}, ["mrope_section"]),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["full_attention"]),
        ("llama", {"rope_scaling": {"type": "linear"}}, ["rope_scaling", "factor"]),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, ["factor", "0"]),
        *(
            ("llama", {"rope_parameters": {"rope_type": kind, "factor": 2.0}}, [kind, "linear, llama3"])
            for kind in ("yarn", "dynamic", "longrope")
        ),
        ("llama", {"num_key_value_heads": 5}, ["6 query heads", "5 key heads"]),
        ("llama", {"head_dim": 13}, ["head_dim must be even", "13"]),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        ("mistral", {"layer_types": ["chunked_attention"] * 2}, ["layer_types", "chunked"]),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5}, ["use_sliding_window"]),
        ("marian", {"share_encoder_decoder_embeddings": False}, ["share_encoder_decoder_embeddings"]),
        ("marian", {"tie_word_embeddings": False}, ["tie_word_embeddings"]),
        ("marian", {"normalize_embedding": True}, ["normalize_embedding"]),
        ("marian", {"normalize_before": True}, ["normalize_before"]),
        ("marian", {"static_position_embeddings": False}, ["static_position_embeddings"]),
        ("marian", {"decoder_attention_heads": 11}, ["decoder_attention_heads", "encoder_attention_heads"]),
        ("marian", {"decoder_ffn_dim": 41}, ["decoder_ffn_dim=41", "encoder_ffn_dim"]),
        ("marian", {"decoder_vocab_size": 29}, ["decoder_vocab_size", "29"]),
        ("marian", {"d_model": 21}, ["d_model=21", "odd"]),
    ],
)
def test_settings_without_counterpart_are_refused_by_name(copy, kind, changes, words):
    folder = change_config(copy(kind), **changes)
    refused(folder, "config.json", *words)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "model_type"])
def test_a_setting_that_is_needed_and_missing_is_named(copy, key):
    refused(change_config(copy("llama"), without=(key,)), "has no", key)


@pytest.mark.parametrize("kind", ["bert", "qwen2", "marian"])
def test_any_nonsense_in_the_config_is_refused_or_read_but_never_crashes(copy, kind):
    folder = copy(kind)
    values = json.loads((folder / "config.json").read_text())
    code = "".join(path.read_text() for path in Path(write_checkpoint.__file__).parent.glob("*.py"))
    for key in (key for key in values if key in code):  # the others are not read
        for nonsense in (None, 10**9, 10**400, float("nan"), "x", [{}]):
            change_config(folder, **{key: nonsense})
            try:
                from_huggingface(folder)
            except CheckpointError:
                pass
            except Exception as error:
                raise AssertionError(f"{key}={nonsense!r} was not refused") from error
        change_config(folder, **values)
    from_huggingface(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not readable JSON"]),
        (b'{"model_type": "bert"', ["not readable JSON"]),
        (b"\xff\xfe", ["not readable JSON"]),
        (b"[" * 100_000, ["not readable JSON"]),
        (b"[]", ["must contain a JSON object", "list"]),
    ],
)
def test_a_malformed_config_is_refused(copy, content, words):
    folder = copy("bert")
    (folder / "config.json").write_bytes(content)
    refused(folder, "config.json", *words)


def test_a_missing_folder_or_config_or_weights_is_said(copy, tmp_path):
    refused(tmp_path / "nowhere", "not a folder", "hf download")
    folder = copy("bert")
    refused(folder / "config.json", "not a folder")
    (folder / "model.safetensors").unlink()
    refused(folder, "neither model.safetensors nor model.safetensors.index.json")
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_pickle_is_never_opened(copy, name):
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / "trapped"),)

    folder = copy("bert")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap()))
    refused(folder, name, "pickle", "model.save_pretrained(folder, safe_serialization=True)")
    assert not (folder / "trapped").exists()


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(copy, kept):
    folder = copy("gpt2")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(folder, "model.safetensors is not a whole safetensors file")


def test_a_file_of_something_else_is_refused(copy):
    folder = copy("gpt2")
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)
    refused(folder, "model.safetensors is not a whole safetensors file")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bert", "bert.encoder.layer.1.attention.self.key.bias"),
        ("gpt2", "transformer.wpe.weight"),
        ("llama", "lm_head.weight"),
        ("qwen2", "model.layers.1.self_attn.v_proj.bias"),
        ("marian", "model.shared.weight"),
    ],
)
def test_a_missing_tensor_is_named(copy, kind, name):
    folder = change_tensors(copy(kind), lambda found: {key: found[key] for key in found if key != name})
    refused(folder, "lacks the tensor", name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bert", "bert.embeddings.something.weight"),
        ("gpt2", "transformer.h.2.attn.c_attn.weight"),
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("mistral", "model.layers.0.self_attn.q_proj.bias"),
        ("marian", "model.encoder.layer_norm.weight"),
    ],
)
def test_a_tensor_that_the_model_has_no_use_for_is_named(copy, kind, name):
    folder = change_tensors(copy(kind), lambda found: {**found, name: torch.zeros(3)})
    refused(folder, name, "does not use")


def test_more_layers_than_the_file_has_are_refused_at_once(copy):
    folder = change_config(copy("gpt2"), n_layer=900)
    refused(folder, "lacks the tensor transformer.h.2.ln_1.weight")
    refused(change_config(folder, n_layer=10**9), "layers may be at most 1,000, got 1,000,000,000")


def test_a_wrong_shape_is_refused_with_both_shapes(copy):
    folder = change_config(copy("gpt2"), n_inner=41)
    refused(folder, "transformer.h.0.mlp.c_fc.weight", "(21, 37)", "(21, 41)", "different models")


def test_tied_weights_that_differ_are_refused(copy):
    folder = change_tensors(copy("gpt2"), lambda found: {**found, "lm_head.weight": torch.zeros(31, 21)})
    refused(folder, "lm_head.weight", "transformer.wte.weight", "tie_word_embeddings: false")


def test_quantised_tensors_are_refused(copy):
    name = "transformer.h.0.attn.c_attn.weight"
    folder = change_tensors(copy("gpt2"), lambda found: {**found, name: found[name].to(torch.int8)})
    refused(folder, name, "I8", "quantisation")


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/secret.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin", "", 3]
)
def test_an_index_that_points_elsewhere_is_refused(copy, name):
    folder = copy("gpt2")
    shutil.copy(folder / "model.safetensors", folder.parent / "secret.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    refused(folder, "model.safetensors.index.json", repr(name), "in the same folder")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"x": []}}'])
def test_a_malformed_index_is_refused(copy, content):
    folder = copy("gpt2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "model.safetensors.index.json", "no readable weight_map")


def test_a_missing_file_of_several_and_a_tensor_in_two_are_refused(copy):
    folder = copy("gpt2")
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    whole.rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    )
    refused(folder, "b.safetensors is missing")
    save_file({"transformer.wpe.weight": tensors["transformer.wpe.weight"]}, folder / "b.safetensors")
    refused(folder, "b.safetensors holds transformer.wpe.weight", "a.safetensors holds too")


CLASSIC = {"vocabulary": 31, "width": 22, "heads": 2, "layers": 1, "feedforward": 37}
BERTISH = {**CLASSIC, "positions": "learned", "embedding_norm": True, "scale_embeddings": False}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("both", {"norm_first": True}, ["norm_first=True"]),
        ("both", {"norm": "rms"}, ["norm='rms'"]),
        ("both", {"final_norm": True}, ["final_norm=True"]),
        ("both", {"kv_heads": 1}, ["kv_heads=1"]),
        ("both", {"head_dim": 5}, ["head_dim=5"]),
        ("both", {"value_head_dim": 5}, ["value_head_dim=5"]),
        ("both", {"activation": "swiglu"}, ["activation='swiglu'"]),
        ("both", {"bias": False}, ["bias=False"]),
        ("both", {"attention_bias": False}, ["attention_bias=False"]),
        ("both", {"window": 5}, ["window=5"]),
        ("both", {"temperature": "learned"}, ["temperature='learned'"]),
        ("both", {"positions": "alibi"}, ["positions='alibi'"]),
        ("BERT", {"positions": "sinusoidal"}, ["positions='sinusoidal'"]),
        ("BERT", {"positions": "rotary", "head_dim": 4}, ["positions='rotary'", "head_dim=4"]),
        ("BERT", {"embedding_norm": False}, ["embedding_norm=False"]),
        ("BERT", {"scale_embeddings": True}, ["scale_embeddings=True"]),
        ("BERT", {"logits_bias": True}, ["logits_bias=True"]),
        ("BERT", {"tie_embeddings": False}, ["tie_embeddings=False"]),
        ("Marian", {"positions": "learned"}, ["positions='learned'"]),
        ("Marian", {"embedding_norm": True}, ["embedding_norm=True"]),
        ("Marian", {"segments": 2}, ["segments=2"]),
        ("Marian", {"logits_transform": True}, ["logits_transform=True"]),
        ("Marian", {"tie_embeddings": False}, ["tie_embeddings=False"]),
        ("Marian", {"norm_epsilon": 1e-6}, ["norm_epsilon=1e-06"]),
    ],
)
def test_what_a_format_cannot_express_is_not_written(kind, changes, words, tmp_path):
    for name in ("BERT", "Marian") if kind == "both" else (kind,):
        values, build = (BERTISH, Encoder) if name == "BERT" else (CLASSIC, EncoderDecoder)
        with pytest.raises(CheckpointError, match=f"a {name} checkpoint cannot express") as raised:
            to_huggingface(build(ModelConfig(**{**values, **changes})), tmp_path / "new")
        assert [word for word in words if word not in str(raised.value)] == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("token", ["pad", "eos", "start"])
def test_a_token_outside_the_vocabulary_is_refused(token, tmp_path):
    with pytest.raises(CheckpointError, match=f"{token}=31 is no token of this model.*0 to 30"):
        to_huggingface(EncoderDecoder(ModelConfig(**CLASSIC)), tmp_path, **{token: 31})


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file; name a folder"):
        to_huggingface(Encoder(ModelConfig(**BERTISH)), tmp_path / "file")


def test_writing_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    to_huggingface(Encoder(ModelConfig(**BERTISH)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(write_checkpoint, "save_file", full)
    with pytest.raises(DiskFullError, match=r"the disk is full: .*model\.safetensors needs"):
        to_huggingface(Encoder(ModelConfig(**BERTISH)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_writing_that_stops_between_two_files_mixes_no_models(tmp_path, monkeypatch):
    to_huggingface(Encoder(ModelConfig(**BERTISH)), tmp_path)
    replace = os.replace

    def stopped(source: Path, target: Path) -> None:
        if target.name == "config.json":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        to_huggingface(Encoder(ModelConfig(**{**BERTISH, "heads": 11})), tmp_path)
    refused(tmp_path, "config.json is missing")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_writing_replaces_an_older_checkpoint_and_leaves_other_files_alone(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    to_huggingface(Encoder(ModelConfig(**BERTISH)), tmp_path)
    to_huggingface(EncoderDecoder(ModelConfig(**CLASSIC)), tmp_path)
    assert isinstance(from_huggingface(tmp_path), EncoderDecoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_label_scores_of_a_mean_are_not_written_as_something_else(tmp_path):
    with pytest.raises(CheckpointError, match=r"a BERT checkpoint cannot express labels=Labels\(count=3"):
        to_huggingface(PooledEncoder(ModelConfig(**BERTISH, labels=Labels(3))), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    to_huggingface(PooledEncoder(ModelConfig(**BERTISH)), tmp_path / "new")
