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

. scripts/tiny_shard.sh
mkdir "$work/train" || exit 1
make_shard "$work/train/a.bin" 1500 1
make_shard "$work/train/b.bin" 377 2
make_shard "$work/val.bin" 200 3
data="--train $work/train --val $work/val.bin"
sizes="--layers 2 --heads 2 --width 16 --context 32 --vocab 61 --sequence 16 --init-std 0.05 --warmup 3 --lr 1e-3"
small="$data $sizes --batch 6 --dropout 0.1 --val-every 10 --quiet"

# mpirun that ends in a minute whatever happens; standard output and error go to $work/out and $work/err, with $slot
# after their names. Its files go there too: mpiruns that share a folder remove it under each other's feet.
slot=""
ranks() { # number, program, arguments
    number=$1
    shift
    mkdir -p "$work/mpi$slot"
    timeout -k 5 60 mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
        --mca orte_tmpdir_base "$work/mpi$slot" -np "$number" "$@" >"$work/out$slot" 2>"$work/err$slot" </dev/null
}
check_worked() { # name, exit code, standard error: nothing but warnings
    if [ "$2" = 0 ] && ! grep -qv ': warning: ' "$3"; then pass; else fail "$1" "exit code $2" "$(cat "$3")"; fi
}
works() { # name, then a command
    name=$1
    shift
    "$@"
    check_worked "$name" $? "$work/err"
}
alone() { ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null; }

# ---- the messages themselves, in every number of ranks that matters

for number in 2 3 4; do
    works "messages between $number ranks" ranks "$number" "$build/core/ranks/test_parallel"
    check_equal "messages between $number ranks: summary" "$(tail -n 1 "$work/out" | tr -d '\r')" "5 passed, 0 failed"
done

# ---- the GPU's: NCCL's calls, which the CPU execution of .cu files carries over MPI

cudacc="dev/cuda_on_cpu/cudacc --mode=fast -I. -fopenmp -DHAVE_MPI"
libraries=$(sed -n 's/^CONFIG_\(MPI_\)\{0,1\}LIBS := //p' "$build/config.mk" | tr '\n' ' ')
# shellcheck disable=SC2086
build_gpu_test() {
    for name in gpu/cuda_common ranks/parallel_nccl ranks/test_parallel_gpu; do
        $cudacc -c core/$name.cu -o "$work/${name#*/}.o" || return 1
    done
    $cudacc "$work/test_parallel_gpu.o" "$work/parallel_nccl.o" "$work/cuda_common.o" "$build/libslay.a" $libraries -lm -o "$work/test_parallel_gpu"
}
# shellcheck disable=SC2046
if ! find $(dev/cuda_on_cpu/headers.sh --find) -maxdepth 1 -name nccl.h 2>/dev/null | grep -q .; then
    skip "NCCL between ranks" "there is no nccl.h; dev/cuda_on_cpu/headers.sh fetches it"
elif build_gpu_test >"$work/log" 2>&1; then
    works "NCCL between 3 ranks" ranks 3 "$work/test_parallel_gpu"
    check_equal "NCCL between 3 ranks: summary" "$(tail -n 1 "$work/out" | tr -d '\r')" "4 passed, 0 failed"
    works "one visible GPU for each of 3 ranks" ranks 3 env CUDA_ON_CPU_DEVICES=1 "$work/test_parallel_gpu"
    ranks 3 env CUDA_ON_CPU_DEVICES=1 CUDA_ON_CPU_DEVICE=1 "$work/test_parallel_gpu" && fail "ranks on one GPU are refused" ""
    check_contains "ranks on one GPU" "have the same GPU; start one rank per GPU" "$work/err"
    works "NCCL between 3 ranks, lazy streams" ranks 3 env CUDA_ON_CPU_LAZY=1 "$work/test_parallel_gpu"
    check_equal "NCCL between 3 ranks, lazy streams: summary" "$(tail -n 1 "$work/out" | tr -d '\r')" "4 passed, 0 failed"
    ranks 3 env CUDA_ON_CPU_DEVICES=2 "$work/test_parallel_gpu"
    check_equal "more ranks than GPUs: exit code" $? 1
    check_contains "more ranks than GPUs: message" "2 GPUs visible on this machine, but more ranks" "$work/err"
