"""The loop: batches in their planned order, losses, updates; from time to time a look at dev, and a checkpoint."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clearhead.errors import ConfigError, TrainingError
from clearhead.model import Model
from clearhead.tasks import AnyTask
from clearhead.tasks.base import Evaluation, Examples
from clearhead.text import Row
from clearhead.text.batches import Batch, BatchPlan
from clearhead.train.checkpoints import Checkpoints, gathered, restore
from clearhead.train.cuda_graphs import Replayed
from clearhead.train.head_monitor import EVERY, SHARE, alike, head_states
from clearhead.train.observers import Moment, Observer, Sample
from clearhead.train.parallel import Step, compiled, precision_of, spread, whole
from clearhead.train.processes import Processes
from clearhead.train.recipe import CHANGEABLE, Train
from clearhead.train.schedules import learning_rate

PROGRESS_EVERY, SAVE_EVERY = 5.0, 600.0  # seconds, at most, from one sign of life, or checkpoint, to the next
SAMPLES = 3  # answers that are shown at each evaluation
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Position:
    """Where a run stands: all that is not a tensor."""

    step: int = 0
    loss: float = 0.0  # summed since the last line of the log
    counted: int = 0  # over so many predictions
    tokens: int = 0  # real ones of all sides, since the beginning
    best: float | None = None
    best_step: int | None = None
    best_loss: float | None = None  # on dev, of the best: among equal scores the lower one wins
    stale: int = 0  # evaluations since the best
    seconds: float = 0.0
    stopped: str | None = None  # why it ended


class Trainer:
    """One run: a model, its data, and what has been learned so far."""

    def __init__(
        self,
        train: Train,
        task: AnyTask,
        model: Model,
        examples: Examples[Any],
        dev: tuple[Examples[Any], Sequence[Row]] | None,
        checkpoints: Checkpoints,
        processes: Processes,
        observers: Sequence[Observer] = (),
        seed: int = 1,
    ) -> None:
        self.train, self.task, self.processes, self.seed = train, task, processes, seed
        self.data = [one.fingerprint() for one in (examples, *(dev[:1] if dev else ()))]
        self.examples, self.dev = examples.to(processes.device), dev
        self.checkpoints, self.observers = checkpoints, observers
        self.position, self.done, self.interrupted = Position(), 0.0, False
        # All processes share each batch, or, where that would change the loss, take whole ones in turn.
        shared = processes.count if task.splits_batches else 1
        self.plan = BatchPlan(examples.lengths, tokens=train.batch_tokens * shared, seed=seed, shapes=train.shapes)
        self.batches_per_step = train.accumulate * processes.count // shared
        self.windows = -(-self.plan.batches // self.batches_per_step)  # updates in an epoch
        self.few = self.examples.collate(alike(examples.lengths))  # what the heads are watched with
        self.begun, self.looks = time.monotonic(), list[float]()  # how many seconds each took
        self.shown = self.saved = self.begun  # when progress was last shown, and a checkpoint last saved
        self.precision = precision_of(train.precision, processes.device)
        self.model = model.to(processes.device, torch.float64 if self.precision == "float64" else torch.float32)
        self.model.checkpointing = train.checkpointing
        if train.compile:
            compiled(self.model, task)
        self.step = Step(self.model, task)
        self.forward = spread(self.step, self.model, processes, shard=train.shard)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = self._optimizer()
        scaled = self.precision == "float16"
        self.scaler = torch.amp.GradScaler(processes.device.type, enabled=scaled)
        self.average = {
            name: parameter.detach().clone() for name, parameter in self.parameters.items() if train.average == "ema"
        }
        self.replayed: Replayed | None = None
        if train.compile and processes.device.type == "cuda" and processes.count == 1 and not scaled:
            self.replayed = Replayed(self._forward, self.parameters.values(), processes.device)
        self._pending: list[tuple[list[Batch], Tensor, Tensor]] = []  # windows whose loss nobody has looked at

    def run(self) -> Position:
        """Trains until the steps, the time or the patience are over."""
        started = time.monotonic() - self.position.seconds
        epoch, batches = -1, []
        while self.position.stopped is None:
            step = self.position.step + 1
            if (step - 1) // self.windows != epoch:
                epoch = (step - 1) // self.windows
                batches = self.plan.epoch(epoch)
            place = (step - 1) % self.windows * self.batches_per_step
            window = batches[place : place + self.batches_per_step]
            self._set_rate(step)
            loss, norm = self.update(window, step)
            self._pending.append((window, loss, norm))
            self.position.step = step
            self.position.tokens += sum(int(self.examples.lengths[batch.examples].sum()) for batch in window)
            self.position.seconds = time.monotonic() - started
            self.done = self._done()
            self._after(step)
        return self.position

    def update(self, window: Sequence[Batch], step: int) -> tuple[Tensor, Tensor]:
        """One change of the weights from all batches of a window together; their loss, and the gradient's norm.

        The loss is divided by the predictions of the whole window over all processes, so that cutting a batch into
        several, or sharing it out, changes nothing but the order of additions.
        """
        total = sum(int(self.examples.counts[batch.examples].sum()) for batch in window)
        self._draw_from(step)
        self.model.train()
        losses, shares = [], self._own_shares(window)
        for number, share in enumerate(shares):
            last = number == len(shares) - 1
            with contextlib.nullcontext() if last else self._without_sync():
                losses.append(self._both_passes(*share, self.processes.count / total))  # processes are averaged
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.train.clip or math.inf, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=self.replayed is None)
        if self.average:
            # At the start the average forgets faster: it would otherwise drag the random weights along.
            decay = min(self.train.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(_local(self.average), _local(self.parameters), 1 - decay)
        return torch.stack(losses).sum(), norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _own_shares(self, window: Sequence[Batch]) -> list[tuple[Batch, float]]:
        """What this process computes of a window, with the weight of each batch: all do equally many.

        One that has nothing left to do joins in with a weight of 0.
        """
        rank, count = self.processes.rank, self.processes.count
        if count == 1:
            return [(batch, 1.0) for batch in window]
        if self.task.splits_batches:
            parts = [(batch.part(rank, count), batch) for batch in window]
            idle = [(Batch(batch.examples[:1], batch.sizes), 0.0) for batch in window]
            return [(part, 1.0) if len(part.examples) else idle[n] for n, (part, _) in enumerate(parts)]
        own = [(batch, 1.0) for batch in window[rank::count]]
        return own + [(window[0], 0.0)] * (-(-len(window) // count) - len(own))

    def _both_passes(self, batch: Batch, weight: float, factor: float) -> Tensor:
        """The loss of a batch, whose gradient is added to the others'."""
        tensors = self.examples.collate(batch)
        if self.replayed is not None:
            return self.replayed(tensors, factor)
        loss = self._forward(tensors) * weight
        self.scaler.scale(loss * factor).backward()
        return loss.detach()

    def _forward(self, batch: Any) -> Tensor:
        with self._autocast():
            loss: Tensor = self.forward(batch)
        return loss

    def _after(self, step: int) -> None:
        """What follows a step: a line in the log, a look at dev, a checkpoint, the end."""
        train, position = self.train, self.position
        if self.processes.device.type == "cpu" or step % train.log_every == 0:
            self._settle()
        if self.done >= 1:
            position.stopped = "steps" if step == train.steps else "time"
        ended = position.stopped is not None
        if step % train.log_every == 0 or ended:
            self._settle()
            self._log(step)
        elif time.monotonic() - self.shown > PROGRESS_EVERY:
            self._show_progress(step)
        if train.heads_every != 0 and (ended or self._due(step)):
            self._look(step)
        if step % train.evaluate_every == 0 or ended:
            self._evaluate(step)
        if self.interrupted or self._planned() or self._overdue(step):
            self.save()
        if self.interrupted:
            raise TrainingError(f"interrupted at step {step}, which is saved; go on with --resume")

    def _settle(self) -> None:
        """Looks at the losses since the last look; a GPU is not kept waiting for that at every step."""
        if not self._pending:
            return
        losses = torch.stack([loss.double() for _, loss, _ in self._pending])
        if self.processes.count > 1:
            torch.distributed.all_reduce(losses)
        norms = torch.stack([norm.double() for *_, norm in self._pending]).tolist()
        for (window, *_), loss, norm in zip(self._pending, losses.tolist(), norms, strict=True):
            # With float16 a gradient may overflow: the scaler skips that step by itself.
            if not np.isfinite(loss) or not (np.isfinite(norm) or self.scaler.is_enabled()):
                raise TrainingError(self._what_broke(window, loss, norm))
            self.position.loss += loss
            self.position.counted += sum(int(self.examples.counts[batch.examples].sum()) for batch in window)
            self._norm = norm
        self._pending.clear()

    def _what_broke(self, window: Sequence[Batch], loss: float, norm: float) -> str:
        places = [self.examples.where(int(example)) for batch in window for example in batch.examples]
        shown = ", ".join(places[:8]) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
        newest = self.checkpoints.steps()
        kept = f"the checkpoint of step {newest[-1]} is whole" if newest else "no checkpoint was written yet"
        return (
            f"the loss became {loss} (gradient norm {norm}) at about step {self.position.step}, on a batch of these "
            f"lines: {shown}; {kept}; try a lower train.learning_rate, a longer train.warmup or train.clip"
        )

    def _log(self, step: int) -> None:
        position = self.position
        metrics: dict[str, Any] = {
            "epoch": round(step / self.windows, 4),
            "loss": position.loss / max(1, position.counted),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "norm": self._norm if math.isfinite(self._norm) else None,  # float16 may overflow; JSON knows no infinity
        }
        position.loss, position.counted = 0.0, 0
        self.shown = time.monotonic()
        self._tell("logged", step, metrics)

    def _show_progress(self, step: int) -> None:
        """A sign of life between two lines of the log, for those who watch: it is in no file."""
        if self.processes.count == 1:
            self._settle()
        self.shown = time.monotonic()
        if self.position.counted:
            self._tell("progressed", step, {"loss": self.position.loss / self.position.counted})

    def _overdue(self, step: int) -> bool:
        """Whether the last checkpoint is so long ago that another one is due, whatever the recipe says."""
        if self.processes.count == 1:
            return time.monotonic() - self.saved > SAVE_EVERY
        if step % self.train.log_every:  # all must agree, which costs a message
            return False
        return bool(self.processes.agree(float(time.monotonic() - self.saved > SAVE_EVERY)))

    def _due(self, step: int) -> bool:
        """Whether it is time to look at the heads: if nobody says how often, looks take a small share of the time."""
        if step % (self.train.heads_every or EVERY):
            return False
        counted = self.looks[1:]  # the first one compiles what all need
        dear = sum(counted + counted[-1:]) > SHARE * (time.monotonic() - self.begun)
        return self.train.heads_every is not None or not self.processes.agree(float(dear))

    def _look(self, step: int) -> None:
        """What the heads do with a few examples, as the weights are now."""
        self._settle()
        started = time.monotonic()
        self.model.eval()
        heads = head_states(self.model, lambda: self._forward(self.few))
        self.model.train()
        self.looks.append(time.monotonic() - started)
        for observer in self.observers:
            observer.watched(step, heads)

    def _evaluate(self, step: int) -> None:
        """The scores on dev, and whether they are the best so far."""
        position, train = self.position, self.train
        self._settle()
        if self.dev is None:
            position.best_step = step
            return
        loss, found = self.evaluate()
        metrics = {"loss": loss, **found.scores}
        name = train.metric or self.task.metric
        score = self.processes.agree(float(metrics[name]) * (-1 if name == "loss" else 1))
        tied = score == position.best and position.best_loss is not None and loss < position.best_loss
        if position.best is None or score > position.best or tied:
            position.best, position.best_step, position.best_loss, position.stale = score, step, loss, 0
        else:
            position.stale += 1
            if train.patience is not None and position.stale >= train.patience:
                position.stopped = position.stopped or "patience"
        self._tell("evaluated", step, metrics, self._samples(found))

    @torch.no_grad()
    def evaluate(self) -> tuple[float, Evaluation]:
        """The averaged weights on dev: the loss over all of it, the scores over its first rows, with quick options."""
        assert self.dev is not None
        examples, rows = self.dev
        examples.to(self.processes.device)
        plan = BatchPlan(examples.lengths, tokens=4 * self.train.batch_tokens, seed=0, shapes=self.train.shapes)
        total = 0.0
        # What was compiled is compiled for training: dev would be compiled once more, and decoding at every length.
        with self.averaged(), self._autocast(), torch.compiler.set_stance("force_eager"):
            self.model.eval()
            for batch, weight in self._own_shares(plan.epoch(0)):
                total += float(self._forward(examples.collate(batch)) * weight)
            with whole(self.model):
                rows = rows[: self.train.evaluate_lines]
                found = self.task.evaluate(self.model, rows, self.task.quick_options())
            self.model.train()
        return self.processes.sum(total)[0] / int(examples.counts.sum()), found

    def _samples(self, found: Evaluation) -> list[Sample]:
        """The first few rows with the model's answers."""
        return [
            Sample(str(self.task.input_of(row)), prediction.text, self.task.answer_of(row))
            for row, prediction in zip(found.rows[:SAMPLES], found.predictions, strict=False)
        ]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """With the averaged weights in place of the newest, if they are averaged."""
        if not self.average:
            yield
            return
        mine = _local(self.parameters)
        newest = [tensor.clone() for tensor in mine]
        with torch.no_grad():
            torch._foreach_copy_(mine, _local(self.average))
            try:
                yield
            finally:
                torch._foreach_copy_(mine, newest)

    def _planned(self) -> bool:
        """Whether this step has a checkpoint by the recipe, not by an interruption."""
        step, train = self.position.step, self.train
        every = (train.evaluate_every, train.save_every or train.evaluate_every)
        return self.position.stopped is not None or any(step % each == 0 for each in every)

    def save(self) -> None:
        """A checkpoint of this very moment."""
        self._settle()
        tensors = gathered(self.model, self.optimizer, self.average)
        state: dict[str, Any] = {"position": asdict(self.position), "processes": self.processes.count}
        state |= {"scaler": self.scaler.state_dict(), "planned": self._planned(), "data": self.data}
        state["settings"] = self.learned_settings()
        self.checkpoints.save(self.position.step, tensors, state, self.position.best_step)
        self.saved = time.monotonic()

    def learned_settings(self) -> dict[str, Any]:
        """Settings that change what is learned: a checkpoint goes on with the same, or not at all."""
        settings = self.train.model_dump(mode="json")
        return {"seed": self.seed, **{f"train.{key}": settings[key] for key in settings if key not in CHANGEABLE}}

    def resume(self, step: int) -> None:
        """Goes back to a checkpoint; what follows is what would have followed then."""
        if self.train.shard and self.processes.count > 1:
            self._make_room()
        tensors, state = self.checkpoints.load(step, gathered(self.model, self.optimizer, self.average))
        if state["processes"] != self.processes.count:
            raise ConfigError(
                f"this run was begun with {state['processes']} processes, which share every batch; "
                f"{self.processes.count} would train on other batches: go on with as many"
            )
        if state["data"] != self.data:
            raise ConfigError("the data of this run have changed since it was begun: restore them, or start anew")
        before, now = state.get("settings", {}), self.learned_settings()
        if changed := [key for key, value in before.items() if key in now and now[key] != value]:
            said = ", ".join(f"{key} = {before[key]!r} (now {now[key]!r})" for key in changed)
            raise ConfigError(f"the checkpoint of step {step} was trained with {said}; restore it, or start anew")
        restore(tensors, self.model, self.optimizer, self.average)
        self.position = position = Position(**state["position"])
        self.scaler.load_state_dict(state["scaler"])
        self.done = self._done()
        patient = self.train.patience is None or position.stale < self.train.patience
        if self.done < 1 and (position.stopped != "patience" or patient):
            position.stopped = None  # a finished run may be given more steps, time or patience
        elif self.done >= 1 and position.stopped is None:
            position.stopped = "steps"  # and one that goes on, fewer than it has behind it

    def _make_room(self) -> None:
        """Moments for the shards of a checkpoint to be read into."""
        for parameter in self.parameters.values():
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}

    def _optimizer(self) -> torch.optim.AdamW:
        """Matrices decay; norms, biases and other vectors do not."""
        matrices = [parameter for parameter in self.parameters.values() if parameter.ndim >= 2]
        vectors = [parameter for parameter in self.parameters.values() if parameter.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": self.train.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.train.learning_rate, betas=self.train.betas, eps=1e-9, fused=True)

    def _set_rate(self, step: int) -> None:
        train = self.train
        rate = learning_rate(train.schedule, train.learning_rate, step, warmup=train.warmup, done=self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _done(self) -> float:
        """How much of the run is behind us, by steps or by time, whichever ends it."""
        done = self.position.step / self.train.steps
        if self.train.minutes is not None:
            done = max(done, self.processes.agree(self.position.seconds / 60 / self.train.minutes))
        return done

    def _draw_from(self, step: int) -> None:
        """Random numbers that follow from the seed, the step and the process: nothing to save, nothing to lose."""
        state = np.random.SeedSequence([self.seed, step, self.processes.rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0] >> np.uint64(1)))

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision not in ("bfloat16", "float16"):
            return contextlib.nullcontext()
        return torch.autocast(self.processes.device.type, DTYPES[self.precision])

    def _without_sync(self) -> contextlib.AbstractContextManager[Any]:
        if self.processes.count == 1:
            return contextlib.nullcontext()
        if isinstance(self.forward, nn.parallel.DistributedDataParallel):
            return self.forward.no_sync()
        return self._sharded_without_sync()

    @contextlib.contextmanager
    def _sharded_without_sync(self) -> Iterator[None]:
        sharded: Any = self.model
        sharded.set_requires_gradient_sync(False)
        yield
        sharded.set_requires_gradient_sync(True)

    def _tell(self, what: str, step: int, metrics: dict[str, float | str], samples: Sequence[Sample] = ()) -> None:
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
            getattr(observer, what)(moment)


@torch.no_grad()
def _local(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors themselves, or of sharded ones this process's part."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in tensors.values()]
