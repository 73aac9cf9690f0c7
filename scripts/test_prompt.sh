#!/bin/sh
# sample_gpt2 asking for prompts at a terminal: editing and history, windows of any width, Ctrl-C, Ctrl-D and signals, what
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

TERM=xterm LC_ALL=C python3 - "$work/run" <<'PYTHON'
import fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time

run = sys.argv[1]
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

    def __init__(self, *options, pipe=False, columns=0, kind="xterm"):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.screen = b""
        arguments = ["./sample_gpt2", run, "--no-stats", "--seed", "5", *options]
        own_terminal = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.program = subprocess.Popen(arguments, stdin=self.slave, stderr=self.slave, start_new_session=True,
                                        stdout=subprocess.PIPE if pipe else self.slave, preexec_fn=own_terminal,
                                        env={**os.environ, "TERM": kind})
        self.edits = kind != "dumb"

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
        """The same of a prompt; the program takes the terminal over there, and keys before that mean other things."""
        at, limit = self.wait_for(b"> ", self.wait_for(b"\n", behind)), time.monotonic() + 60
        while self.edits and termios.tcgetattr(self.slave)[3] & termios.ICANON and time.monotonic() < limit:
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


def text_of(*keys, **settings):
    """What the program writes to a pipe when these are typed at its prompts, and its exit code."""
    terminal, at = Terminal("--tokens", "6", pipe=True, **settings), 0
    for key in keys:
        at = terminal.wait_for_prompt(at)
        terminal.type(key)
    # without editing a Ctrl-C that comes between prompt and reading is forgotten
    code = terminal.finish(b"\x03" if not terminal.edits and keys[-1].endswith(b"\x03") else b"")
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

def line_of(*keys, **settings):
    """The line that the keys make, as the text begins with it."""
    return text_of(*(key + b"\n" for key in keys), end, **settings)[0][:len(LINE)]


LINE = b"The old fox, they say."
for keys in (b"he old fox, they say.\x01T", b"The od fox, they say.\x1b[H" + 5 * b"\x1b[C" + b"l", b"The old\x1bb\x1bbXY\x7f\x08\x05 fox, they say.",
             b"The new fox, they say.\x01\x1bf\x1bd old", b"The old foxes\x02\x02\x0b, they say.", b"nothing\x15The old fox, they say.",
             b"The old wolf\x17fox, they say.", b"TThe old fox, they say.\x1bOH\x1b[3~", b"TThe old fox, they say.\x01\x04",
             b"The fox, they say.\x1b[1;5D\x1b[1;5D\x1b[1;5Dold \x1b[F\x0e\x10", b"The old wolf\x1b\x7ffox, they say.\x1b[99;99~\x1b[1;9\x1b\x0c\x1bOQ\x1c",
             b"\x10\x0e\x1b[A\x1b[BThe old fox, they say.", b"The old cat\x02\x1b[D\x1b[D\x0b\x1b[Z\x00fox, they say."):
    check(f"{keys}: the line", line_of(keys), LINE)
check("the line before", text_of(b"The old\n", b"\x1b[A\n", end)[0], twice)
check("two lines before, one after, and a letter taken back",
      text_of(b"The old\n", b"The new\n", b"\x10\x10\x0e\x10\n", end)[0].count(b"The old"), 2)
check("what was typed is there again after a look at the lines before", text_of(b"No\n", b"The ol\x10\x0ed\n", end)[0].count(b"The old"), 1)
check("two lines at once", text_of(b"The old\nThe old\n", end)[0], twice)
accent = text_of("Thé old\n".encode(), end)[0]
check("characters of several bytes", accent[:8], "Thé old".encode())
check("one of them taken back", text_of("Théé\x7f old\n".encode(), end)[0], accent)
check("one of them passed over", text_of("Th old\x1bb\x02\u4f60\x02é\x06\x08\n".encode(), end)[0], accent)
broken = text_of(b"Th\xff\xc3 \x80\x80\x80old\x02\x02\x02\x7f\n", end)
check("bytes that are no characters: exit code", (broken[0][:10], broken[1]), (b"Th\xff\xc3 \x80\x80old", 0))
for columns in (1, 2, 3, 4, 20, 500):
    check(f"a window of {columns} columns", line_of(b"he old fox, they say.\x01T", columns=columns), LINE)
check("a terminal that can do nothing", text_of(b"The old\n", end, kind="dumb")[0], once)

terminal = Terminal("--tokens", "6", columns=20)
behind = terminal.wait_for_prompt()
terminal.type(("wide \u4f60\u597d " * 9).encode())
behind = terminal.wait_for("\u597d \x1b[K".encode(), behind)
terminal.type(b"\x01")
terminal.wait_for(b"\r\x1b[2C", behind)
rows = re.findall("\r> ([^\r\x1b]*)\x1b", terminal.screen.decode())
columns = [sum(1 + (letter > "\u1000") for letter in row) for row in rows]
check("a long line: one row of a part, the last column free", (max(columns) <= 17, rows[-1][:8]), (True, "wide \u4f60\u597d "))
terminal.type(b"\x03")
check("a long line, then Ctrl-C: exit code", terminal.finish(), 130)
for number in (signal.SIGTERM, signal.SIGHUP):
    terminal = Terminal("--tokens", "6")
    terminal.wait_for_prompt()
    terminal.program.send_signal(number)
    check(f"signal {number} at the prompt: exit code", terminal.finish(), -number)
    check(f"signal {number} at the prompt: the terminal is as it was", terminal.after, terminal.before)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
PYTHON
