#!/bin/sh
# What a run must not lose, whatever happens to it: other runs, abandoned branches, steps between two saves, metrics. And
# what it must refuse before it begins. Needs ./train_gpt2; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 3

small="--train $work/train.bin $sizes --sequence 16 --batch 4 --warmup 3 --schedule constant --quiet"
# A weight decay that multiplies the weights by -9999 each step: not finite after a few.
not_finite="$small --lr 100 --weight-decay 100 --warmup 0 --clip 0"
refuse() { # name, part of the message, options: exit code 1 and one line
    name=$1 part=$2
    shift 2
    train "$@"
    code=$?
    check_equal "$name: exit code" "$code" 1
    check_equal "$name: lines on standard error" "$(grep -cv ': warning: ' "$work/err")" 1
    check_contains "$name: message" "$part" "$work/err"
}
start_run() { # run, options: one that ends by a signal only
    run=$1
    shift
    # shellcheck disable=SC2086
    ./train_gpt2 $small --steps 1G --save-every 0 --out "$run" "$@" >"$work/background_out" 2>"$work/background_err" </dev/null &
    running=$!
    wait_for_steps "$run" 5
}
# ---- a run never writes into another one
# shellcheck disable=SC2086
another_run() {
    works "a run" $small --steps 4 --out "$work/a"
    works "another run" $small --steps 6 --seed 2 --out "$work/b"
    cp -r "$work/b" "$work/b.before"
    refuse "into another run" "found files of another run" --resume "$work/a" --out "$work/b" --steps 9 --quiet
    if diff -r "$work/b" "$work/b.before" >"$work/difference"; then pass; else fail "the other run is as it was" "$(cat "$work/difference")"; fi
    works "into an empty directory" --resume "$work/a" --out "$work/c" --steps 8 --quiet
    check_equal "the run it came from has its steps" "$(saved_steps "$work/a")" 4
    works "the same in one go" $small --steps 8 --out "$work/whole"
    check_same_file "continued elsewhere: weights" "$work/c/step_00000008/model.safetensors" "$work/whole/step_00000008/model.safetensors"
    works "--out that names the run itself" --resume "$work/a" --out "$work/./a/" --steps 5 --quiet
    check_equal "it went on there" "$(saved_steps "$work/a")" "4 5"
}
another_run

# ---- an older checkpoint: what came after it is set aside, and the newest save stays
# shellcheck disable=SC2086
branches() {
    works "three checkpoints" $small --steps 60 --save-every 20 --keep 9 --out "$work/branch"
    cp "$work/branch/metrics.jsonl" "$work/branch_metrics"
    works "from the first of them" --resume "$work/branch/step_00000020" --steps 35 --keep 1 --quiet
    check_equal "the branch has its end" "$(saved_steps "$work/branch")" 35
    check_equal "the abandoned one is aside" "$(saved_steps "$work/branch/aside")" "40 60"
    check_same_file "with its metrics" "$work/branch/aside/metrics.jsonl" "$work/branch_metrics"
    check_contains "and said to be" "$work/branch/aside" "$work/err"
    works "the abandoned one goes on too" --resume "$work/branch/aside" --steps 61 --quiet
    works "once more from an older one" --resume "$work/branch/step_00000035" --steps 37 --save-every 1 --keep 9 --quiet
    works "and again" --resume "$work/branch/step_00000035" --steps 38 --save-every 0 --quiet
    check_equal "a second one aside" "$(saved_steps "$work/branch/aside_2")" "36 37"
    mkdir "$work/step_by_step" && works "a run whose name begins with step_" $small --steps 3 --out "$work/step_by_step/step_one"
    works "is resumed as a run" --resume "$work/step_by_step/step_one" --steps 5 --quiet
    check_equal "in its own directory" "$(saved_steps "$work/step_by_step/step_one")" "3 5"
}
branches