else
    fail "building the test of NCCL" "$(tail -n 5 "$work/log")"
fi

# ---- the losses of one process, within 1e-5, for every attention, with 20 steps, dropout, validation, uneven rows

losses() { # run: the losses of its steps and validations
    sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl"
}
check_losses() { # name run run [lines]: 20 steps and 2 validations; a difference that is no number fails
    losses "$2" >"$work/losses_a"
    losses "$3" >"$work/losses_b"
    worst=$(paste -d ' ' "$work/losses_a" "$work/losses_b" | awk -v lines="${4:-22}" '
        { d = $1 > $2 ? $1 - $2 : $2 - $1; if (!(d <= 1e-5 * $1)) bad = bad " " NR ": " $1 " " $2; n++ }
        END { print n == lines && !bad ? "close" : n " lines," bad }')
    check_equal "$1" "$worst" close
}
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

check_same_run() { # name run run step
    check_same_file "$1: weights" "$2/$4/model.safetensors" "$3/$4/model.safetensors"
    check_same_file "$1: moments" "$2/$4/optimizer.safetensors" "$3/$4/optimizer.safetensors"
}
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
    works "fewer rows than ranks" ranks 4 ./train_gpt2 $small --batch-start 1 --batch-ramp 8 --steps 20 --out "$work/ramp.4"
    alone $small --batch-start 1 --batch-ramp 8 --steps 20 --out "$work/ramp.1"
    check_losses "fewer rows than ranks: losses" "$work/ramp.1" "$work/ramp.4"
}
zero_and_resume

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

wait_for_checkpoint() { # run
    for _ in $(seq 600); do
        ls -d "$1"/step_*[0-9] >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    fail "waiting for a checkpoint of $1" "$(cat "$work/err")"
}
process_of_rank() { # rank, run: its process id
    for directory in /proc/[0-9]*; do
        { tr '\0' ' ' <"$directory/cmdline"; } 2>/dev/null | grep -q "^[^ ]*/train_gpt2 .*$2" || continue
        { tr '\0' '\n' <"$directory/environ"; } 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" && basename "$directory"
    done
}
start_run() { # run, ranks, program, options: one that does not end by itself
    run=$1 number=$2
    shift 2
    # shellcheck disable=SC2086
    ranks "$number" "$@" $small --steps 1G --out "$run" &
    running=$!
    wait_for_checkpoint "$run"
}
a_rank_dies() { # program, options
    rm -rf "$work/killed"
    start_run "$work/killed" 3 "$@"
    kill -9 "$(process_of_rank 1 "$work/killed")"
    began=$(date +%s)
    wait $running
    running=""
    check_equal "killed: all ranks end within 20 s" "$(($(date +%s) - began < 20))" 1
    check_contains "killed: the message names the rank" "train_gpt2: rank 1 (process" "$work/err"
    check_equal "killed: one message" "$(grep -c 'was killed; all ranks end' "$work/err")" 1
    alone --resume "$work/killed" --steps 0 --quiet
    check_equal "killed: the last checkpoint is intact" "$?$(cat "$work/err")" 0
}
a_rank_dies ./train_gpt2 --zero 1 --save-every 100

# ---- the GPU's trainer as a program, executed on the CPU: beside one process, in micro-batches, and with a dead rank

