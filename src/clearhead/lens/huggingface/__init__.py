"""The lens for Hugging Face transformers: attention is observed through the interface that its models share."""

from clearhead.lens.huggingface.discovery import find_attentions, read_shapes
from clearhead.lens.huggingface.forward_tracking import observe_model

__all__ = ["find_attentions", "observe_model", "read_shapes"]
