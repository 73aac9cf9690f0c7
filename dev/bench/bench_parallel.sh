#!/bin/sh
# How well does a step scale over processes? Three ways, one after the other in each round, so that a busy machine
# slows all alike: one process of one thread with half the batch, one process of two threads, two processes of one
# thread.
#   dev/bench/bench_parallel.sh [rounds] [trainer's options]
# Prints each one's median time per step with its spread, and the two efficiencies: against the same work in one process
# of two threads, and, as weak scaling, against half of it in one process of one thread.
. "$(dirname "$0")/../../scripts/usage.sh"
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-4}
case $rounds in '' | *[!0-9]*) refuse "expected a number of rounds first, found '$rounds'; see --help" ;; esac
[ $# -eq 0 ] || shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. scripts/tiny_shard.sh
make_shard "$work/tokens.bin" 40000 1
options="--train $work/tokens.bin --model small --vocab 8192 --sequence 256 --steps 6 --save-every 0 --quiet $*"

step_times() { # run: milliseconds of its steps but the first two
    sed -n 's/.*"type": "step", "step": \([0-9]*\),.*"ms": \([0-9.]*\),.*/\1 \2/p' "$1/metrics.jsonl" | awk '$1 > 2 { print $2 }'
}
measure() { # name, then a command
    name=$1
    shift
    rm -rf "$work/run"
    # shellcheck disable=SC2086
    "$@" $options --out "$work/run" >/dev/null || exit 1
    step_times "$work/run" >>"$work/$name"
}
for _ in $(seq "$rounds"); do
    measure half env OMP_NUM_THREADS=1 ./train_gpt2 --batch 8 --micro-batch 8
    measure threads env OMP_NUM_THREADS=2 ./train_gpt2 --batch 16 --micro-batch 16
    for zero in 0 1; do
        measure ranks$zero env OMP_NUM_THREADS=1 scripts/train_mpi.sh 2 --batch 16 --micro-batch 8 --zero $zero
    done
done
summary() { # name: median, least and most
    sort -n "$work/$1" | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)], t[1], t[NR] }'
}
half=$(summary half) threads=$(summary threads) ranks0=$(summary ranks0) ranks1=$(summary ranks1)
line() { # what, "median least most"
    # shellcheck disable=SC2086
    printf '%-52s %8.1f ms  (%.1f to %.1f)\n' "$1" $2
}
line "1 process of 1 thread, half the batch" "$half"
line "1 process of 2 threads" "$threads"
line "2 processes of 1 thread, --zero 0" "$ranks0"
line "2 processes of 1 thread, --zero 1" "$ranks1"
efficiency() { # what, of, by
    awk -v a="${2%% *}" -v b="${3%% *}" -v what="$1" 'BEGIN { printf "%-52s %8.1f %%\n", what, 100 * a / b }'
}
efficiency "efficiency against two threads, --zero 0" "$threads" "$ranks0"
efficiency "efficiency against two threads, --zero 1" "$threads" "$ranks1"
efficiency "weak scaling from 1 to 2 processes, --zero 0" "$half" "$ranks0"
efficiency "weak scaling from 1 to 2 processes, --zero 1" "$half" "$ranks1"
