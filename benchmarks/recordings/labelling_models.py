"""Models that label, tag, answer or fill gaps: the tiny recipe of each task, and runs with other settings."""

from __future__ import annotations

from recordings.trainings import COMMENTS, GAPS, MESSAGES, NEWS, QUESTIONS, SMALL, Training

CLASSIFICATION = [
    Training(
        "classify",
        "classify-tiny",
        inputs=COMMENTS,
        predictions={"best": ["--best", "2"]},
        plain=["--best", "2"],
        evaluate=["shipped:sentiment-en.dev", "--report", "--baseline"],
        look=COMMENTS[0],
        look_options=["--without"],
        figures=True,
    ),
    Training(
        "classify labels",
        "classify-tiny",
        """
            data.train=data/labels.tsv; data.dev=0.1; data.test=data/labels-test.tsv; data.multi_label=true;
            data.label_separator=|; loss.class_weights=balanced; model.ngrams=2; train.weights=bfloat16;
            train.average=ema; train.decay=0.8; train.schedule=cosine
        """,
        inputs=COMMENTS,
        evaluate=["data/labels-test.tsv", "--report"],
    ),
    Training(
        "classify pairs",
        "classify-tiny",
        f"""
            data.train=data/pairs.tsv; data.dev=data/pairs-dev.tsv; data.columns=["text","other","label"]; {SMALL};
            model.pooling=first; loss.token_dropout=0.1; loss.masked=0.3; train.weights=int8;
            train.accumulate=2; train.checkpointing=true; train.metric=loss; train.patience=5
        """,
        inputs=["Good morning!\tThis is awful.", "Why?\t"],
        evaluate=["data/pairs-dev.tsv"],
        look="Good morning!\tThis is awful.",
        interrupted=True,
    ),
]
TAGS_APPEAR = "train.steps=70; train.evaluate_every=35"  # with fewer steps no word is tagged
TAGGING = [
    Training(
        "tag",
        "tag-tiny",
        TAGS_APPEAR,
        inputs=MESSAGES,
        plain=[],
        evaluate=["shipped:entities-en.dev", "--report", "--baseline"],
        look=MESSAGES[0],
        figures=True,
    ),
    Training(
        "tag spans",
        "tag-tiny",
        f"""
            {TAGS_APPEAR}; data.train=data/spans.jsonl; data.dev=data/spans-dev.jsonl; data.longest=16;
            text.tokenizer=unigram; text.convolutions=1; text.unknown=0.15; loss.crf=false;
            loss.label_smoothing=0.1; loss.tags=bioes; loss.masked=0.2
        """,
        inputs=MESSAGES,
        evaluate=["data/spans-dev.jsonl", "--report"],
        look=MESSAGES[3],
        interrupted=True,
    ),
]
MIXTURES = "loss.mixtures=0"  # old code added a loss of mixed questions; docs/log.md says why it went
ANSWERS = [
    Training(
        "answers",
        "answers-tiny",
        removed=MIXTURES,
        inputs=QUESTIONS,
        predictions={"best": ["--best", "3"]},
        plain=["--best", "2"],
        evaluate=["shipped:service-en.dev", "--report", "--baseline"],
        look=QUESTIONS[0],
        figures=True,
        commands={
            "add": ["answers", "answers", "add", "when does the branch in main street open", "opening_hours"],
            "add a file": ["answers", "answers", "add", "data/more-answers.tsv"],
            "ask again": ["predict", "answers", QUESTIONS[3], "--best", "3", "--json"],
            "remove": ["answers", "answers", "remove", "20"],
            "list": ["answers", "answers", "list"],
            "list one": ["answers", "answers", "list", "21", "--json"],
        },
    ),
    Training(
        "answers pairs",
        "answers-tiny",
        f"""
            data.train=data/questions.tsv; data.dev=data/questions-dev.tsv; text.tokenizer=character; {SMALL};
            data.longest=300; answers.kind=pairs; answers.detector=neighbours; answers.hard_negatives=2;
            train.batch_tokens=4096
        """,
        removed=MIXTURES,
        inputs=[*QUESTIONS, NEWS[0]],
        predictions={"best": ["--best", "3"]},
        evaluate=["data/questions-dev.tsv"],
        interrupted=True,
        extended=True,
    ),
]
PRETRAINING = [
    Training(
        "pretrain",
        "pretrain-tiny",
        """
            data.dev=data/sentences-dev.txt; data.columns=["text"]; data.documents=lines; data.train=data/sentences.txt
        """,
        inputs=GAPS,
        predictions={"best": ["--best", "3"]},
        plain=[],
        evaluate=["data/sentences-dev.txt"],
        look=GAPS[0],
        figures=True,
        interrupted=True,
    ),
    Training(
        "classify after pretraining",
        "classify-tiny",
        """
            train.init_from=pretrain; model={ dropout = 0.3 }; train.layer_decay=0.8; train.frozen_layers=1;
            train.head_warmup=6; loss.token_dropout=0.1
        """,
        inputs=COMMENTS,
    ),
    Training(
        "tag with an adapter",
        "tag-tiny",
        """
            train.init_from=pretrain; model={}; train.lora_rank=4; train.lora_dropout=0.1;
            train.lora_on=["attention", "feedforward"]
        """,
        inputs=MESSAGES,
        evaluate=["shipped:entities-en.dev"],
        look=MESSAGES[0],
        interrupted=True,
        merged=True,
    ),
    Training(
        "classify after BERT",
        "classify-tiny",
        """
            train.init_from=data/bert; model={ pooling = 'first' }; data.longest=48
        """,
        inputs=COMMENTS,
    ),
]