# ---- numbers that are not finite
# shellcheck disable=SC2086
policies() {
    refuse "stop" "is not finite" $not_finite --steps 24 --save-every 0 --out "$work/stop"
    good=$(last_step "$work/stop")
    check_equal "stop: the good weights are saved" "$(saved_steps "$work/stop")" "$good"
    works "stop: and can be opened" --train "$work/train.bin" --init "$work/stop" --steps 0 --quiet --out "$work/stop_look"
    refuse "skip without end" "10 steps in a row" $not_finite --steps 60 --on-nan skip --save-every 0 --out "$work/skip"
    check_equal "skip: saved" "$(saved_steps "$work/skip")" "$(($(last_step "$work/skip") + 10))"
    refuse "rollback without end" "3 rollbacks did not help" $not_finite --steps 24 --on-nan rollback --nan-limit 3 --save-every 0 --out "$work/rolls"
    check_equal "rollback: the start is saved" "$(saved_steps "$work/rolls" | cut -d ' ' -f 1)" 0
    check_equal "rollback: told in the metrics" "$(grep -c '"event": "rolled back"' "$work/rolls/metrics.jsonl")" 3
}
policies

# The detector alone: a spike by a jump in the learning rate, which a rollback halves until it is gone. The steps that are
# left are those of a run that had the lower rate from the checkpoint on.
# shellcheck disable=SC2086
spikes() {
    calm="$small --steps 40 --save-every 20 --keep 9"
    works "calm, with a detector" $calm --spike 50 --out "$work/calm"
    works "calm, without" $calm --out "$work/plain"
    check_same_run "the detector changes nothing" "$work/calm" "$work/plain" step_00000040
    works "calm, the first half" $calm --spike 50 --steps 23 --out "$work/half"
    works "the second half" --resume "$work/half" --steps 40 --quiet
    check_same_run "the detector's memory is resumed" "$work/half" "$work/calm" step_00000040
    cp -r "$work/calm" "$work/rolled"
    cp -r "$work/calm" "$work/calm.before"
    refuse "a spike" "a spike (loss" --resume "$work/calm" --steps 60 --lr 3 --clip 0 --spike 6 --save-every 0 --quiet
    check_equal "the step before it is saved" "$(saved_steps "$work/calm" | tr ' ' '\n' | tail -n 1)" "$(last_step "$work/calm")"
    train --resume "$work/rolled" --steps 60 --lr 3 --clip 0 --spike 6 --on-nan rollback --nan-limit 20 --save-every 0 --quiet
    check_equal "rolled back until it works" $? 0
    check_contains "rollback: the factor is saved" '"rate_factor"' "$work/rolled/step_00000060/state.json"
    factor=$(sed -n 's/.*"rate_factor": \([0-9.e-]*\),.*/\1/p' "$work/rolled/step_00000060/state.json")
    rate=$(step_lines "$work/rolled" | sed -n '$s/.*"lr": \([0-9.e+-]*\).*/\1/p')
    check_equal "rollback: the rate is lower by it" "$(awk -v r="$rate" -v f="$factor" 'BEGIN { print (r / (3 * f) > 0.999 && r / (3 * f) < 1.001) }')" 1
    cp -r "$work/calm.before" "$work/direct"
    works "the same with that rate from the start" --resume "$work/direct" --steps 60 --lr "$(awk -v f="$factor" 'BEGIN { printf "%.9g", 3 * f }')" --clip 0 --spike 6 --save-every 0 --quiet
    for file in model optimizer; do
        check_same_file "a rollback restores every bit: $file" "$work/rolled/step_00000060/$file.safetensors" "$work/direct/step_00000060/$file.safetensors"
    done
    check_equal "every step is there once" "$(step_lines "$work/rolled" | wc -l | tr -d ' ')" 60
}
spikes

