#!/bin/sh
# What a run must not lose, whatever happens to it: other runs, abandoned branches, steps between two saves, metrics. And
# what it must refuse before it begins. Needs ./train_gpt2; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
running=""
trap '[ -z "$running" ] || kill -9 "$running" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_WAIT_POLICY=passive
. scripts/checks.sh
. scripts/tiny_shard.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 3

sizes="--layers 2 --heads 2 --width 16 --context 32 --vocab 61"
small="--train $work/train.bin $sizes --sequence 16 --batch 4 --warmup 3 --schedule constant --quiet"
# A weight decay that multiplies the weights by -9999 each step: not finite after a few.
not_finite="$small --lr 100 --weight-decay 100 --warmup 0 --clip 0"
train() { # options; standard output and error go to $work/out and $work/err
    ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null
}
refuse() { # name, part of the message, options: exit code 1 and one line
    name=$1 part=$2
    shift 2
    train "$@"
    code=$?
    check_equal "$name: exit code" "$code" 1
    check_equal "$name: lines on standard error" "$(grep -cv ': warning: ' "$work/err")" 1
    check_contains "$name: message" "$part" "$work/err"
}
works() { # name, options
    name=$1
    shift
    train "$@"
    code=$?
    if [ "$code" = 0 ] && ! grep -qv ': warning: ' "$work/err"; then pass; else fail "$name" "exit code $code" "$(cat "$work/err")"; fi
}
saved_steps() { # run: the steps of its checkpoints in one line
    find "$1" -maxdepth 1 -name 'step_*' 2>/dev/null | sed -n 's/.*step_0*\([0-9][0-9]*\)$/\1/p' | sort -n | tr '\n' ' ' | sed 's/ $//'
}
step_lines() { sed -n '/"type": "step"/s/, "ms":.*//p' "$1/metrics.jsonl"; }
check_same_run() { # name run run step: weights, moments, metrics
    check_same_file "$1: weights" "$2/$4/model.safetensors" "$3/$4/model.safetensors"
    check_same_file "$1: moments" "$2/$4/optimizer.safetensors" "$3/$4/optimizer.safetensors"
    step_lines "$2" >"$work/steps_a"
    step_lines "$3" >"$work/steps_b"
    check_same_file "$1: metrics" "$work/steps_a" "$work/steps_b"
}
last_step() { step_lines "$1" 2>/dev/null | sed -n '$s/.*"step": \([0-9]*\),.*/\1/p'; }
wait_for_steps() { # run step
    for _ in $(seq 400); do
        now=$(last_step "$1")
        [ "${now:-0}" -ge "$2" ] && return 0
        sleep 0.05
    done
    fail "waiting for step $2 of $1" "$(cat "$work/background_err")"
}
start_run() { # run, options: one that ends by a signal only
    run=$1
    shift
    # shellcheck disable=SC2086
    ./train_gpt2 $small --steps 1G --save-every 0 --out "$run" "$@" >"$work/background_out" 2>"$work/background_err" </dev/null &
    running=$!
    wait_for_steps "$run" 5
}
end_run() { # signal
    [ -z "$1" ] || kill "-$1" "$running"
    wait "$running" 2>/dev/null
    code=$?
    running=""
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
    works "stop: and can be gone on with" --resume "$work/stop" --lr 0 --weight-decay 0 --steps $((good + 2)) --quiet
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
    refuse "a spike" "a spike (loss" --resume "$work/calm" --steps 60 --lr 3 --clip 0 --spike 6 --save-every 0 --quiet
    check_equal "the step before it is saved" "$(saved_steps "$work/calm" | tr ' ' '\n' | tail -n 1)" "$(last_step "$work/calm")"
    train --resume "$work/plain" --steps 60 --lr 3 --clip 0 --spike 6 --on-nan rollback --nan-limit 20 --save-every 0 --quiet
    check_equal "rolled back until it works" $? 0
    check_contains "rollback: the factor is saved" '"rate_factor"' "$work/plain/step_00000060/state.json"
    factor=$(sed -n 's/.*"rate_factor": \([0-9.e-]*\),.*/\1/p' "$work/plain/step_00000060/state.json")
    rate=$(step_lines "$work/plain" | sed -n '$s/.*"lr": \([0-9.e+-]*\).*/\1/p')
    check_equal "rollback: the rate is lower by it" "$(awk -v r="$rate" -v f="$factor" 'BEGIN { print (r / (3 * f) > 0.999 && r / (3 * f) < 1.001) }')" 1
    check_equal "every step is there once" "$(step_lines "$work/plain" | wc -l | tr -d ' ')" 60
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
    check_equal "does not keep a save from its place" "$(saved_steps "$work/foreign")" "2 8 9"
    start_run "$work/blocked" --save-every 20 --save-wait 0
    : >"$work/blocked/step_00000040" # a file in the way of a checkpoint
    wait_for_steps "$work/blocked" 70
    end_run TERM
    check_equal "a save that fails: the run goes on" "$code" 143
    check_contains "and says so" "not saved: " "$work/background_err"
    check_contains "step 60 is saved all the same" "/step_00000060" "$work/blocked/metrics.jsonl"
    mkdir "$work/last" && : >"$work/last/step_00000006"
    rm -f "$work/last/step_00000006.tmp"
    : >"$work/in_the_way"
    refuse "the last save" "the last save failed" $small --steps 6 --save-wait 1 --out "$work/last_save" --keep 1 --save-every 0 --tokenizer "$work/in_the_way"
}
