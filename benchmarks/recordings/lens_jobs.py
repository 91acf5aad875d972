"""The jobs of same_lens.py: models of clearhead and of Hugging Face, single attentions."""

from __future__ import annotations

from recordings.attention_calls import record_attentions
from recordings.families import FAMILIES, record_family
from recordings.own_models import SHAPES, read_files, record_files, record_selections, record_shape, record_writing
from recordings.recording import Job

JOBS = [
    *(Job(name, record_family, (name,)) for name in FAMILIES),
    *(Job(f"our models, {name}", record_shape, (name,)) for name in SHAPES),
    Job("our models, options of watch", record_selections),
    Job("our models, writing", record_writing),
    Job("our models, files", record_files),
    Job("attentions", record_attentions),
]
READINGS = [Job("our models, files", read_files)]