# ---- saves and prunes that fail
# shellcheck disable=SC2086
failing_saves() {
    works "a run to continue" $small --steps 4 --save-every 2 --keep 9 --out "$work/foreign"
    mkdir "$work/foreign/step_00000002/notes" && echo mine >"$work/foreign/step_00000002/notes/a.txt"
    works "a folder in an old checkpoint" --resume "$work/foreign" --steps 8 --save-every 1 --keep 1 --quiet
    check_equal "stays where it is" "$(cat "$work/foreign/step_00000002/notes/a.txt") $(saved_steps "$work/foreign")" "mine 2 8"
    check_equal "and is warned of once" "$(grep -c 'step_00000002: not removed' "$work/err")" 1
    mkdir -p "$work/foreign/step_00000009.tmp/inner/deep"
    works "a leftover that cannot be removed" --resume "$work/foreign" --steps 9 --quiet
    check_equal "does not keep a save from its place" "$(saved_steps "$work/foreign")" "2 9"
    # Files may grow to so many bytes from now on: too few for the weights, enough for the metrics.
    start_run "$work/blocked" --save-every 20
    limit_files 28000
    wait_for_message "not saved: "
    limit_files unlimited
    wait_for_event saved
    end_run TERM
    check_equal "a save that fails: the run goes on" "$code" 143
    check_equal "and saves again" "$(saved_steps "$work/blocked" | wc -w | tr -d ' ')" 2
    start_run "$work/waits" --save-wait 60 --width 64 # larger than the metrics of a thousand steps
    kill -STOP "$running"
    limit_files 150000
    kill -TERM "$running"
    kill -CONT "$running"
    wait_for_message "trying again until --save-wait is over"
    limit_files unlimited
    end_run ""
    check_equal "the last save waits until there is room" "$code $(saved_steps "$work/waits")" "143 $(last_step "$work/waits")"
    works "one step" $small --steps 1 --warmup 0 --out "$work/no_room"
    prlimit --fsize=28000 ./train_gpt2 --resume "$work/no_room" --steps 2 --save-wait 1 --quiet >"$work/out" 2>"$work/err" </dev/null
    check_equal "the last save fails: exit code" $? 1
    check_contains "the last save fails: message" "the last save failed" "$work/err"
    check_equal "what was saved before is there" "$(saved_steps "$work/no_room")" 1
}
limit_files() { prlimit --pid "$running" --fsize="$1:"; } # of the run in the background
wait_for_message() { # part
    for _ in $(seq 400); do grep -q "$1" "$work/background_err" && break; sleep 0.02; done
    check_contains "said: $1" "$1" "$work/background_err"
}
wait_for_event() {
    for _ in $(seq 400); do grep -q "\"event\": \"$1\"" "$run/metrics.jsonl" && return; sleep 0.02; done
    fail "waiting for $1 in $run"
}
failing_saves

# ---- metrics that cannot be written: a limit on the size of files, which stops them and nothing else
lost_metrics() {
    works "metrics" $small --steps 2 --warmup 0 --save-every 0 --out "$work/full"
    prlimit --fsize="$(($(wc -c <"$work/full/metrics.jsonl") + 700))" \
        ./train_gpt2 --resume "$work/full" --steps 12 --save-every 0 --save-wait 0 --quiet >"$work/out" 2>"$work/err" </dev/null
    check_equal "metrics that cannot be written: exit code" $? 1
    check_equal "said once" "$(grep -c 'metrics.jsonl: cannot write' "$work/err")" 1
    check_equal "whole lines only" "$(grep -cv '^{.*}$' "$work/full/metrics.jsonl")" 0
}
lost_metrics

