"""Recordings of all that clearhead computes, by which a change is shown to have changed nothing.

`same_results.py` and `same_lens.py` beside this folder are the commands. Everything here uses public names of the
package and its command line, so that the same scripts run at any commit.

recording.py         jobs in processes, the file of a recording
comparison.py        differences, and what may differ
values.py            results as JSON: exact numbers, digests
commands.py          the command line, one thread each
records.py           what a Record of the lens holds

result_jobs.py       the jobs of same_results.py
data_files.py, foreign_folders.py            data, pictures and sounds; Hugging Face folders
trainings.py, labelling_models.py, writing_models.py   which models are trained, and what they are asked
run_files.py         runs: their files, interruptions
models.py            answers, looks, pages and figures of a model
live_pages.py        the server of a look
messages.py          help texts, and messages for mistakes

lens_jobs.py         the jobs of same_lens.py
families.py, own_models.py, random_models.py   models under `watch`: of Hugging Face, and our own
attention_calls.py   single attentions
"""

import os

# Numbers depend on how many threads add them up. Set before anything here imports PyTorch, and for all processes.
SINGLE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "100",  # the width of help texts
}
os.environ.update(SINGLE_THREAD)
