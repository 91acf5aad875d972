"""Trainer: the training loop with its log, evaluations on dev, checkpoints and resumption."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import ConfigError, TrainingError
from clearhead.model import Model
from clearhead.tasks.answerer import Evaluation
from clearhead.tasks.processor import Examples
from clearhead.text.batches import Batch, BatchPlan
from clearhead.train.data import TrainingData
from clearhead.train.head_monitor import HeadMonitor
from clearhead.train.observers import Moment, Observer, Sample
from clearhead.train.processes import Processes, unshard_weights
from clearhead.train.recipe import learned_settings
from clearhead.train.run_folder import Checkpoints
from clearhead.train.updater import Updater

PROGRESS_SECONDS = 5.0  # most time between two progress reports
SAVE_SECONDS = 600.0  # most time between two checkpoints
SAMPLES = 3  # answers that are shown at each evaluation
EXAMPLES = "examples."  # in a checkpoint, before the names of tensors that belong to the examples


@dataclass
class Position:
    """The state of a run that is not in tensors; a checkpoint stores it as JSON."""

    step: int = 0
    loss: float = 0.0  # summed since the last log line
    counted: int = 0  # predictions in that sum
    tokens: int = 0  # trained on so far, all sides, without padding
    best: float | None = None
    best_step: int | None = None
    best_loss: float | None = None  # its loss on dev: among equal scores the lower loss wins
    stale: int = 0  # evaluations since the best
    seconds: float = 0.0
    stopped: str | None = None  # why it ended: steps, time or patience


class Trainer:
    """Trains one model: takes the planned batches in order, and logs, evaluates and saves as the recipe says."""

    def __init__(
        self,
        data: TrainingData,
        model: Model,
        checkpoints: Checkpoints,
        processes: Processes,
        observers: Sequence[Observer] = (),
        new: Collection[str] = (),
    ) -> None:
        self.data, self.train, self.processes, self.seed = data, data.recipe.train, processes, data.recipe.seed
        examples, objective, train, seed = data.examples, data.objective, self.train, self.seed
        self.fingerprints = [part.fingerprint() for part in (examples, data.dev) if part is not None]
        self.examples = examples.to(processes.device)
        self.dev = None if data.dev is None else data.dev.to(processes.device)
        self.checkpoints, self.observers = checkpoints, observers
        self.position, self.done, self.interrupted = Position(), 0.0, False
        # All processes share each batch; where that would change the loss, each takes whole batches in turn.
        shared = processes.count if objective.splits_batches else 1
        self.plan = BatchPlan(examples.lengths, tokens=train.batch_tokens * shared, seed=seed, shapes=train.shapes)
        self.batches_per_step = train.accumulate * processes.count // shared
        self.steps_per_epoch = -(-self.plan.batches // self.batches_per_step)
        self.monitor = HeadMonitor(self.examples, train.heads_every, processes, seed)
        self.shown = self.saved = time.monotonic()  # when progress was last reported, and a checkpoint last saved
        self.updater = Updater(train, objective, model, self.examples, processes, seed, new)
        self.model = self.updater.model
        self._pending: list[tuple[list[Batch], Tensor, Tensor]] = []  # windows whose loss was not read yet

    def run(self) -> Position:
        """Trains until the steps, the time or the patience are over."""
        started = time.monotonic() - self.position.seconds
        epoch, batches = -1, []
        if self.train.steps == 0 and self.position.stopped is None:
            self.position.stopped, self.position.best_step = "steps", 0
            self.save()
        while self.position.stopped is None:
            step = self.position.step + 1
            if (step - 1) // self.steps_per_epoch != epoch:
                epoch = (step - 1) // self.steps_per_epoch
                batches = self.plan.epoch(epoch)
                if (step - 1) % self.steps_per_epoch == 0:  # not where a run is resumed within an epoch
                    self._refresh_examples(epoch)
            first = (step - 1) % self.steps_per_epoch * self.batches_per_step
            window = batches[first : first + self.batches_per_step]
            self.updater.set_learning_rate(step, self.done)
            loss, norm = self.updater.update(window, step)
            self._pending.append((window, loss, norm))
            self.position.step = step
            self.position.tokens += sum(int(self.examples.lengths[batch.examples].sum()) for batch in window)
            self.position.seconds = time.monotonic() - started
            self.done = self._completed_share()
            self._after_step(step)
        return self.position

    def _refresh_examples(self, epoch: int) -> None:
        """Lets the objective change its examples for an epoch, with the weights as they are."""
        self.model.eval()
        with self.updater.autocast(), torch.compiler.set_stance("force_eager"), unshard_weights(self.model):
            self.data.objective.refresh(self.model, self.examples, epoch)
        self.model.train()

    def _after_step(self, step: int) -> None:
        """Logs, measures heads, evaluates, saves or stops, whatever is due after a step."""
        train, position = self.train, self.position
        if self.processes.device.type == "cpu" or step % train.log_every == 0:
            self._read_losses()
        if self.done >= 1:
            position.stopped = "steps" if step == train.steps else "time"
        ended = position.stopped is not None
        if step % train.log_every == 0 or ended:
            self._read_losses()
            self._log(step)
        elif time.monotonic() - self.shown > PROGRESS_SECONDS:
            self._show_progress(step)
        if train.heads_every != 0 and (ended or self.monitor.is_due(step)):
            self.measure_heads(step)
        if step % train.evaluate_every == 0 or ended:
            self._evaluate(step)
        if self.interrupted or self._is_planned_save() or self._is_save_overdue(step):
            self.save()
        if self.interrupted:
            raise TrainingError(f"interrupted at step {step}, which is saved; continue with --resume")

    def _read_losses(self) -> None:
        """Reads the losses since the last call and checks that they are finite; a GPU must wait for this."""
        if not self._pending:
            return
        losses = torch.stack([loss.double() for _, loss, _ in self._pending])
        if self.processes.count > 1:
            torch.distributed.all_reduce(losses)
        norms = torch.stack([norm.double() for *_, norm in self._pending]).tolist()
        for (window, *_), loss, norm in zip(self._pending, losses.tolist(), norms, strict=True):
            # With float16 a gradient may overflow: the scaler skips that step by itself.
            if not np.isfinite(loss) or not (np.isfinite(norm) or self.updater.scaler.is_enabled()):
                raise TrainingError(self._describe_failure(window, loss, norm))
            self.position.loss += loss
            self.position.counted += sum(int(self.examples.counts[batch.examples].sum()) for batch in window)
            self._norm = norm
        self._pending.clear()

    def _describe_failure(self, window: Sequence[Batch], loss: float, norm: float) -> str:
        places = [self.examples.where(int(example)) for batch in window for example in batch.examples]
        shown = ", ".join(places[:8]) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
        newest = self.checkpoints.steps()
        saved = f"the checkpoint of step {newest[-1]} is whole" if newest else "no checkpoint was written yet"
        return (
            f"the loss became {loss} (gradient norm {norm}) at about step {self.position.step}, on a batch of these "
            f"lines: {shown}; {saved}; try a lower train.learning_rate, a longer train.warmup or train.clip"
        )

    def _log(self, step: int) -> None:
        position = self.position
        metrics: dict[str, Any] = {
            "epoch": round(step / self.steps_per_epoch, 4),
            "loss": position.loss / max(1, position.counted),
            "learning_rate": self.updater.optimizer.param_groups[0]["lr"],
            "norm": self._norm if math.isfinite(self._norm) else None,  # float16 may overflow; JSON has no infinity
        }
        position.loss, position.counted = 0.0, 0
        self.shown = time.monotonic()
        self._notify("logged", step, metrics)

    def _show_progress(self, step: int) -> None:
        """Reports progress between two log lines, only on the screen."""
        if self.processes.count == 1:
            self._read_losses()
        self.shown = time.monotonic()
        if self.position.counted:
            self._notify("progressed", step, {"loss": self.position.loss / self.position.counted})

    def measure_heads(self, step: int) -> None:
        """Measures all heads with the current weights, and passes the result to the observers."""
        self._read_losses()
        heads = self.monitor.measure(self.model, self.updater.compute_loss)
        for observer in self.observers:
            observer.watched(step, heads)

    def _evaluate(self, step: int) -> None:
        """Evaluates on dev; remembers the best step, and stops when the patience is over."""
        position, train = self.position, self.train
        self._read_losses()
        if self.dev is None:
            position.best_step = step
            return
        loss, evaluation = self._score_dev(self.dev)
        metrics: dict[str, float | str] = {"loss": loss} | evaluation.scores | {"loss": loss}  # first, and our own
        score = self.processes.agree(float(metrics[self.data.metric]) * (-1 if self.data.minimises else 1))
        tied = score == position.best and position.best_loss is not None and loss < position.best_loss
        if position.best is None or score > position.best or tied:
            position.best, position.best_step, position.best_loss, position.stale = score, step, loss, 0
        else:
            position.stale += 1
            if train.patience is not None and position.stale >= train.patience:
                position.stopped = position.stopped or "patience"
        inputs, answer_of = self.data.processor.inputs, self.data.processor.answer_of
        samples = [
            Sample(inputs.show_row(row), prediction.text, answer_of(row))
            for row, prediction in zip(evaluation.rows[:SAMPLES], evaluation.predictions, strict=False)
        ]
        self._notify("evaluated", step, metrics, samples)

    @torch.no_grad()
    def _score_dev(self, dev: Examples[Any]) -> tuple[float, Evaluation]:
        """The loss over all examples of dev, and the scores over its first rows, with quick options."""
        updater, data, train = self.updater, self.data, self.train
        plan = BatchPlan(dev.lengths, tokens=4 * train.batch_tokens, seed=0, shapes=train.shapes)
        total = 0.0
        # Eager: layers are compiled for training; dev would compile them again, and decoding at every length.
        with updater.use_average(), updater.autocast(), torch.compiler.set_stance("force_eager"):
            self.model.eval()
            for batch, weight in updater.share_window(plan.epoch(0)):
                total += float(updater.compute_loss(dev.collate(batch)) * weight)
            with unshard_weights(self.model):
                answerer = data.task.answerer(data.processor, self.model)
                options = answerer.options(**data.objective.quick_options)
                evaluation = answerer.evaluate_quickly(data.dev_rows[: train.evaluate_lines], options)
            self.model.train()
        return self.processes.sum(total) / int(dev.counts.sum()), evaluation

    def _is_planned_save(self) -> bool:
        """Whether the recipe asks for a checkpoint at this step."""
        step, train = self.position.step, self.train
        every = (train.evaluate_every, train.save_every or train.evaluate_every)
        return self.position.stopped is not None or any(step % each == 0 for each in every)

    def _is_save_overdue(self, step: int) -> bool:
        """Whether the last checkpoint is older than SAVE_SECONDS."""
        if self.processes.count == 1:
            return time.monotonic() - self.saved > SAVE_SECONDS
        if step % self.train.log_every:  # the processes must agree, which costs a message
            return False
        return bool(self.processes.agree(float(time.monotonic() - self.saved > SAVE_SECONDS)))

    def save(self) -> None:
        self._read_losses()
        state: dict[str, Any] = {"position": asdict(self.position), "processes": self.processes.count}
        scaler = self.updater.scaler.state_dict()
        state |= {"scaler": scaler, "planned": self._is_planned_save(), "data": self.fingerprints}
        state["settings"] = learned_settings(self.data.recipe)
        tensors = self._collect_tensors()
        self.checkpoints.save(self.position.step, tensors, state, self.position.best_step)
        self.saved = time.monotonic()

    def _collect_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores: all of the updater, and what the task changed in the examples."""
        changed = {f"{EXAMPLES}{name}": tensor for name, tensor in self.examples.state().items()}
        return {**self.updater.collect_tensors(), **changed}

    def resume(self, step: int) -> None:
        """Restores a checkpoint; training continues exactly as it would have without the interruption."""
        if self.train.shard and self.processes.count > 1:
            self.updater.allocate_moments()
        tensors, state = self.checkpoints.load(step, self._collect_tensors())
        if state["processes"] != self.processes.count:
            raise ConfigError(
                f"this run was started with {state['processes']} processes, which share every batch; "
                f"{self.processes.count} would train on other batches: continue with the same number"
            )
        if state["data"] != self.fingerprints:
            raise ConfigError("the data of this run have changed since it was started: restore them, or start anew")
        before, now = state["settings"], learned_settings(self.data.recipe)
        if changed := [key for key, value in before.items() if key in now and now[key] != value]:
            listed = ", ".join(f"{key} = {before[key]!r} (now {now[key]!r})" for key in changed)
            raise ConfigError(f"step {step} was trained with {listed}; restore the setting, or start anew")
        self.updater.restore_tensors(tensors)
        if self.examples.state():
            stored = {name: tensor for name, tensor in tensors.items() if name.startswith(EXAMPLES)}
            self.examples.restore({name.removeprefix(EXAMPLES): tensor for name, tensor in stored.items()})
        self.position = position = Position(**state["position"])
        self.updater.scaler.load_state_dict(state["scaler"])
        self.done = self._completed_share()
        patient = self.train.patience is None or position.stale < self.train.patience
        if self.done < 1 and (position.stopped != "patience" or patient):
            position.stopped = None  # a finished run may be given more steps, time or patience
        elif self.done >= 1 and position.stopped is None:
            position.stopped = "steps"  # train.steps was lowered below the steps already done

    def _completed_share(self) -> float:
        """The completed share of the run, 0 to 1, by steps or by time, whichever is further."""
        done = self.position.step / self.train.steps if self.train.steps else 1.0
        if self.train.minutes is not None:
            done = max(done, self.processes.agree(self.position.seconds / 60 / self.train.minutes))
        return done

    def _notify(self, event: str, step: int, metrics: dict[str, float | str], samples: Sequence[Sample] = ()) -> None:
        """Calls the method `event` of all observers."""
        position = self.position
        moment = Moment(
            step=step,
            steps=self.train.steps,
            model=self.model,
            metrics=metrics,
            tokens=position.tokens,
            seconds=position.seconds,
            done=self.done,
            best=position.best,
            samples=samples,
        )
        for observer in self.observers:
            getattr(observer, event)(moment)