# ---- the terminal goes away, or the run directory does
# shellcheck disable=SC2086
going_away() {
    { ./train_gpt2 --train "$work/train.bin" $sizes --sequence 16 --batch 4 --schedule constant --steps 1G --save-every 0 --out "$work/piped" 2>"$work/err" </dev/null
      echo $? >"$work/code"; } | head -n 3 >/dev/null
    check_equal "a closed pipe: exit code" "$(cat "$work/code")" 141
    check_equal "a closed pipe: saved" "$(saved_steps "$work/piped")" "$(last_step "$work/piped")"
    hang_up=HUP said=129
    case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/self/status 2>/dev/null) in
    *[13579bdf]) hang_up=TERM said=143 && skip "SIGHUP" "it is ignored here, as under nohup, and SIGTERM stands in" ;;
    esac
    start_run "$work/hung"
    wait_for_steps "$work/hung" 7
    end_run $hang_up
    check_contains "a run of many hours is warned of" "at this speed the run takes" "$work/background_err"
    check_equal "SIGHUP: exit code" "$code" $said
    check_equal "SIGHUP: saved" "$(saved_steps "$work/hung")" "$(last_step "$work/hung")"
    start_run "$work/gone"
    rm -rf "$work/gone"
    end_run ""
    check_equal "the run directory is removed: exit code" "$code" 1
    check_contains "said" "was removed or replaced" "$work/background_err"
    check_equal "it is not made again" "$([ -e "$work/gone" ] && echo there)" ""
    check_equal "the weights are elsewhere" "$(saved_steps "$work/gone.rescued" | wc -w | tr -d ' ')" 1
    works "and go on" --resume "$work/gone.rescued" --steps $(($(saved_steps "$work/gone.rescued") + 2)) --quiet
}
going_away

# ---- what is refused before anything is made
# shellcheck disable=SC2086
refused_early() {
    (cd "$work" && refused_here=$("$OLDPWD/train_gpt2" 2>&1 </dev/null); echo "$refused_here" >"$work/err")
    check_contains "no options at all" "no training data: give --train" "$work/err"
    check_equal "nothing was made" "$([ -e "$work/runs" ] && echo runs)" ""
    refuse "an unknown attention" "sotfmax" $small --attention sotfmax --out "$work/none/deep"
    check_equal "a refused run leaves nothing" "$([ -e "$work/none" ] && echo none)" ""
    (ulimit -v 3000000 2>/dev/null && ./train_gpt2 --train "$work/train.bin" --model gpt2 --vocab 61 --batch 64 --micro-batch 64 --out "$work/none" --quiet >"$work/out" 2>"$work/err" </dev/null)
    check_equal "more memory than there is: exit code" $? 1
    check_contains "the plan" "this run needs" "$work/err"
    check_contains "the machine's memory" "and there are 3." "$work/err"
    check_contains "what would fit" "would fit" "$work/err"
    (ulimit -v 3000000 2>/dev/null && ./train_gpt2 --train "$work/train.bin" --model gpt2-xl --vocab 61 --batch 1 --sequence 16 --out "$work/none" --quiet >"$work/out" 2>"$work/err" </dev/null)
    check_equal "far too much: exit code" $? 1
    check_contains "far too much: a smaller model" "; --model gpt2 --micro-batch 1 --recompute blocks would fit" "$work/err"
    check_equal "nor do these leave anything" "$([ -e "$work/none" ] && echo none)" ""
}
refused_early

