"""Training: a run of a few steps, and what its model is asked; settings and inputs that several runs share."""

from __future__ import annotations

from dataclasses import dataclass, field

QUICK = ["steps=16", "warmup=4", "log_every=4", "evaluate_every=8", "heads_every=8", "tensorboard=false"]
SMALL = "model={ shape = 'tiny', width = 32, heads = 4, layers = 2, feedforward = 64, dropout = 0.1 }"
COMMENTS = ["What a wonderful day, thank you!", "This is awful!! Why?", "", "😀" * 20, "It rained. " * 30]
MESSAGES = ["Going to Chicago tomorrow. I love Justin Bieber!", "4Dbling's place", "", "Angela Merkel " * 12]
QUESTIONS = ["i lost my card yesterday", "who wrote hamlet", "", "opening times of the branch in main street"]
NEWS = ["The trains were late again. Dora has to cancel the lesson on Friday.", "Erik left. " * 12, ""]
CHINESE = ["我爱你。", "他昨天在北京。我们明天去学校，好吗？", "愛", "", "Hello 2024"]
PROMPTS = ["ROMEO:", "To be, or not", "", "你好 😀"]
GAPS = ["I <mask> you.", "<mask> <mask> is a good day.", "No gap here.", ""]


@dataclass(frozen=True)
class Training:
    """One run, and what its model is asked."""

    name: str
    recipe: str = ""  # none: the model is shipped
    settings: str = ""  # of --set, with semicolons between
    removed: str = ""  # settings that switch off what later code does not have; left out where their keys are unknown
    inputs: list[str] = field(default_factory=list)  # of predict
    predictions: dict[str, list[str]] = field(default_factory=dict)  # options of `predict --json`, beside its defaults
    plain: list[str] | None = None  # options of a further `predict` without --json
    evaluate: list[str] = field(default_factory=list)  # data and options
    look: str = ""  # an input
    look_options: list[str] = field(default_factory=list)
    figures: bool = False
    interrupted: bool = False  # whether the run is repeated with an interruption and --resume
    extended: bool = False  # whether the run is given more steps with --resume, also by the code that compares
    merged: bool = False  # whether its adapter is merged into its base
    commands: dict[str, list[str]] = field(default_factory=dict)  # further commands
