"""Trains the runs of a comparison, several at a time, and leaves each one resumable when interrupted."""
import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time

from . import kept, statistics
from .runs import BadRun, checkpoints, load_run, parse_json
from .settings import BadInput, run_name, train_command

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
POLL_SECONDS = 0.25


class Job:
    """One run: an attention with one seed, and with a rate of its own if rates are swept. `kept` is its small file."""

    def __init__(self, entry, seed, directory, command, kept_file=None, rate=None):
        self.entry, self.seed, self.directory, self.command = entry, seed, directory, command
        self.kept, self.label = kept_file, entry + (f" at {rate}" if rate else "")
        self.state, self.reason, self.process, self.log, self.slot = WAITING, "", None, None, None
        self.metrics = MetricsTail(os.path.join(directory, "metrics.jsonl"))
        self.started = None

    def look(self):
        """Finds out whether it was finished by an earlier call, here or elsewhere."""
        if self.kept and kept.load(self.kept):
            self.state, self.metrics = DONE, MetricsTail(self.kept)
            self.metrics.read()
            return
        self.metrics.read()
        try:
            if load_run(self.directory).finished:
                self.state = DONE
        except BadRun:
            pass

    def next_command(self):
        """From the beginning, or from where an earlier call was interrupted."""
        return ["./train_gpt2", "--resume", self.directory] if checkpoints(self.directory) else self.command


class MetricsTail:
    """Follows a metrics file that grows: the last step and the last validation."""

    def __init__(self, path):
        self.path, self.offset = path, 0
        self.step = self.validation = None
        self.step_milliseconds = []

    def read(self):
        try:
            if os.path.getsize(self.path) < self.offset:  # begun anew, or shortened by a resumption
                self.__init__(self.path)
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                text = file.read(1 << 24)
        except OSError:
            return
        whole = text.rfind(b"\n") + 1
        self.offset += whole
        for line in text[:whole].decode("utf-8", "replace").splitlines():
            self.take(parse_json(line))

    def take(self, record):
        if not isinstance(record, dict):
            return
        if record.get("type") == "step" and isinstance(record.get("ms"), float):
            self.step = record
            self.step_milliseconds.append(record["ms"])
        elif record.get("type") == "validation" and isinstance(record.get("loss"), float):
            self.validation = record


# ---- how many at a time


def available_cores():
    return sorted(os.sched_getaffinity(0))


def candidates(cores, runs):
    """Ways to share the cores: 1 run with all, 2 with half each, ... as many as there are cores."""
    counts, jobs = [], 1
    while jobs <= min(cores, runs):
        counts.append(jobs)
        jobs *= 2
    return counts


def time_steps(command, jobs, threads, scratch):
    """Milliseconds of a step with so many runs side by side, each with so many threads."""
    processes, directories = [], [os.path.join(scratch, f"{jobs}_{k}") for k in range(jobs)]
    for directory in directories:
        words = replace_options(command, {"threads": str(threads), "out": directory, "steps": "12", "val-every": "0"})
        processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for process in processes:
        message = process.communicate()[1].decode("utf-8", "replace").strip()
        if process.returncode:
            raise BadInput(f"a trial run failed: {message.splitlines()[-1] if message else process.returncode}")
    steps = [step for d in directories for step in read_milliseconds(d)[2:]]
    return statistics.median(steps)


def read_milliseconds(directory):
    tail = MetricsTail(os.path.join(directory, "metrics.jsonl"))
    tail.read()
    return tail.step_milliseconds


def replace_options(command, options):
    """A command with some options' values changed; --val and --seconds are dropped."""
    words, i = [command[0]], 1
    while i < len(command):
        name = command[i].removeprefix("--")
        has_value = i + 1 < len(command) and not command[i + 1].startswith("--")
        if name not in options and name not in ("val", "seconds"):
            words += command[i:i + 1 + has_value]
        i += 1 + has_value
    return words + [word for key, value in options.items() for word in (f"--{key}", value)]