check_tensors() { # name run run step: every weight and moment within 2e-5; the files' headers are the same
    for file in model optimizer; do
        header=$(od -An -tu4 -N4 "$2/$4/$file.safetensors" | tr -d ' ')
        for run in "$2" "$3"; do
            tail -c +$((header + 9)) "$run/$4/$file.safetensors" | od -An -v -tf4 -w4 >"$run.numbers"
        done
        worst=$(paste "$2.numbers" "$3.numbers" | awk '{ d = $1 > $2 ? $1 - $2 : $2 - $1; if (!(d <= 2e-5)) bad++; n++ }
            END { print (n > 5000 && !bad ? "close" : bad + 0 " of " n " differ") }')
        check_equal "$1: $file" "$worst" close
    done
}
gpu_trainer=$build/cuda_on_cpu/fast/train_gpt2
# shellcheck disable=SC2086
gpu_ranks() {
    short="$small --micro-batch 2 --adam-eps 1e-5 --steps 6 --val-every 3"
    for attention in softmax slay; do
        "$gpu_trainer" $short --attention $attention --out "$work/gpu.1" >"$work/out" 2>"$work/err" </dev/null
        check_worked "GPU, $attention alone" $? "$work/err"
        for number in 2 4; do # the second with ZeRO
            works "GPU, $attention on $number ranks" ranks $number "$gpu_trainer" $short --attention $attention \
                --zero $((number / 4)) --out "$work/gpu.$number"
            check_losses "GPU, $attention on $number ranks: losses" "$work/gpu.1" "$work/gpu.$number" 8
            check_tensors "GPU, $attention on $number ranks" "$work/gpu.1" "$work/gpu.$number" step_00000006
        done
        rm -rf "$work"/gpu.?
    done
}
# Every stream runs as late as it may, so that a wait which is missing between computing and exchanging shows.
# shellcheck disable=SC2086
gpu_lazy() {
    short="$small --micro-batch 2 --adam-eps 1e-5 --steps 2 --val-every 0"
    "$gpu_trainer" $short --out "$work/lazy" >"$work/out" 2>"$work/err" </dev/null
    check_worked "GPU, alone" $? "$work/err"
    for zero in 0 1; do
        works "GPU, lazy streams, ZeRO $zero" ranks 2 env CUDA_ON_CPU_LAZY=1 "$gpu_trainer" $short --zero $zero --out "$work/lazy.$zero"
        check_losses "GPU, lazy streams, ZeRO $zero: losses" "$work/lazy" "$work/lazy.$zero" 3
        check_tensors "GPU, lazy streams, ZeRO $zero" "$work/lazy" "$work/lazy.$zero" step_00000002
    done
}
# ZeRO beside stage 0, and in halves. bf16 rounds the weights by chance, but by the same chance on every rank and after
# resuming.
# shellcheck disable=SC2086
gpu_zero() { # name, program
    short="$small --micro-batch 2 --adam-eps 1e-5 --schedule constant --val-every 3"
    works "GPU, $1, ZeRO 0" ranks 3 "$2" $short --steps 6 --out "$work/$1.0"
    works "GPU, $1, ZeRO 1" ranks 3 "$2" $short --steps 6 --zero 1 --out "$work/$1.1"
    check_losses "GPU, $1, ZeRO 0 and 1: losses" "$work/$1.0" "$work/$1.1" 8
    check_tensors "GPU, $1, ZeRO 0 and 1" "$work/$1.0" "$work/$1.1" step_00000006
    works "GPU, $1, ZeRO 1, first half" ranks 3 "$2" $short --steps 3 --zero 1 --out "$work/$1.half"
    works "GPU, $1, ZeRO 1, second half" ranks 3 "$2" --resume "$work/$1.half" --steps 6 --val-every 3 --quiet
    check_same_run "GPU, $1, ZeRO 1 resumed" "$work/$1.1" "$work/$1.half" step_00000006
}
if [ -x "$gpu_trainer" ]; then
    gpu_ranks
    gpu_lazy
    gpu_zero bf16 "$build/cuda_on_cpu/fast-bf16/train_gpt2"
    a_rank_dies "$gpu_trainer" --zero 1 --save-every 2
else
    skip "the GPU's trainer on many ranks" "$gpu_trainer is not built"
fi

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
