"""Models that write: the tiny recipe of each task, and runs with other settings."""

from __future__ import annotations

from recordings.trainings import CHINESE, GAPS, NEWS, PROMPTS, SMALL, Training

LANGUAGE_MODEL = [
    Training(
        "language model",
        "lm-tiny",
        """
            decode.longest=60
        """,
        inputs=PROMPTS,
        predictions={
            "seed": ["--seed", "3", "--temperature", "0.9", "--top-k", "20", "--min-p", "0.02"],
            "greedy": ["--temperature", "0", "--no-repeat-ngram", "2", "--repetition-penalty", "1.3"],
            "stop": ["--stop", "e", "--stop", "\n", "--top-p", "0.7", "--longest", "30"],
        },
        plain=["--stream", "--longest", "90"],
        evaluate=["data/sentences-dev.txt", "--stride", "16"],
        look=PROMPTS[1],
        look_options=["--seed", "2", "--longest", "12"],
        figures=True,
        interrupted=True,
    ),
    Training(
        "language model of GPT-2",
        "lm-tiny",
        """
            data.train=data/sentences.txt; data.dev=data/sentences-dev.txt; data.documents=lines; model={};
            train.init_from=data/gpt2; train.lora_rank=4; decode.longest=20
        """,
        inputs=PROMPTS,
        merged=True,
    ),
]
SUMMARISATION = [
    Training(
        "summarise",
        "summarise-tiny",
        """
            data.dev=data/messages-dev.tsv
        """,
        inputs=NEWS,
        predictions={
            "coverage": ["--coverage", "--beam", "1"],
            "best": ["--best", "3", "--beam", "3", "--length-penalty", "0.5"],
            "sampled": ["--temperature", "0.9", "--seed", "5", "--longest", "9"],
        },
        plain=["--stream", "--longest", "12"],
        evaluate=["data/messages-dev.tsv", "--baseline"],
        look=NEWS[0],
        figures=True,
    ),
    Training(
        "summarise lists",
        "summarise-tiny",
        f"""
            data.train=data/lists.jsonl; data.columns={{ text = "article", summary = "short" }}; data.dev=0.03; {SMALL};
            model.encoder_window=16; model.positions=rotary; train.average=last; train.keep=3
        """,
        inputs=NEWS,
        evaluate=["data/lists.jsonl", "--longest", "4", "--beam", "1"],
    ),
]
DENOISING = [
    Training(
        "denoise",
        "pretrain-tiny",
        f"""
            objective=denoise; data.dev=data/sentences-dev.txt; data.columns=["text"]; data.documents=lines;
            data.train=data/sentences.txt; masking.share=0.3; decode.longest=20; {SMALL}
        """,
        inputs=GAPS,
        predictions={"beam": ["--beam", "3", "--best", "2"]},
        evaluate=["data/sentences-dev.txt"],
        look=GAPS[1],
        interrupted=True,
    ),
    Training(
        "translate after denoising",
        "translate-zh-en-tiny",
        """
            data.dev=data/translate-dev.tsv; train.init_from=denoise; model={}; train.lora_rank=2;
            text.shared=true
        """,
        inputs=CHINESE,
        predictions={"longest": ["--longest", "8"]},
        merged=True,
    ),
    Training(
        "next",
        "pretrain-tiny",
        f"""
            objective=next; data.dev=data/sentences-dev.txt; data.columns=["text"]; data.documents=lines; {SMALL};
            data.train=data/sentences.txt; decode.longest=20; text.prompt_end="\\n"
        """,
        inputs=PROMPTS,
        predictions={"seed": ["--seed", "4"]},
        evaluate=["data/sentences-dev.txt", "--stride", "8"],
        look=PROMPTS[1],
    ),
    Training(
        "summarise after next",
        "summarise-tiny",
        """
            data.dev=data/messages-dev.tsv; train.init_from=next; model={}; train.head_warmup=4
        """,
        inputs=NEWS,
    ),
]
CAPTIONING = [
    Training(
        "caption",
        "caption-tiny",
        """
            data.train=made:pairs.train:200; data.dev=made:pairs.dev:10
        """,
        inputs=["caption/samples/1.png", "data/picture-0.png", "data/picture-1.png"],
        predictions={
            "best": ["--best", "3", "--beam", "3"],
            "sampled": ["--temperature", "0.8", "--seed", "2"],
            "prefix": ["--prefix", "a red"],
        },
        plain=[],
        evaluate=["caption/samples", "--baseline"],
        look="caption/samples/1.png",
        figures=True,
    ),
    Training(
        "caption augmented",
        "caption-tiny",
        """
            data.train=data/pictures.tsv; data.dev=data/pictures-dev.tsv; picture.height=32;
            picture.width=32; picture.patch=8; picture.resize=crop; augmentation.flip=true; augmentation.zoom=0.3;
            augmentation.rotation=25; model.patch_convolutions=1; model.patch_positions=rotary;
            train.average=ema; train.decay=0.8; decode={ beam = 2, longest = 8, no_repeat_ngram = 2 }
        """,
        inputs=["data/picture-30.png", "data/picture-31.png", "data/picture-32.png"],
        evaluate=["data/pictures-dev.tsv"],
        look="data/picture-31.png",
        interrupted=True,
        extended=True,
    ),
]
TRANSCRIPTION = [
    Training(
        "transcribe",
        "transcribe-tiny",
        """
            data.train=made:words.train:120; data.dev=made:words.dev:8
        """,
        inputs=["transcribe/samples/1.wav", "data/stereo.wav", "data/long.wav"],
        predictions={
            "best": ["--best", "2", "--beam", "2"],
            "decoder alone": ["--ctc-weight", "0"],
            "CTC alone": ["--ctc-weight", "1"],
        },
        plain=[],
        evaluate=["made:words.test:6", "--ctc-weight", "0.6"],
        look="transcribe/samples/1.wav",
        figures=True,
    ),
    Training(
        "transcribe tones",
        "transcribe-tiny",
        """
            data.train=data/sounds.tsv; data.dev=data/sounds-dev.tsv; text.tokenizer=bpe; text.vocabulary=300;
            augmentation={ speeds = [0.9, 1.0, 1.1], noise = 0.1, band_width = 5, time_width = 10 };
            loss={ ctc = 0.3, label_smoothing = 0.1 }; decode.piece_seconds=1.5; decode.padding_seconds=0.1;
            train.batch_tokens=1000; sound.normalise=false
        """,
        inputs=["data/sound-25.wav", "data/stereo.wav", "data/long.wav"],
        evaluate=["data/sounds-dev.tsv"],
        look="data/long.wav",
        interrupted=True,
    ),
]
TRANSLATION = [
    Training(
        "translate",
        "translate-zh-en-tiny",
        """
            data.dev=data/translate-dev.tsv; data.lines=3000
        """,
        inputs=CHINESE,
        predictions={"best": ["--best", "3", "--beam", "4"], "sampled": ["--temperature", "0.8", "--seed", "7"]},
        evaluate=["data/translate-dev.tsv", "--lowercase", "--beam", "2"],
        look=CHINESE[1],
        look_options=["--answer", "I love you.", "--without"],
        interrupted=True,
        extended=True,
    ),
    Training(
        "translate classic",
        "translate-zh-en",
        """
            data.dev=data/translate-dev.tsv; data.lines=2000; train.batch_tokens=1024; train.weights=int8;
            model.width=48; model.heads=4; model.kv_heads=2; model.layers=2; model.feedforward=96;
            text.vocabulary=900; text.shared=true; train.average=last; train.compile=false;
            decode={ beam = 3, no_repeat_ngram = 3 }
        """,
        inputs=CHINESE,
        evaluate=["data/parallel.zh", "data/parallel.en", "--beam", "1", "--longest", "4"],
    ),
    Training(
        "translate fitted",
        "data/fitted.toml",
        """
            train.batch_tokens=512
        """,
        inputs=CHINESE,
    ),
]