def choose_jobs(command, runs, out):
    """Tries a few steps of each way to share the cores and takes the one with the most steps per second in all."""
    cores, best = len(available_cores()), None
    with tempfile.TemporaryDirectory(dir=out, prefix=".trial_") as scratch:
        for jobs in candidates(cores, runs):
            milliseconds = time_steps(command, jobs, cores // jobs, scratch)
            if best is None or jobs / milliseconds > best[0] / best[2]:
                best = (jobs, cores // jobs, milliseconds)
    return {"jobs": best[0], "threads": best[1], "step_milliseconds": best[2]}


def equal_rounds(jobs, runs):
    """Under a time budget every run has to have equally many neighbours: the jobs divide the runs."""
    while runs % jobs:
        jobs -= 1
    return jobs


# ---- processes


def die_with_parent():
    """Linux: when the comparison is killed, its runs get SIGTERM, and save."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


def prepare_child(cores):
    os.setpgid(0, 0)  # Ctrl-C comes to the comparison alone, which passes it on once
    die_with_parent()
    if cores:
        os.sched_setaffinity(0, cores)


class Training:
    """Runs all jobs, at most `jobs` at a time. Under a time budget in full rounds, each run on cores of its own."""

    def __init__(self, jobs_list, jobs, threads, timed, show, done=lambda job: None):
        """`done` is called with each run that has ended by itself."""
        self.jobs, self.at_once, self.threads, self.timed, self.show, self.done = jobs_list, jobs, threads, timed, show, done
        self.interrupted = False
        self.started = time.monotonic()

    def cores_of(self, slot):
        cores = available_cores()
        return cores[slot * self.threads:(slot + 1) * self.threads] if self.timed and self.at_once > 1 else None

    def running(self):
        return [job for job in self.jobs if job.state == RUNNING]

    def start(self, job, slot):
        os.makedirs(job.directory, exist_ok=True)
        job.log = open(os.path.join(job.directory, "train.log"), "ab")
        cores = self.cores_of(slot)
        job.process = subprocess.Popen(job.next_command(), stdin=subprocess.DEVNULL, stdout=job.log, stderr=job.log,
                                       preexec_fn=lambda: prepare_child(cores))
        job.state, job.slot, job.started = RUNNING, slot, time.monotonic()

    def start_waiting(self):
        """Fills the free slots; under a time budget only when all are free, so that neighbours begin together."""
        taken = {job.slot for job in self.running()}
        if self.interrupted or (self.timed and taken):
            return
        free = [slot for slot in range(self.at_once) if slot not in taken]
        waiting = [job for job in self.jobs if job.state == WAITING]
        for slot, job in zip(free, waiting):
            self.start(job, slot)

    def finish(self, job):
        job.log.close()
        code, job.process = job.process.returncode, None
        job.metrics.read()
        if code == 0:
            job.state = DONE
        elif self.interrupted:
            job.state = WAITING
        else:
            job.state, job.reason = FAILED, last_line(os.path.join(job.directory, "train.log"), code)
        if job.state != WAITING:
            self.done(job)

    def poll(self):
        for job in self.running():
            job.metrics.read()
            if job.process.poll() is not None:
                self.finish(job)

    def stop(self):
        """Asks every run to save; called once, by the first Ctrl-C."""
        self.interrupted = True
        for job in self.running():
            job.process.send_signal(signal.SIGINT)

    def run(self):
        """Until nothing is left to do, or an interruption has been saved. True when all runs are finished."""
        previous = {number: signal.signal(number, lambda *_: self.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.start_waiting()
            while self.running():
                self.show(self)
                time.sleep(POLL_SECONDS)
                self.poll()
                self.start_waiting()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self.show(self, last=True)
        return all(job.state == DONE for job in self.jobs)


def last_line(path, code):
    """What a failed run said last, without the program's name."""
    try:
        with open(path, "rb") as file:
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    text = lines[-1].strip() if lines else ""
    return re.sub(r"^\S*train_gpt2: ", "", text)[-300:] or f"train_gpt2 ended with code {code}"


class Places:
    """Where things of a comparison are: `out` the small files and the page, `runs` the run directories."""

    def __init__(self, out, runs=None):
        self.out, self.runs = out, runs or out

    def kept(self, name):
        return os.path.join(self.out, "kept", name + ".jsonl")


def plan_job(settings, corpus, places, entry, seed, threads, val_every, rate=None, prefix=""):
    name = prefix + run_name(entry, seed, rate)
    directory = os.path.join(places.runs, name)
    command = train_command(settings, corpus, entry, seed, directory, threads, val_every, rate)
    return Job(entry, seed, directory, command, places.kept(name), rate)


def plan_jobs(settings, corpus, places, threads, val_every, rates=None):
    """All runs, seed by seed, so that every attention has one before any has two. `rates` are the chosen ones, if swept."""
    rates = rates or {}
    return [plan_job(settings, corpus, places, entry, seed, threads, val_every, rates.get(entry))
            for seed in settings["seeds"] for entry in settings["attentions"]]


def try_attentions(settings, corpus, out):
    """Asks train_gpt2 whether it takes each attention and every option, before hours are spent on the others."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".trial_") as scratch:
        for number, entry in enumerate(settings["attentions"]):
            directory = os.path.join(scratch, str(number))
            command = train_command(settings, corpus, entry, settings["seeds"][0], directory, 1, 0)
            command = replace_options(command, {"steps": "0"})
            result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if result.returncode:
                message = result.stderr.decode("utf-8", "replace").strip().splitlines()
                raise BadInput(f"{entry}: {re.sub('^train_gpt2: ', '', message[-1]) if message else 'train_gpt2 refuses it'}")
