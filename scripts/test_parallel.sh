#!/bin/sh
# Tests of training on many processes, with real ones on this machine: the same losses as one process, ZeRO, resuming on
# another number of ranks, and every way in which one rank can go wrong. Needs ./train_gpt2, build/core/ranks/test_parallel and
# mpirun; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
[ -x ./train_gpt2 ] || { echo "./train_gpt2 is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
running=""
trap '[ -z "$running" ] || kill -9 "$running" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
root=$(pwd)
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

. scripts/checks.sh
if ! command -v mpirun >/dev/null 2>&1 || ! grep -q DHAVE_MPI "$build/config.mk" 2>/dev/null; then
    skip "training on many processes" "there is no MPI (Debian: apt-get install libopenmpi-dev openmpi-bin)"
    summary
    exit
fi

. scripts/rank_checks.sh

# ---- the messages themselves, in every number of ranks that matters

for number in 2 3 4; do
    works "messages between $number ranks" ranks "$number" "$build/core/ranks/test_parallel"
    check_equal "messages between $number ranks: summary" "$(tail -n 1 "$work/out" | tr -d '\r')" "5 passed, 0 failed"
done

# ---- the losses of one process, within 1e-5, for every attention, with 20 steps, dropout, validation, uneven rows

for attention in $(./train_gpt2 --attention list | cut -d ' ' -f 1); do
    # shellcheck disable=SC2086
    alone $small --attention "$attention" --steps 20 --out "$work/$attention.1"
    for number in 2 4; do # at the same time: a start is mostly waiting
        # shellcheck disable=SC2086
        (slot=.$number ranks $number ./train_gpt2 $small --attention "$attention" --steps 20 --zero $((number / 4)) \
            --out "$work/$attention.$number"; echo $? >"$work/code.$number") &
    done
    wait
    for number in 2 4; do
        check_worked "$attention on $number ranks" "$(cat "$work/code.$number")" "$work/err.$number"
        check_losses "$attention on $number ranks: losses" "$work/$attention.1" "$work/$attention.$number"
    done
done

# The trained numbers of a list's attentions are summed, clipped, spread and saved like weights.
# shellcheck disable=SC2086
hybrid_ranks() {
    hybrid="$small --schedule constant --attention slay:decay=learned:learn=both,softmax:window=4:decay=learned --positions none"
    alone $hybrid --steps 20 --out "$work/hybrid"
    for zero in 0 1; do
        works "a list on 2 ranks, ZeRO $zero" ranks 2 ./train_gpt2 $hybrid --steps 20 --zero $zero --out "$work/hybrid.$zero"
        check_losses "a list on 2 ranks, ZeRO $zero: losses" "$work/hybrid" "$work/hybrid.$zero"
    done
    for file in model optimizer; do
        check_same_file "a list, ZeRO 0 and 1: $file" "$work/hybrid.0/step_00000020/$file.safetensors" \
            "$work/hybrid.1/step_00000020/$file.safetensors"
    done
    works "a list, 10 steps on 2 ranks" ranks 2 ./train_gpt2 $hybrid --steps 10 --zero 1 --out "$work/hybrid.parts"
    works "a list, 10 more on 3 ranks" ranks 3 ./train_gpt2 --resume "$work/hybrid.parts" --steps 20 --val-every 10 --quiet
    check_losses "a list, resumed on other ranks: losses" "$work/hybrid" "$work/hybrid.parts"
    works "a list, 4 more alone" alone --resume "$work/hybrid.parts" --steps 24 --quiet
}
hybrid_ranks

# ---- ZeRO gives the same bits; so does the same run again; a run goes on with another number of ranks

# shellcheck disable=SC2086
zero_and_resume() {
    last=step_00000020
    works "ZeRO 0 on 4 ranks" ranks 4 ./train_gpt2 $small --steps 20 --out "$work/zero0"
    check_same_run "ZeRO 0 and 1" "$work/zero0" "$work/softmax.4" $last
    works "10 steps on 2 ranks" ranks 2 ./train_gpt2 $small --schedule constant --steps 10 --zero 1 --out "$work/halves"
    alone $small --schedule constant --steps 20 --out "$work/whole"
    works "10 more on 3 ranks" ranks 3 ./train_gpt2 --resume "$work/halves" --steps 20 --val-every 10 --quiet
    check_losses "resumed on other ranks: losses" "$work/whole" "$work/halves"
    works "10 steps on 3 ranks" ranks 3 ./train_gpt2 $small --schedule constant --steps 10 --zero 1 --out "$work/three"
    works "10 more on 3 ranks, ZeRO" ranks 3 ./train_gpt2 --resume "$work/three" --steps 20 --quiet
    works "20 in one go on 3 ranks" ranks 3 ./train_gpt2 $small --schedule constant --steps 20 --zero 1 --out "$work/go"
    check_same_run "resumed with ZeRO" "$work/go" "$work/three" $last
    alone --resume "$work/three" --steps 24 --quiet
    check_equal "a run of 3 ranks goes on alone" "$?$(cat "$work/err")" 0
    alone $small --schedule constant --steps 4 --val-every 4 --out "$work/chain"
    for number in 2 3 4 1 4 3 2; do # 4 steps on each
        works "a chain of ranks: $number" ranks "$number" ./train_gpt2 --resume "$work/chain" --zero $((number / 3)) \
            --steps $(($(find "$work/chain" -name 'step_*' | sed 's/.*step_0*//' | sort -n | tail -n 1) + 4)) --quiet
    done
    alone $small --schedule constant --steps 32 --val-every 4 --out "$work/unchained"
    check_losses "a chain of 1, 2, 3, 4, 1, 4, 3, 2 ranks: losses" "$work/unchained" "$work/chain" 40
    works "fewer rows than ranks" ranks 4 ./train_gpt2 $small --batch-start 1 --batch-ramp 8 --steps 20 --out "$work/ramp.4"
    alone $small --batch-start 1 --batch-ramp 8 --steps 20 --out "$work/ramp.1"
    check_losses "fewer rows than ranks: losses" "$work/ramp.1" "$work/ramp.4"
}
zero_and_resume

# shellcheck disable=SC2086
muon_ranks() {
    options="$small --optimizer muon --schedule constant"
    works "Muon on 3 ranks" ranks 3 ./train_gpt2 $options --steps 12 --out "$work/muon0"
    works "Muon on 3 ranks, ZeRO" ranks 3 ./train_gpt2 $options --steps 12 --zero 1 --out "$work/muon1"
    check_same_run "Muon, ZeRO 0 and 1" "$work/muon0" "$work/muon1" step_00000012
    alone $options --steps 12 --out "$work/muon.1"
    check_losses "Muon alone and on 3 ranks: losses" "$work/muon.1" "$work/muon1" 14
    works "Muon, 6 steps on 3 ranks" ranks 3 ./train_gpt2 $options --steps 6 --zero 1 --out "$work/muon.half"
    works "Muon, 6 more" ranks 3 ./train_gpt2 --resume "$work/muon.half" --steps 12 --quiet
    check_same_run "Muon resumed with ZeRO" "$work/muon1" "$work/muon.half" step_00000012
}
muon_ranks

# ---- a rank that goes wrong ends all, with one line that names it

refused() { # name, part of the message; after a command that failed
    check_equal "$1: exit code" "$code" 1
    check_equal "$1: lines on standard error" "$(wc -l <"$work/err" | tr -d ' ')" 1
    check_contains "$1: message" "$2" "$work/err"
}
# shellcheck disable=SC2086,SC2016
one_rank_differs() {
    ranks 2 ./train_gpt2 $small --bacth 4
    code=$?
    refused "the same mistake on all ranks" "train_gpt2: unknown option --bacth"
    ranks 2 sh -c 'exec ./train_gpt2 "$@" --seed $OMPI_COMM_WORLD_RANK' sh $small --steps 9 --out "$work/none"
    code=$?
    refused "another option" "rank 1: option --seed differs between ranks: rank 0 has 0, this one has 1"
    for r in 0 1; do mkdir -p "$work/rank$r" && cp -r "$work/train" "$work/rank$r/"; done
    printf x >>"$work/rank1/train/b.bin"
    in_own_directory="cd $work/rank\$OMPI_COMM_WORLD_RANK && exec $root/train_gpt2 \"\$@\""
    own="--train train $sizes --batch 6 --quiet"
    ranks 2 sh -c "$in_own_directory" sh $own --steps 9 --out "$work/none"
    code=$?
    refused "a bad shard" "rank 1: train/b.bin"
    make_shard "$work/rank1/train/b.bin" 377 9
    ranks 2 sh -c "$in_own_directory" sh $own --steps 9 --out "$work/none"
    code=$?
    refused "another shard" "rank 1: the training data's fingerprint differs"
    ranks 2 ./train_gpt2 $small --lr 100 --weight-decay 100 --warmup 0 --clip 0 --schedule constant --steps 30 --out "$work/not_finite"
    code=$?
    refused "numbers that are not finite" "is not finite"
    check_equal "the steps before them were saved" "$(find "$work/not_finite" -name 'step_*' | wc -l | tr -d ' ')" 1
    check_equal "nothing was saved by the others" "$(find "$work/none" 2>/dev/null)" ""
    ranks 2 sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || set -- --help; exec ./train_gpt2 "$@"' sh $small --out "$work/none"
    code=$?
    refused "--help to one rank alone" "option --help: given to 1 of 2 ranks"
    ranks 2 ./train_gpt2 --help
    check_equal "--help to all: exit code" $? 0
    check_equal "--help to all: once, and nothing on standard error" "$(grep -c '^usage' "$work/out") $(wc -c <"$work/err" | tr -d ' ')" "1 0"
}
one_rank_differs

a_rank_dies ./train_gpt2 --zero 1 --save-every 100
a_rank_hangs ./train_gpt2 --save-every 100

# A rank loses its data in the middle of the run: it says so, and the others end.
# shellcheck disable=SC2086
a_shard_shrinks() {
    rm -rf "$work/rank1/train"
    cp -r "$work/train" "$work/rank1/"
    ranks 2 sh -c "$in_own_directory" sh $own --steps 1G --save-every 100 --out "$work/shrunk" &
    running=$!
    wait_for_checkpoint "$work/shrunk"
    : >"$work/rank1/train/a.bin"
    wait $running
    code=$?
    running=""
    check_equal "shrunk: exit code" "$code" 1
    check_contains "shrunk: message" "train_gpt2: rank 1: train/a.bin" "$work/err"
    alone --resume "$work/shrunk" --train "$work/train" --steps 0 --quiet
    check_equal "shrunk: the last checkpoint is intact" "$?$(cat "$work/err")" 0
}
a_shard_shrinks

# SIGTERM to the script: all ranks stop after the same step, one saves.
# shellcheck disable=SC2086
stopped_by_signal() {
    scripts/train_mpi.sh 2 $small --steps 1G --save-every 0 --out "$work/stopped" >"$work/out" 2>"$work/err" </dev/null &
    running=$!
    for _ in $(seq 600); do
        [ "$(losses "$work/stopped" 2>/dev/null | wc -l)" -ge 5 ] && break
        sleep 0.05
    done
    kill -TERM "$running"
    wait "$running"
    check_equal "SIGTERM: exit code" "$?" 143
    running=""
    steps=$(grep -c '"type": "step"' "$work/stopped/metrics.jsonl")
    check_equal "SIGTERM: one checkpoint, of the last step" "$(find "$work/stopped" -name 'step_*' | sed 's/.*step_0*//')" "$steps"
    works "resumed after SIGTERM" ranks 2 ./train_gpt2 --resume "$work/stopped" --steps $((steps + 2)) --quiet
}
stopped_by_signal

summary
