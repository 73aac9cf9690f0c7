#!/bin/sh
# --tensorboard and --sample-every: event files read by TensorBoard's own reader, aim and trackio, after a run that was
# interrupted, continued, rolled back to an earlier checkpoint; samples that leave the run's bits as they are. `make
# test-interop` brings these programs into a Python environment of its own (build/venv-tensorboard), once; what is not
# there, or cannot be had without a network, is skipped. Needs the programs. Last line: `N passed, N failed`.
#   INSTALL=yes scripts/test_tensorboard.sh                               installs them
#   TENSORBOARD_PYTHON=/path/to/python scripts/test_tensorboard.sh        with those that are there already
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 2
{
    ./stories --stories 40 --out "$work/text" && ./tokenize train --vocab 300 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/words" "$work/text"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }
small="--train $work/train.bin --val $work/val.bin $sizes --sequence 16 --batch 4 --warmup 3 --val-every 10 --schedule constant"
text="--train $work/words_train_000000.bin --tokenizer $work/vocab --layers 1 --heads 2 --width 16 --context 64 --batch 4 --warmup 3"
samples() { grep '"type": "sample"' "$1/metrics.jsonl"; }

# ---- samples

# shellcheck disable=SC2086
sampling() { # attention
    run="$work/sampled_$1"
    works "$1: without samples" $text --attention "$1" --dropout 0.1 --steps 12 --out "$run.plain"
    works "$1: with samples" $text --attention "$1" --dropout 0.1 --steps 12 --sample-every 4 --sample-tokens 20 --out "$run.whole"
    check_same_run "$1: samples change nothing" "$run.plain" "$run.whole" step_00000012
    check_equal "$1: samples" "$(samples "$run.whole" | wc -l | tr -d ' ')" 3
    works "$1: the first half" $text --attention "$1" --dropout 0.1 --steps 8 --sample-every 4 --sample-tokens 20 --schedule constant --out "$run.halves"
    works "$1: the second half" --resume "$run.halves" --steps 12
    works "$1: in one go" $text --attention "$1" --dropout 0.1 --steps 12 --sample-every 4 --sample-tokens 20 --schedule constant --out "$run.whole2"
    check_equal "$1: the same samples after a resumption" "$(samples "$run.halves")" "$(samples "$run.whole2")"
}
sampling softmax
sampling slay
# shellcheck disable=SC2086
works "a prompt" $text --steps 4 --sample-every 4 --sample-tokens 5 --sample-prompt 'The lantern' --out "$work/prompted"
check_contains "a sample begins with its prompt" '"type": "sample", "step": 4, "text": "The lantern' "$work/prompted/metrics.jsonl"
check_contains "a sample on the screen" "sample at step 4: The lantern" "$work/out"
# shellcheck disable=SC2086
works "a sample as long as a row" $text --steps 2 --sample-every 2 --sample-tokens 1000 --out "$work/long"
# shellcheck disable=SC2086
works "numbers without a vocabulary" $small --steps 10 --sample-every 10 --sample-tokens 4 --out "$work/numbers"
check_equal "numbers of tokens" "$(samples "$work/numbers" | grep -cE '"text": "[0-9 ]*"')" 1
# shellcheck disable=SC2086
check_refused "a prompt without a vocabulary" "give --tokenizer FILE" ./train_gpt2 $small --steps 2 --sample-every 1 --sample-prompt a --out "$work/none" --quiet

# ---- event files: of one run in one go, of another that was interrupted and continued twice, once from an older checkpoint

# shellcheck disable=SC2086
event_files() {
    options="$text --val $work/words_train_000000.bin --val-tokens 200 --val-every 5 --schedule constant --tensorboard --sample-every 10 --sample-tokens 12 --save-every 5 --keep 9"
    works "in one go" $options --steps 30 --out "$work/watched/whole"
    works "the first part" $options --steps 20 --out "$work/watched/parts"
    works "again from an older checkpoint" --resume "$work/watched/parts/step_00000010" --steps 25
    works "and on" --resume "$work/watched/parts" --steps 30
    check_equal "a file for each session" "$(find "$work/watched/parts" -name 'events.out.tfevents.*' | wc -l | tr -d ' ')" 3
    check_equal "none without the option" "$(find "$work/prompted" -name 'events.out.tfevents.*')" ""
}
event_files

python=${TENSORBOARD_PYTHON:-build/venv-tensorboard/bin/python}
can_read() { "$python" -c "import $1" 2>/dev/null; }
have() { # what reads event files, then its packages; TensorFlow is aim's, which reads them with it
    can_read "$1" && return
    [ "${INSTALL:-}" ] || { why="it is not here; make test-interop installs it" && return 1; }
    what=$1
    shift
    why="pip cannot install it: no network?"
    "$python" -m pip install --quiet --retries 1 --timeout 15 "$@" >"$work/log" 2>&1 && can_read "$what"
}
environment() { # makes or finds it; says why not
    [ -z "${INSTALL:-}" ] || [ -x "$python" ] || { mkdir -p build && python3 -m venv build/venv-tensorboard >"$work/log" 2>&1; } ||
        { why="python3 -m venv does not work here" && return 1; }
    have tensorboard tensorboard || return 1
    have trackio,tbparse 'trackio[tensorboard]' || skip "event files in trackio" "$why"
    have aim,tensorflow aim tensorflow-cpu || skip "event files in aim" "$why"
}
if environment; then
    "$python" scripts/read_events.py "$work/watched" >"$work/read" 2>"$work/notes" </dev/null
    read -r read_passed _ read_failed _ <<END
$(tail -n 1 "$work/read")
END
    case $read_passed,$read_failed in
    [1-9]*,[0-9]*) passed=$((passed + read_passed)) failed=$((failed + read_failed)) && grep FAIL "$work/read" ;;
    *) fail "event files read by others" "$(tail -n 5 "$work/notes")" ;;
    esac
else
    skip "event files in TensorBoard's own reader" "$why"
fi
summary
