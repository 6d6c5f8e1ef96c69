"""The loop: batches, losses, updates, evaluations, checkpoints; goes on where it was ended.

What an update does follows from the checkpoint alone: network, optimisers, mean, order of the text and random state
are after every update bit for bit those of a run that was never ended, for the same planned number of updates. With
`num_steps` evaluations are made after fixed numbers of updates, so the best of them, which is what is saved, and the
end by patience are the same bit for bit too. With a time budget alone the clock decides when there are evaluations,
hence which state is the best one and when patience is over. It also plans how many updates there are, again after each
evaluation: a run on a machine that becomes slower still ends in time, with the learning rate at its lowest.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from paceline.errors import InvalidParameter
from paceline.training.heads.figures import Evaluation
from paceline.training.heads.shards import Document, TapStore
from paceline.training.run.checkpoint import alone_in, read_checkpoint, write_checkpoint
from paceline.training.run.interrupt import Interrupt
from paceline.training.run.optimiser import Mean, Optimiser, rate_at
from paceline.training.run.order import Order
from paceline.training.run.trainee import Moment, Trainee

_TIMED_STEPS = 8
"""Steps after which the number that fits a time budget is known."""
_MOST_HELD_OUT = 64
"""Conversations that an evaluation takes: the first ones, so that every evaluation takes the same."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How long and how.

    Attributes:
        num_steps: updates; None takes what fits `seconds`.
        seconds: time budget of the loop.
        rows: least rows of a batch.
        share: of the answers' rows that become anchors.
        rate: highest learning rate.
        evaluate_every: seconds between evaluations of a run by time, and between checkpoints of any run.
        updates_between: updates between those of a run whose `num_steps` are given.
        patience: evaluations without a better one after which the loop ends, for good.
        seed: of order and anchors.
    """

    num_steps: int | None = None
    seconds: float | None = None
    rows: int = 2048
    share: float = 0.5
    rate: float = 2e-3
    evaluate_every: float = 240.0
    updates_between: int = 200
    patience: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_steps is None and self.seconds is None:
            raise InvalidParameter("num_steps", "and a time budget are both missing", "give one of them")
        if self.num_steps is not None and self.num_steps < 1:
            remedy = "give at least 1, or leave it out for what the time allows"
            raise InvalidParameter("steps", f"{self.num_steps} updates are none", remedy)
        if not 0 < self.rate < float("inf"):
            raise InvalidParameter("rate", f"{self.rate} is no learning rate", "give a small number above 0, like 1e-3")


@dataclass(slots=True)
class Progress:
    """How a run stands.

    Attributes:
        step, num_steps: updates made and planned.
        seconds: spent in updates and evaluations, all parts of the run together.
        cpu_seconds: processor time of the same, all threads together; other programs do not change it.
        tokens: rows seen.
        epochs: times that every document has been seen.
        curve: evaluations, each with step, seconds and tokens.
        loss: of the latest step.
        peak_bytes: most memory that the program has held, its model and data included.
    """

    step: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0
    epochs: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    loss: float = 0.0
    peak_bytes: int = 0

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation with the highest score."""
        return max(self.curve, key=lambda one: one["score"]) if self.curve else None


Watch = Callable[[Progress], None]