# ---- what it says
# shellcheck disable=SC2086
messages() {
    spoken="--train $work/train.bin $sizes --sequence 16 --batch 4 --schedule constant"
    train $spoken --steps 4 --warmup 20 --out "$work/warm"
    check_contains "a warm-up longer than the run" "warm-up of 20 steps is longer than the run of 4" "$work/err"
    works "--steps 0 without training data" --val "$work/val.bin" $sizes --sequence 16 --steps 0 --out "$work/looked"
    check_contains "says what it did" "nothing to save" "$work/out"
    refuse "--steps 0 with nothing to look at" "give --val" $sizes --steps 0 --out "$work/none" --quiet
    cp "$work/warm/metrics.jsonl" "$work/before"
    works "a finished run" --resume "$work/warm" --val "$work/val.bin"
    check_contains "is said to be finished" "is at step 4 already; --steps 5 or more continues it" "$work/out"
    check_same_file "and repeats nothing" "$work/before" "$work/warm/metrics.jsonl"
    refuse "--model that is not the file's" "expected" --train "$work/train.bin" --init "$work/warm" --model tiny --steps 1 --out "$work/none" --quiet
    train --train "$work/train.bin" --init "$work/warm" --steps 1 --warmup 0 --out "$work/from_warm"
    check_equal "no model is named whose sizes it has not" "$(grep -c 'model gpt2' "$work/out")" 0
    ./train_gpt2 $spoken --steps 1G --save-every 0 --out "$work/early" >"$work/out" 2>"$work/err" </dev/null &
    running=$!
    for _ in $(seq 400); do [ -e "$work/early/lock" ] && break; sleep 0.01; done
    end_run INT
    if [ -z "$(saved_steps "$work/early")" ]; then check_contains "interrupted before a step" "nothing new to save" "$work/out"; else check_contains "interrupted" "interrupted, saved:" "$work/out"; fi
    train $spoken --lr 100 --weight-decay 100 --clip 0 --warmup 0 --on-nan skip --nan-limit 1000000 --seconds 1 --save-every 0 --out "$work/timed"
    check_equal "--seconds with steps that are skipped" $? 0
    check_equal "no nan in its metrics" "$(grep -c ': -*nan' "$work/timed/metrics.jsonl")" 0
    if command -v python3 >/dev/null; then huge_validation; else skip "a validation that is not finite" "there is no python3"; fi
}
# Weights that are finite, and a validation that is not: the loss is not written as a number.
huge_validation() {
    mkdir "$work/huge" && cp "$work/warm/step_00000004/config.json" "$work/huge"
    python3 -c '
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
header.pop("__metadata__", None)
for name in ("transformer.wte.weight", "transformer.wpe.weight"):
    start, end = header[name]["data_offsets"]
    body[start:end] = struct.pack("<f", 3e38) * ((end - start) // 4)
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)' \
        "$work/warm/step_00000004/model.safetensors" "$work/huge/model.safetensors"
    refuse "a validation that is not finite" "validation at step 0: the loss is not finite" --init "$work/huge" --val "$work/val.bin" --sequence 16 --steps 0 --quiet --out "$work/huge_look"
    check_equal "no nan in the metrics" "$(grep -c ': -*nan' "$work/huge_look/metrics.jsonl")" 0
}
messages

# ---- the step line on a terminal is never wider than the terminal
narrow_terminal() {
    python3 - "$work" <<'PYTHON'
import fcntl, os, pty, re, struct, sys, termios
work = sys.argv[1]
for columns in (40, 80, 132, 200):
    child, terminal = pty.fork()
    if child == 0:
        os.execv("./train_gpt2", ["train_gpt2", "--train", work + "/train.bin", "--layers", "1", "--heads", "1", "--width", "8",
                 "--context", "16", "--vocab", "61", "--steps", "30", "--save-every", "0", "--out", f"{work}/pty{columns}"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text = b""
    try:
        while chunk := os.read(terminal, 4096):
            text += chunk
    except OSError:
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = [line for line in re.split(r"[\r\n]", text.decode().replace("\x1b[K", "")) if line.startswith("step ")]
    widest = max(map(len, lines))
    shows = "loss" in lines[-1] and ("GFLOP/s" in lines[-1]) == (columns == 200 or columns == 132)
    print("ok" if code == 0 and len(lines) == 30 and widest < columns and shows else f"FAIL {columns}: code {code}, {len(lines)} lines, widest {widest}: {lines[-1]}")
PYTHON
}
if command -v python3 >/dev/null; then
    narrow_terminal >"$work/terminals"
    check_equal "terminals of 40 to 200 columns" "$(tr '\n' ' ' <"$work/terminals")" "ok ok ok ok "
else
    skip "terminals of 40 to 200 columns" "there is no python3"
fi

summary
