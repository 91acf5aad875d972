"""How the lens sees Hugging Face models: through the attention interface that most of them share."""

from clearhead.lens.huggingface.discovery import refuse_if_blind
from clearhead.lens.huggingface.forward_tracking import listening
from clearhead.lens.huggingface.interposition import wrapped_attention
from clearhead.lens.huggingface.naming import attentions
from clearhead.lens.huggingface.outputs import head_counts

__all__ = ["attentions", "head_counts", "listening", "refuse_if_blind", "wrapped_attention"]
