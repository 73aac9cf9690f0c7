#!/bin/sh
# An allocation that fails, anywhere in a run that saves and in one that resumes: the program either says so and fails, or
# what it saved is whole: every option, every tensor, every line of the metrics. Needs ./train_gpt2, a C compiler and glibc
# (dev/fixtures/failing_memory.c is preloaded). Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh

skip() { # why
    echo "skipped test_memory.sh: $1"
    echo "0 passed, 0 failed"
    exit 0
}
${CC:-cc} -shared -fPIC -O1 -o "$work/failing_memory.so" dev/fixtures/failing_memory.c 2>/dev/null ||
    skip "no C compiler that links a library against glibc"
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 3

train() { # number of the allocation that fails, 0 for none; then options
    failing=$1
    shift
    FAILING_CALL=$failing CALLS_FILE="$work/calls" LD_PRELOAD="$work/failing_memory.so" \
        ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null
}
fresh() { # number of the allocation that fails; trains 2 steps in $work/run
    rm -rf "$work/run"
    train "$1" --train "$work/train.bin" --val "$work/val.bin" --layers 1 --heads 2 --width 16 --context 32 --vocab 61 \
        --sequence 16 --batch 2 --warmup 1 --steps 2 --save-every 2 --threads 1 --out "$work/run"
}
resumed() { # the same; 2 steps more of a copy of the first run
    rm -rf "$work/run"
    cp -r "$work/first" "$work/run"
    train "$1" --resume "$work/run" --steps 4 --keep 2
}

# ---- what a run leaves behind, without the numbers that no two runs share

describe() { # run, the step it ends with
    sed -E 's/-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?/N/g' "$1/metrics.jsonl"
    sed '/"seconds"/d; /"checksum"/d' "$1/$2/state.json"
    cat "$1/$2/config.json"
    cksum <"$1/$2/model.safetensors"
    cksum <"$1/$2/optimizer.safetensors"
}
check_whole() { # name, last checkpoint: nothing that the reference has is missing
    describe "$work/run" "$2" >"$work/found" 2>&1
    check_equal "$1: missing in what was saved" "$(grep -vxF -f "$work/found" "$work/reference")" ""
    lines=$(wc -l <"$work/run/metrics.jsonl") expected=$(wc -l <"$work/reference_run/metrics.jsonl")
    check_equal "$1: lines of metrics" "$((lines >= expected))" 1
}

# Every allocation of some 100, at equal distances: jansson's thousands take the same way out.
sweep() { # fresh or resumed, last checkpoint
    "$1" 0 || skip "./train_gpt2 does not run under a preloaded library: $(head -n 1 "$work/err")"
    [ -s "$work/calls" ] || skip "the preloaded library is not used"
    calls=$(cat "$work/calls")
    rm -rf "$work/reference_run"
    mv "$work/run" "$work/reference_run"
    describe "$work/reference_run" "$2" >"$work/reference"
    distance=$((calls / 100 + 1)) call=1
    while [ "$call" -le "$calls" ]; do
        "$1" "$call"
        code=$?
        name="$1, allocation $call of $calls"
        if [ "$code" = 0 ]; then
            check_whole "$name" "$2"
        else
            check_equal "$name: exit code" "$code" 1
            check_equal "$name: messages" "$(grep . "$work/err" | grep -vc 'warning: ')" 1
        fi
        call=$((call + distance))
    done
}
sweep fresh step_00000002
mv "$work/reference_run" "$work/first"
sweep resumed step_00000004

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