class Trainer:
    """One run of one trainee.

    Args:
        folder: where its checkpoint is written; a run that is found there is continued.
        documents: of the store to train on; None for all that are not held out.
        watch: told after every step.
    """

    def __init__(self, trainee: Trainee, store: TapStore, settings: LoopSettings, folder: Path,
                 watch: Watch = lambda now: None, documents: Sequence[Document] | None = None) -> None:  # fmt: skip
        self.trainee, self._store, self._settings = trainee, store, settings
        self._folder, self._watch = folder, watch
        self.progress, self.best_weights = Progress(num_steps=settings.num_steps or 0), None
        self._held_out = [one for one in store.documents if one.conversation.is_held_out][:_MOST_HELD_OUT]
        given = store.documents if documents is None else documents
        trained = [one for one in given if not one.conversation.is_held_out]
        if not trained or not self._held_out:
            problem = f"{len(trained)} conversations to train on and {len(self._held_out)} held out are too few"
            raise InvalidParameter("tokens", problem, "have more text written, or serve more")
        self._order, self._random = Order(trained, settings.seed), torch.Generator().manual_seed(settings.seed)
        self._optimiser, self.mean = Optimiser(trainee.net, trainee.rate_factors()), Mean(trainee.net)
        self._resume()

    def run(self) -> Progress:
        """Train until the plan is done or the network no longer gets better; do nothing where that is so already.

        Raises:
            KeyboardInterrupt: at Ctrl-C, after the update or the evaluation at hand and its checkpoint.
            InvalidParameter: another program trains in the same folder.
        """
        with alone_in(self._folder), Interrupt() as interrupt:
            began = last = saved = time.monotonic()
            spent = self.progress.seconds
            cpu = self.progress.cpu_seconds - time.process_time()
            while True:
                if interrupt.asked:
                    self.save()
                    done = f"{self.progress.step} updates are kept"
                    raise KeyboardInterrupt(f"{done}; start the same command again to go on")
                if self._is_due(time.monotonic() - last):
                    self.save()  # an evaluation can be ended too, by a second Ctrl-C or for want of memory
                    self.evaluate()
                    last = saved = time.monotonic()
                    continue
                if self._is_finished:
                    return self.progress
                if time.monotonic() - saved > self._settings.evaluate_every:
                    self.save()
                    saved = time.monotonic()
                self.step()
                self.progress.seconds = spent + time.monotonic() - began
                self.progress.cpu_seconds = cpu + time.process_time()
                if not self._planned and self.progress.step >= _TIMED_STEPS:
                    self._plan()
                    self.save()
                self._watch(self.progress)

    def step(self) -> None:
        """One update.

        Raises:
            InvalidParameter: the loss is no number any more; the checkpoint before is as it was.
        """
        settings, progress, net = self._settings, self.progress, self.trainee.net
        documents = self._order.take(settings.rows)
        planned = progress.num_steps or 1 << 30
        loss = self.trainee.loss(self._store, documents, Moment(progress.step / planned, settings.share, self._random))
        value = float(loss.detach())
        if not isfinite(value):
            problem = f"{settings.rate:g} made a loss that is no number after {progress.step} updates"
            raise InvalidParameter("rate", problem, f"give a smaller one, and delete {self._folder} to begin anew")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        self._optimiser.step(rate_at(progress.step, planned, settings.rate))
        self.mean.update(net, progress.step)
        progress.step, progress.tokens = progress.step + 1, progress.tokens + sum(one.num_rows for one in documents)
        progress.epochs, progress.loss = self._order.epochs, value
        progress.peak_bytes = max(progress.peak_bytes, peak_bytes())

    def evaluate(self) -> Evaluation:
        """Measure the mean weights on held-out text, note it, keep them if they are the best, write a checkpoint."""
        net = self.trainee.net
        own = {name: one.clone() for name, one in net.state_dict().items()}
        net.load_state_dict(self.mean.weights)
        found = self.trainee.evaluate(self._store, self._held_out)
        net.load_state_dict(own)
        progress = self.progress
        before = progress.best
        about = {"step": progress.step, "seconds": round(progress.seconds, 1), "tokens": progress.tokens}
        progress.curve.append({**about, **asdict(found), "score": found.score})
        if before is None or found.score > before["score"]:
            self.best_weights = {name: one.clone() for name, one in self.mean.weights.items()}
        if self._settings.num_steps is None and self._planned and not self._is_finished:
            self._plan()
        self.save()
        return found

    def save(self) -> None:
        """Write the checkpoint."""
        write_checkpoint(self._folder, {
            "net": self.trainee.net.state_dict(), "mean": self.mean.weights, "best": self.best_weights,
            "optimiser": self._optimiser.state(), "order": self._order.state(), "random": self._random.get_state(),
            "progress": asdict(self.progress), "about": self.trainee.about(), **self.trainee.kept(),
        })  # fmt: skip

    @property
    def _planned(self) -> bool:
        return self.progress.num_steps > 0

    @property
    def _is_finished(self) -> bool:
        return self._is_stale or (self._planned and self.progress.step >= self.progress.num_steps)

    def _is_due(self, seconds: float) -> bool:
        """Whether to evaluate now, so many seconds after the last time; a state is evaluated once."""
        step, settings = self.progress.step, self._settings
        if step == (self.progress.curve[-1]["step"] if self.progress.curve else 0):
            return False
        if settings.num_steps is None:
            return self._is_finished or seconds > settings.evaluate_every
        return self._is_finished or step % settings.updates_between == 0

    @property
    def _is_stale(self) -> bool:
        """No better evaluation among the last few."""
        scores = [one["score"] for one in self.progress.curve]
        patience = self._settings.patience
        return len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience])

    def _plan(self) -> None:
        """Plan the updates that fit the rest of the time, at the speed since the evaluation before the latest one."""
        assert self._settings.seconds is not None
        now, before = self.progress, self.progress.curve[-2:-1]
        step, seconds = (before[0]["step"], before[0]["seconds"]) if before else (0, 0.0)
        if now.step > step and now.seconds > seconds:
            left = max(0.0, self._settings.seconds - now.seconds)
            now.num_steps = now.step + int(left * (now.step - step) / (now.seconds - seconds))

    def _resume(self) -> None:
        """Go on where the checkpoint is. Raises InvalidParameter where it is of another network or of other wishes."""
        state = read_checkpoint(self._folder)
        if state is None:
            return
        remedy = "repeat the options it was begun with, give another folder, or delete it to begin anew"
        known, own = state.get("about", {}), self.trainee.about()
        other = [name for name, value in known.items() if own.get(name) != value]
        ours = self.trainee.kept()
        other += [name for name in ours if name in state and not torch.equal(state[name], ours[name])]
        if other:
            raise InvalidParameter("work", f"{self._folder} holds a run with another {', '.join(other)}", remedy)
        try:
            self._restore(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            problem = f"{self._folder} holds a run of another network, by its sizes"
            raise InvalidParameter("work", problem, remedy) from error

    def _restore(self, state: dict[str, Any]) -> None:
        self.trainee.net.load_state_dict(state["net"])
        self.mean.restore(state["mean"])
        self.best_weights = state["best"]
        self._optimiser.restore(state["optimiser"])
        self._order.restore(state["order"])
        self._random.set_state(state["random"])
        self.progress = Progress(**state["progress"])
        self.progress.num_steps = self._settings.num_steps or self.progress.num_steps


def peak_bytes() -> int:
    """Most memory that this program has held so far, in bytes; 0 where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
