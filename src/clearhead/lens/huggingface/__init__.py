"""How the lens sees Hugging Face models: through the attention interface that most of them share."""

from clearhead.lens.huggingface.finding import refuse_if_blind
from clearhead.lens.huggingface.following import listening
from clearhead.lens.huggingface.naming import attentions
from clearhead.lens.huggingface.outputs import head_counts
from clearhead.lens.huggingface.wrapping import wrapped_attention

__all__ = ["attentions", "head_counts", "listening", "refuse_if_blind", "wrapped_attention"]
