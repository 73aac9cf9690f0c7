"""What is run under faults, and how it is judged: a scene is a program with its files and what it gives undisturbed."""
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
LOCK = "run/lock"  # tells only who held it
LIMIT = 120  # seconds; a program that takes longer hangs
ENVIRONMENT = {"PATH": os.environ["PATH"], "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


class Result:
    """One run of a program in a folder of its own."""

    def __init__(self, code, out, err, folder):
        self.code, self.out, self.folder = code, out, folder
        lines = [line for line in err.split("\n") if line]
        self.warnings = [line for line in lines if ": warning: " in line]
        self.messages = [line for line in lines if ": warning: " not in line]


def wait_for(process, at_stop, folder):
    while at_stop:
        state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if state.si_code != os.CLD_STOPPED:
            break
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        at_stop(folder)
        process.send_signal(signal.SIGCONT)
    return process.wait(LIMIT)


def run(command, folder, library=None, at_stop=None, **environment):
    """`at_stop` is called each time that the program stops itself."""
    if library:
        environment["LD_PRELOAD"] = library
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([os.path.join(ROOT, command[0])] + command[1:], cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=err, env={**ENVIRONMENT, **environment})
        try:
            code = wait_for(process, at_stop, folder)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "no end"
        out.seek(0), err.seek(0)
        return Result(code, out.read().decode(errors="replace"), err.read().decode(errors="replace"), folder)


def read_tree(folder):
    """The path of everything in a folder, with the bytes of files and the kind of anything else."""
    tree = {}
    for place, folders, files in os.walk(folder):
        for name in folders:
            tree[os.path.relpath(os.path.join(place, name), folder) + "/"] = b""
        for name in files:
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    tree[os.path.relpath(path, folder)] = file.read()
            else:
                tree[os.path.relpath(path, folder)] = b"special %o" % stat.S_IFMT(mode)
    return tree


def digest(tree):
    return hashlib.sha256(repr(sorted(item for item in tree.items() if item[0] != LOCK)).encode()).hexdigest()


def is_temporary(path):
    return re.search(r"\.tmp\d?(/|$)", path) is not None


def ended_badly(result, codes=(0, 1)):
    """Complaints about the way in which a program ended."""
    if result.code not in codes:
        yield f"exit code {result.code}, {result.messages[:2]}"
    elif result.code == 0 and result.messages:
        yield f"exit code 0 with a message: {result.messages[0]}"
    elif result.code == 1 and len(result.messages) != 1 and not any(" lacks " in line for line in result.warnings):
        yield f"{len(result.messages)} messages: {result.messages[:3]}"


class Scene:
    """A program that reads files, writes some others, or none, and can simply be run again."""

    def __init__(self, name, template, command, hide=lambda text: text):
        self.name, self.template, self.command, self.hide = name, template, command, hide

    def prepare(self, folder):
        shutil.copytree(self.template, folder, symlinks=True)

    def learn(self, folder, library):
        """Runs undisturbed."""
        self.prepare(folder)
        self.before = read_tree(folder)
        result = run(self.command, folder, library)
        assert result.code == 0 and not result.messages, (self.name, result.code, result.messages)
        self.out, self.after = self.hide(result.out), read_tree(folder)

    def judge(self, result, codes=(0, 1), leaves=False, meddled=False):
        """Complaints; `leaves`: temporary files may be left; `meddled`: somebody else has changed the folder meanwhile."""
        yield from ended_badly(result, codes)
        tree = read_tree(result.folder)
        if result.code == 0 and (self.hide(result.out) != self.out or tree != self.after):
            changed = [path for path in tree.keys() | self.after.keys() if tree.get(path) != self.after.get(path)]
            yield f"exit code 0, but other output: {changed or result.out[-300:]}"
        for path in tree.keys() | self.before.keys():
            if tree.get(path) in (self.before.get(path), self.after.get(path)):
                continue
            if not (leaves and is_temporary(path)):
                yield f"{path}: neither what it was nor what it was to be"

    def recover(self, result):
        """Complaints about what comes of the folder when the program is run again, undisturbed."""
        again = run(self.command, result.folder)
        tree = read_tree(result.folder)
        wrong = [path for path in self.after if tree.get(path) != self.after[path]]
        if again.code or wrong:
            yield f"run again: exit code {again.code}, {again.messages[:1]}, other files: {wrong}"


# ---- training

TIMES = {"ms", "tokens_per_second", "gflops", "seconds", "peak_memory_mb", "machine", "checksum"}
STEPS = 6


def without_times(json_text):
    value = json.loads(json_text)
    for key in TIMES:
        value.pop(key, None)
    for key in ("save-every", "keep"):
        value.get("options", {}).pop(key, None)
    return json.dumps(value, sort_keys=True)


def metrics_lines(data):
    """The lines of metrics.jsonl that tell of steps and validations, by type and step; None: a line is broken."""
    lines = {}
    for line in data.decode(errors="replace").split("\n")[:-1]:
        try:
            value = json.loads(line)
        except ValueError:
            return None
        if value["type"] in ("step", "validation"):
            lines.setdefault((value["type"], value["step"]), []).append(without_times(line))
    return lines


def normal(path, data):
    if path.endswith("state.json"):
        return without_times(data)
    if path.endswith("metrics.jsonl"):
        return [without_times(line) for line in data.decode().split("\n")[:-1]]
    return data


def checkpoints(tree, folder):
    """The contents of each checkpoint under its final name."""
    found = {}
    for path, data in tree.items():
        match = re.match(re.escape(folder) + r"/(step_\d{8})(\.old)?/(.+)$", path)
        if match and not path.endswith("/"):  # folders in it are strangers
            found.setdefault(match.group(1) + (match.group(2) or ""), {})[match.group(3)] = data
    return found


class Training(Scene):
    """A run of the trainer in the folder `run`, fresh or resumed."""

    def __init__(self, name, template, command, fresh):
        super().__init__(name, template, command)
        self.fresh = fresh
        self.recovered = {}

    def learn(self, folder, library):
        super().learn(folder, library)
        every = folder + ".every"
        shutil.copytree(self.template, every)
        shutil.rmtree(every + "/run", ignore_errors=True)
        assert run(self.fresh + ["--save-every", "1", "--keep", "99"], every, library).code == 0
        self.steps = {name: {path: normal(path, data) for path, data in files.items()}
                      for name, files in checkpoints(read_tree(every), "run").items()}
        self.lines = metrics_lines(self.after["run/metrics.jsonl"])
        assert len(self.steps) == STEPS and len(self.lines) == STEPS + 2

    def whole(self, tree):
        return {path: normal(path, data) for path, data in tree.items() if path != LOCK}

    def broken_checkpoints(self, tree, folder="run"):
        for name, files in checkpoints(tree, folder).items():
            wanted = self.steps[name.split(".")[0]]
            try:
                found = {path: normal(path, data) for path, data in files.items()}
            except ValueError as error:
                found = str(error)
            if found != wanted:
                yield f"{folder}/{name} is not what was to be saved"

    def wrong_metrics(self, tree):
        lines = metrics_lines(tree.get("run/metrics.jsonl", b""))
        if lines is None or any(found != self.lines[key] for key, found in lines.items()):
            yield "metrics.jsonl: lines that no undisturbed run has"

    def judge(self, result, codes=(0, 1), leaves=False, meddled=False):
        yield from ended_badly(result, codes)
        tree = read_tree(result.folder)
        yield from self.broken_checkpoints(tree)
        yield from self.broken_checkpoints(tree, "run.rescued")
        yield from self.wrong_metrics(tree)
        was_saved = f"saved run/step_{STEPS:08}" in result.out  # what others do to it afterwards is theirs
        is_theirs = was_saved and meddled
        if result.code == 0 and not result.warnings and not is_theirs and self.whole(tree) != self.whole(self.after):
            yield f"exit code 0, but not every file is there: {[p for p in self.after if p not in tree]}, " \
                  f"or others: {[p for p in tree if p not in self.after]}"
        if result.code == 0 and not was_saved and f"run/step_{STEPS:08}/model.safetensors" not in tree:
            yield "exit code 0 without a last checkpoint"

    def recover(self, result):
        """Whatever happened, the run goes on from what it left to the bits of an undisturbed one."""
        tree = read_tree(result.folder)
        key = digest(tree)
        if key not in self.recovered:
            self.recovered[key] = list(self.goes_on(result, tree))
        return self.recovered[key]

    def goes_on(self, result, tree):
        place = "run.rescued" if checkpoints(tree, "run.rescued") else "run"
        has_any = checkpoints(tree, place)
        if any("a run is there already" in line for line in result.messages):  # and does what the message says
            shutil.rmtree(result.folder + "/run")
        again = run(["train_gpt2", "--resume", place, "--steps", str(STEPS)] if has_any else self.fresh, result.folder)
        tree, last = read_tree(result.folder), f"{place}/step_{STEPS:08}/"
        if again.code or again.messages:
            yield f"{'resumed' if has_any else 'begun again'}: exit code {again.code}, {again.messages[:1]}"
            return
        wrong = [path for path in self.after if path.startswith(f"run/step_{STEPS:08}/") and path[-1] != "/" and
                 normal(path, self.after[path]) != normal(path, tree.get(path.replace("run", place, 1), b"{}"))]
        if wrong:
            yield f"goes on to other bits: {wrong}"
        if any(is_temporary(path) for path in tree if path.startswith(last)):
            yield "temporary files in a checkpoint"
        lost = any("metrics.jsonl" in line or "removed or replaced" in line for line in result.warnings) or place != "run"
        if not lost and metrics_lines(tree["run/metrics.jsonl"]) != self.lines:
            yield "goes on to other metrics"
