#!/bin/sh
# sample_gpt2 asking for prompts at a terminal: editing and history where it was built with libedit, Ctrl-C and Ctrl-D, what
# goes to which stream. Needs the programs, and python3 for a pseudo terminal. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
python3 -c 'import pty, termios' 2>/dev/null || { echo "skipped: no python3 with pseudo terminals"; echo "0 passed, 0 failed"; exit 0; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
{
    ./stories --stories 60 --seed 3 --out "$work/text" &&
        ./tokenize train --vocab 400 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/shard" "$work/text" &&
        ./train_gpt2 --train "$work/shard_train_000000.bin" --tokenizer "$work/vocab" --layers 1 --heads 2 --width 32 \
            --context 32 --batch 4 --steps 2 --warmup 1 --out "$work/run"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }
grep -q HAVE_LIBEDIT "${BUILD:-build}/config.mk" && edits=1 || edits=0

HOME=$work TERM=xterm LC_ALL=C python3 - "$work/run" $edits <<'PYTHON'
import fcntl, os, pty, select, subprocess, sys, termios, time

run, edits = sys.argv[1], sys.argv[2] == "1"
passed = failed = 0
end = b"\x04"


def check(name, found, expected):
    global passed, failed
    if found == expected:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {name}\n    found    {found!r}\n    expected {expected!r}")


class Terminal:
    """The program at a terminal of its own; what it shows there is in `screen`."""

    def __init__(self, *options, pipe=False):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.screen = b""
        arguments = ["./sample_gpt2", run, "--no-stats", "--seed", "5", *options]
        own_terminal = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.program = subprocess.Popen(arguments, stdin=self.slave, stderr=self.slave, start_new_session=True,
                                        stdout=subprocess.PIPE if pipe else self.slave, preexec_fn=own_terminal)

    def read(self):
        ready = select.select([self.master], [], [], 0.1)[0]
        if ready:
            self.screen += os.read(self.master, 65536)
        return bool(ready)

    def wait_for(self, text, behind=0):
        """Where `text` ends on the screen, from `behind` on; the time is there to end what would hang."""
        limit = time.monotonic() + 60
        while self.screen.find(text, behind) < 0 and time.monotonic() < limit:
            self.read()
        at = self.screen.find(text, behind)
        return at + len(text) if at >= 0 else len(self.screen)

    def wait_for_prompt(self, behind=0):
        """The same of a prompt; libedit takes the terminal over just after it, and keys before that mean other things."""
        at, limit = self.wait_for(b"\n> ", behind), time.monotonic() + 60
        while edits and termios.tcgetattr(self.slave)[3] & termios.ICANON and time.monotonic() < limit:
            self.read()
        return at

    def type(self, keys):
        os.write(self.master, keys)

    def finish(self, keys=b""):
        """The exit code, once the program has ended and its last output is on the screen. `keys` are typed until then."""
        limit = time.monotonic() + 60
        while self.program.poll() is None and time.monotonic() < limit:
            if not self.read():
                self.type(keys)
        if self.program.poll() is None:
            self.program.kill()
        while self.read():
            pass
        self.after = termios.tcgetattr(self.slave)
        os.close(self.slave), os.close(self.master)
        return self.program.wait()


def text_of(*keys):
    """What the program writes to a pipe when these are typed at its prompts, and its exit code."""
    terminal, at = Terminal("--tokens", "6", pipe=True), 0
    for key in keys:
        at = terminal.wait_for_prompt(at)
        terminal.type(key)
    # without libedit a Ctrl-C that comes between prompt and reading is forgotten
    code = terminal.finish(b"\x03" if not edits and keys[-1].endswith(b"\x03") else b"")
    check(f"{keys}: the terminal is as it was", terminal.after, terminal.before)
    return terminal.program.stdout.read(), code, terminal.screen


once, code, screen = text_of(b"The old\n", end)
check("a prompt, then Ctrl-D: exit code", code, 0)
check("the text starts with the prompt", once[:7], b"The old")
check("the question is on the terminal, not in the text", (b"> " in screen, b"> " in once), (True, False))
check("an empty line ends", text_of(b"The old\n", b"\n")[:2], (once, 0))
check("Ctrl-C at the prompt: exit code", text_of(b"\x03")[1], 130)
check("Ctrl-C after a text and half a line: exit code", text_of(b"The old\n", b"The\x03")[1], 130)
twice = text_of(b"The old\n", b"The old\n", end)[0]
check("two prompts", (twice.startswith(once), twice.count(b"The old")), (True, 2))

terminal = Terminal("--tokens", "16000000", "--no-stop")
terminal.wait_for_prompt()
terminal.type(b"The old\n")
behind = terminal.wait_for(b"The old", terminal.wait_for(b"The old"))  # as typed, then as printed
terminal.wait_for(b" ", behind)
time.sleep(0.5)  # nobody reads: the program waits in the middle of writing, and the signal finds it there
terminal.type(b"\x03")
terminal.wait_for_prompt(behind)
terminal.type(end)
check("Ctrl-C stops a text and a prompt follows: exit code", terminal.finish(), 0)
check("the terminal is as it was", terminal.after, terminal.before)

if edits:
    check("a letter put before the others", text_of(b"he old\x01T\n", end)[0], once)
    check("a letter put between the others", text_of(b"The od\x1b[Dl\n", end)[0], once)
    check("the line before", text_of(b"The old\n", b"\x1b[A\n", end)[0], twice)
    accent = text_of("Thé old\n".encode(), end)[0]
    check("characters of several bytes", accent[:8], "Thé old".encode())
    check("one of them taken back", text_of("Théé\x7f old\n".encode(), end)[0], accent)
else:
    print("skipped: editing and history (built without libedit)")
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
PYTHON
