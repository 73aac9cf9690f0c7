"""The table that is seen while runs are trained: in place on a terminal, a line per event elsewhere."""
import sys
import time

from . import statistics
from .training import DONE, FAILED, RUNNING, WAITING

REFRESH_SECONDS, LINE_SECONDS = 1.0, 60.0


def duration(seconds):
    seconds = max(0, int(seconds + 0.5))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def validation_loss(job):
    return f"{job.metrics.validation['loss']:.4f}" if job.metrics.validation else ""


def cell(job, steps):
    """One run in the table."""
    if job.state == DONE:
        return f"{validation_loss(job)}  done"
    if job.state == FAILED:
        return "failed"
    step = job.metrics.step["step"] if job.metrics.step else 0
    if job.state == RUNNING:
        loss = f"  loss {job.metrics.step['loss']:.3f}" if job.metrics.step else ""
        return (f"{step}/{steps}" if steps else f"step {step}") + loss
    return f"waiting at {step}" if step else "waiting"


class Live:
    """Called again and again with the training; draws when it is time."""

    def __init__(self, steps, seconds, out=sys.stdout):
        self.steps, self.seconds, self.out = steps, seconds, out
        self.terminal, self.lines, self.drawn, self.states = out.isatty(), 0, 0.0, {}

    def __call__(self, training, last=False):
        now = time.monotonic()
        if self.terminal:
            if last or now - self.drawn >= REFRESH_SECONDS:
                self.drawn = now
                self.draw(training)
            return
        changed = self.tell_changes(training)
        if changed or now - self.drawn >= LINE_SECONDS:
            self.drawn = now
            print(self.status(training), file=self.out, flush=True)

    def remaining(self, training):
        """Seconds that are left, from the speed of each attention so far."""
        left = 0.0
        known = {job.entry: statistics.median(job.metrics.step_milliseconds) / 1e3
                 for job in training.jobs if job.metrics.step_milliseconds}
        if not known:
            return None
        usual = statistics.mean(list(known.values()))
        for job in training.jobs:
            if job.state in (WAITING, RUNNING):
                done = job.metrics.step["step"] if job.metrics.step else 0
                left += self.job_left(job, done, known.get(job.entry, usual))
        return left / training.at_once

    def job_left(self, job, done, step_seconds):
        if self.steps:
            return 1.1 * step_seconds * (self.steps - done)  # a tenth for validating and saving
        spent = job.metrics.step["seconds"] if job.metrics.step else 0
        return max(0.0, self.seconds - spent)

    def status(self, training):
        counts = {state: sum(job.state == state for job in training.jobs) for state in (DONE, RUNNING, FAILED)}
        left = self.remaining(training)
        failed = f", {counts[FAILED]} failed" if counts[FAILED] else ""
        return (f"{counts[DONE]} of {len(training.jobs)} runs done{failed}, {counts[RUNNING]} running; "
                f"{duration(time.monotonic() - training.started)}"
                + (f", about {duration(left)} left" if left and not training.interrupted else ""))

    def tell_changes(self, training):
        """Elsewhere than on a terminal: a line when a run begins or ends."""
        changed = False
        for job in training.jobs:
            if self.states.get(job.directory, WAITING) != job.state:
                self.states[job.directory], changed = job.state, True
                word = "began" if job.state == RUNNING else job.state
                detail = f": {job.reason}" if job.reason else f"  {validation_loss(job)}" if job.state == DONE else ""
                print(f"{job.label} seed {job.seed} {word}{detail}", file=self.out, flush=True)
        return changed

    def draw(self, training):
        labels = list(dict.fromkeys(job.label for job in training.jobs))
        seeds = list(dict.fromkeys(job.seed for job in training.jobs))
        table = {(job.label, job.seed): cell(job, self.steps) for job in training.jobs}
        width = max(len(label) for label in labels) + 2
        lines = ["".ljust(width) + "".join(f"seed {seed}".ljust(24) for seed in seeds)]
        lines += [label.ljust(width) + "".join(table[label, seed].ljust(24) for seed in seeds) for label in labels]
        lines += ["", self.status(training) + ("; saving" if training.interrupted else "; Ctrl-C saves")]
        up = f"\033[{self.lines}A" if self.lines else ""
        self.out.write(up + "".join(f"\r{line}\033[K\n" for line in lines))
        self.out.flush()
        self.lines = len(lines)
