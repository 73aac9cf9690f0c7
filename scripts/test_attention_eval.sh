#!/bin/sh
# build/dev/attention_eval: constants and parameters from the file, outputs against definitions in Python, gradients of
# parameters against differences of outputs. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/checks.sh
passed=0 failed=0
program=${BUILD:-build}/dev/attention_eval
command -v python3 >/dev/null || { skip "attention_eval" "no python3"; summary; exit; }
[ -x "$program" ] || { echo "$program is missing; run make $program"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive

python3 - "$program" "$work" <<'PYTHON'
import array
import math
import random
import subprocess
import sys

PROGRAM, WORK = sys.argv[1:]
sys.path.insert(0, "dev/fixtures")
sys.argv = sys.argv[:1]  # it takes names of attentions
from add_attention import dot, elu, read, softmax, weights_of, write

H, T, D = 2, 70, 8
SHAPE = [1, H, T, D]
passed = failed = 0


def check(name, good, what=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAIL {name}\n    {what}")


def evaluate(tensors, *options):
    """What the program makes of them, {name: (shape, numbers)}, or its message."""
    write(f"{WORK}/in", tensors, {})
    result = subprocess.run([PROGRAM, "--in", f"{WORK}/in", "--out", f"{WORK}/out", *options], capture_output=True, text=True)
    return result.stderr if result.returncode else read(f"{WORK}/out")[0]


def inputs(**more):
    source = random.Random(1)
    numbers = {name: array.array("f", (source.gauss(0, 1) for _ in range(H * T * D))) for name in ("q", "k", "v", "dout")}
    return {name: (SHAPE, values) for name, values in numbers.items()} | more


def define(formula, delta, tensors):
    """o by definition: the scores of head h fade by logistic(decay[h]) for every token of distance."""
    out = []
    for h in range(H):
        q, k, v = ([tensors[name][1][(h * T + t) * D:(h * T + t + 1) * D] for t in range(T)] for name in "qkv")
        fade = -math.log1p(math.exp(-tensors["decay"][1][h]))
        for i in range(T):
            scores = [formula(q[i], k[j]) for j in range(i + 1)]
            scores = [s + (i - j) * fade if delta is None else s * math.exp((i - j) * fade) for j, s in enumerate(scores)]
            weights, _ = weights_of(scores, delta)
            out += [sum(w * v[j][c] for j, w in enumerate(weights)) for c in range(D)]
    return out


def difference(found, expected):
    return max(abs(x - y) for x, y in zip(found, expected)) / max(map(abs, expected))


def check_outputs(name, formula, delta):
    tensors = inputs(decay=([H], array.array("f", (0.4, 3.1))))
    expected = define(formula, delta, tensors)
    for mode in (["forward"], ["step", "--prefill", "20"]):
        found = evaluate(tensors, "--attention", name, "--decay", "learned", "--mode", *mode)["o"][1]
        check(f"{name}, decay from the file, {mode[0]}", difference(found, expected) < 1e-5, difference(found, expected))


def slope_along(tensors, name, direction, *options, h=0.02):
    """The derivative of sum(dout o) as the tensor moves along the direction, by a fourth-order central difference."""
    shape, kept = tensors[name]
    losses = []
    for steps in (-2, -1, 1, 2):
        moved = array.array("f", (x + steps * h * y for x, y in zip(kept, direction)))
        losses.append(dot(evaluate(tensors | {name: (shape, moved)}, *options)["o"][1], tensors["dout"][1]))
    return (losses[0] - 8 * losses[1] + 8 * losses[2] - losses[3]) / (12 * h)


def check_gradients(parameters, *options):
    """Along its gradient, whose length is the slope. `parameters`: names and shapes, to be filled with normal numbers."""
    source = random.Random(2)
    tensors = inputs(**{name: (shape, array.array("f", (source.gauss(0, 1) for _ in range(math.prod(shape)))))
                        for name, shape in parameters.items()})
    found = evaluate(tensors, "--mode", "backward", *options)
    wanted = {"o", "dq", "dk", "dv", *("d_" + name for name in parameters)}
    check(f"{options}: tensors", set(found) == wanted, sorted(found))
    for name, shape in parameters.items():
        gradient = found["d_" + name][1]
        length = math.sqrt(dot(gradient, gradient))
        slope = slope_along(tensors, name, [x / length for x in gradient], *options)
        check(f"{options}: d_{name}", found["d_" + name][0] == shape and abs(slope - length) < 2e-3 * length, (slope, length))
    timed = evaluate(tensors, "--mode", "backward", "--time", *options)
    check(f"{options}: the same when timed", timed == found)


check_outputs("elu", elu, 1e-6)
check_outputs("softmax", softmax, None)
check_gradients({"decay": [H]}, "--attention", "softmax", "--decay", "learned")
check_gradients({"decay": [H]}, "--attention", "elu", "--decay", "learned")
check_gradients({"decay": [H], "omega": [2, H, D, 6], "anchor_vectors": [32, D]},
                "--attention", "slay", "--R", "2", "--M", "6", "--P", "32", "--decay", "learned", "--learn", "both")
message = evaluate(inputs(decay=([H + 1], array.array("f", [1] * (H + 1)))), "--attention", "elu", "--decay", "learned")
check("a decay of another shape", isinstance(message, str) and "decay" in message and message.count("\n") == 1, message)
plain = evaluate(inputs(), "--attention", "slay", "--mode", "backward")
check("nothing that trains", set(plain) == {"o", "dq", "dk", "dv"}, sorted(plain))
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
PYTHON
