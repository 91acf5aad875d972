"""Families of Hugging Face models that can be read: by model_type, the function that maps their checkpoint to ours."""

from __future__ import annotations

from clearhead.model.huggingface import bert, gpt2, llama, marian

FAMILIES = {
    "bert": bert.map_checkpoint,
    "roberta": bert.map_checkpoint,
    "xlm-roberta": bert.map_checkpoint,
    "gpt2": gpt2.map_checkpoint,
    "llama": llama.map_checkpoint,
    "mistral": llama.map_checkpoint,
    "qwen2": llama.map_checkpoint,
    "marian": marian.map_checkpoint,
}
