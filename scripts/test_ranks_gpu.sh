#!/bin/sh
# Tests of the GPU's trainer on many ranks, executed on the CPU with NCCL's calls carried by MPI: the losses and weights of
# one rank, in fp32 and bf16, with and without ZeRO; resuming on other numbers of ranks; ranks that no MPI brings together;
# ranks that hang, die, or see an error of NCCL. Needs both trainers and build/cuda_on_cpu/*/core/ranks/test_*_gpu; makes its
# own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
fp32=$build/cuda_on_cpu/fast bf16=$build/cuda_on_cpu/fast-bf16
work=$(mktemp -d) || exit 1
running=""
trap '[ -z "$running" ] || kill -9 "$running" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

. scripts/checks.sh
leave_out() { # why
    skip "the GPU's trainer on many ranks" "$1"
    summary
    exit
}
if ! command -v mpirun >/dev/null 2>&1 || ! grep -q DHAVE_MPI "$build/config.mk" 2>/dev/null; then
    leave_out "there is no MPI (Debian: apt-get install libopenmpi-dev openmpi-bin)"
fi
# shellcheck disable=SC2046
find $(dev/cuda_on_cpu/headers.sh --find) -maxdepth 1 -name nccl.h 2>/dev/null | grep -q . ||
    leave_out "there is no nccl.h; dev/cuda_on_cpu/headers.sh fetches it"
for program in ./train_gpt2 "$fp32/train_gpt2" "$bf16/train_gpt2" "$fp32/core/ranks/test_parallel_gpu"; do
    [ -x "$program" ] || leave_out "$program is not built; run make test-programs"
done
. scripts/rank_checks.sh

# ---- the exchange itself

passes() { # name, then a test program's command on 3 ranks, which leaves nothing out
    works "$@"
    check_equal "$1: summary" "$(tail -n 1 "$work/out" | tr -d '\r' | sed 's/^[1-9][0-9]* passed/N passed/')" "N passed, 0 failed"
}
test_of_exchange=$fp32/core/ranks/test_parallel_gpu
passes "NCCL between 3 ranks" ranks 3 "$test_of_exchange"
passes "NCCL between 3 ranks, bf16" ranks 3 "$bf16/core/ranks/test_parallel_gpu"
passes "NCCL between 3 ranks, lazy streams" ranks 3 env CUDA_ON_CPU_LAZY=1 "$test_of_exchange"
passes "one visible GPU for each of 3 ranks" ranks 3 env CUDA_ON_CPU_DEVICES=1 "$test_of_exchange"
passes "parameters of 3 ranks" ranks 3 "$fp32/core/ranks/test_parameters_gpu"
passes "parameters of 3 ranks, bf16" ranks 3 "$bf16/core/ranks/test_parameters_gpu"
ranks 3 env CUDA_ON_CPU_DEVICES=1 CUDA_ON_CPU_DEVICE=1 "$test_of_exchange" && fail "ranks on one GPU are refused" ""
check_contains "ranks on one GPU" "have the same GPU; start one rank per GPU" "$work/err"
ranks 3 env CUDA_ON_CPU_DEVICES=2 "$test_of_exchange"
check_equal "more ranks than GPUs: exit code" $? 1
check_contains "more ranks than GPUs: message" "2 GPUs visible on this machine, but more ranks" "$work/err"

# ---- beside one rank, in micro-batches, and in parts on 2, 1 and 2 ranks

start() { # slot, then what `ranks` takes: in the background; a start is mostly waiting
    slot=.$1
    shift
    (ranks "$@"; echo $? >"$work/code$slot") &
}
ended() { # name, slot
    check_worked "$1" "$(cat "$work/code.$2")" "$work/err.$2"
}
short="$small --micro-batch 2 --adam-eps 1e-5 --schedule constant --val-every 3"
last=step_00000006
# shellcheck disable=SC2086
beside_one_rank() { # name, program, attention, bound of the tensors, more options
    for zero in 0 1; do
        start $zero 2 "$2" $short --attention "$3" ${5:-} --steps 6 --zero $zero --out "$work/$1.2.$zero"
    done
    "$2" $short --attention "$3" ${5:-} --steps 6 --out "$work/$1.1" >"$work/out" 2>"$work/err" </dev/null
    check_worked "$1 alone" $? "$work/err"
    wait
    slot=""
    for zero in 0 1; do
        ended "$1, 2 ranks, ZeRO $zero" $zero
        check_losses "$1, 2 ranks, ZeRO $zero: losses" "$work/$1.1" "$work/$1.2.$zero" 8
        check_tensors "$1, 2 ranks, ZeRO $zero" "$work/$1.1" "$work/$1.2.$zero" $last "$4"
    done
}
# shellcheck disable=SC2086
in_parts() { # name, program, bound: a softmax run that beside_one_rank made, in three parts, and in halves
    parts=$work/$1.parts
    start half 3 "$2" $short --steps 3 --zero 1 --out "$work/$1.half.1"
    start parts 2 "$2" $short --steps 2 --zero 1 --val-every 0 --out "$parts"
    wait
    ended "$1, 2 steps on 2 ranks" parts
    ended "$1, 3 steps on 3 ranks" half
    cp -r "$work/$1.half.1" "$work/$1.half.0"
    for zero in 0 1; do start half.$zero 3 "$2" --resume "$work/$1.half.$zero" --steps 6 --zero $zero --quiet; done
    "$2" --resume "$parts" --steps 4 --quiet --zero 0 >"$work/out" 2>"$work/err" </dev/null
    check_worked "$1, 2 more alone" $? "$work/err"
    start parts 2 "$2" --resume "$parts" --steps 6 --zero 1 --quiet
    wait
    slot=""
    ended "$1, the last 2 on 2 ranks" parts
    check_tensors "$1 in parts" "$work/$1.1" "$parts" $last "$3"
    for zero in 0 1; do ended "$1, 3 more on 3 ranks, ZeRO $zero" half.$zero; done
    check_tensors "$1, resumed with and without ZeRO" "$work/$1.half.0" "$work/$1.half.1" $last "$3"
    check_tensors "$1, on 3 ranks" "$work/$1.1" "$work/$1.half.1" $last "$3"
}
beside_one_rank fp32 "$fp32/train_gpt2" softmax 1e-6
beside_one_rank slay "$fp32/train_gpt2" slay 1e-6
beside_one_rank bf16 "$bf16/train_gpt2" softmax 1e-6
beside_one_rank muon "$fp32/train_gpt2" softmax 1e-4 "--optimizer muon"
check_same_file "Muon, ZeRO 0 and 1" "$work/muon.2.0/$last/model.safetensors" "$work/muon.2.1/$last/model.safetensors"
in_parts fp32 "$fp32/train_gpt2" 1e-6
in_parts bf16 "$bf16/train_gpt2" 1e-6

# Every stream runs as late as it may, so that a wait which is missing between computing and exchanging shows. And the
# same run again has the same bits.
# shellcheck disable=SC2086
for zero in 0 1; do
    start $zero 2 env CUDA_ON_CPU_LAZY=1 "$fp32/train_gpt2" $short --steps 6 --zero $zero --out "$work/lazy.$zero"
done
wait
slot=""
for zero in 0 1; do
    ended "lazy streams, ZeRO $zero" $zero
    check_same_run "lazy streams, ZeRO $zero" "$work/fp32.2.$zero" "$work/lazy.$zero" $last
done

# Steps that are not taken, and weights that come from a checkpoint in the middle of a run.
# shellcheck disable=SC2086
not_taken() { # --on-nan, its event
    wild="$data $sizes --batch 6 --quiet --lr 100 --weight-decay 100 --warmup 0 --clip 0 --schedule constant --steps 30 --val-every 2
        --save-every 4 --nan-limit 2 --on-nan $1"
    for zero in 0 1; do start $zero 2 "$bf16/train_gpt2" $wild --zero $zero --out "$work/$1.$zero"; done
    wait
    slot=""
    for zero in 0 1; do
        check_equal "$1, ZeRO $zero: exit code" "$(cat "$work/code.$zero")" 1
        check_contains "$1, ZeRO $zero: message" "is not finite" "$work/err.$zero"
    done
    check_equal "$1: it happened" "$(grep -c "\"event\": \"$2\"" "$work/$1.1/metrics.jsonl")" 2
    check_equal "$1: losses and validations" "$(losses "$work/$1.1")" "$(losses "$work/$1.0")"
    check_same_run "$1, ZeRO 0 and 1" "$work/$1.0" "$work/$1.1" "$(find "$work/$1.1" -name 'step_*[0-9]' | sort | sed -n '$s|.*/||p')"
}
not_taken skip skipped
not_taken rollback "rolled back"

# ---- ranks that meet without MPI (which carries NCCL's calls here, and nothing else)

# shellcheck disable=SC2016
as_rank='rank=$OMPI_COMM_WORLD_RANK; exec "$@" --rank $rank'
# shellcheck disable=SC2086
met="--ranks 2 --rendezvous file:127.0.0.1@$work/meeting"
# shellcheck disable=SC2086
works "a rendezvous by file" ranks 2 sh -c "$as_rank" sh "$bf16/train_gpt2" $short --steps 6 --zero 1 $met --out "$work/met"
check_same_run "a rendezvous by file" "$work/bf16.2.1" "$work/met" $last
check_equal "the file is gone" "$(find "$work/meeting" 2>/dev/null)" ""

# ---- ranks that go wrong

# A rank hangs (or is killed, or NCCL finds an error) at its collective number 20, or already when NCCL starts. Twice at the
# same time: with ranks that MPI brought together, and with ranks that met.
# shellcheck disable=SC2086,SC2016
fault() { # kind:rank:number, seconds of patience, exit codes, message of both, or of each
    began=$(date +%s)
    for how in mpi met; do
        command='exec "$@"' options=""
        [ $how = mpi ] || command=$as_rank options="--ranks 3 --rendezvous file:127.0.0.1@$work/meeting"
        start $how 3 env CUDA_ON_CPU_NCCL_FAULT="$1" CUDA_ON_CPU_NCCL_PATIENCE=300 sh -c "$command" sh "$fp32/train_gpt2" \
            $short --steps 9 --zero 1 --rank-timeout "$2" --out "$work/fault.$how" $options
    done
    wait
    slot=""
    check_equal "$1: ends in time" "$(($(date +%s) - began < 30))" 1
    for how in mpi met; do
        [ $how = mpi ] && message=$4 || message=${5:-$4}
        check_equal "$1, $how: exit code" "$(echo "$3" | grep -ow "$(cat "$work/code.$how")")" "$(cat "$work/code.$how")"
        sed 's/(process [0-9]*/(process N/' "$work/err.$how" >"$work/message"
        check_contains "$1, $how: message" "$message" "$work/message"
        check_equal "$1, $how: one message" "$(grep -c '^train_gpt2: rank' "$work/err.$how")" 1
    done
    rm -rf "$work"/fault.*
}
hangs() { # number of the collective, its section: ranks that MPI brought together know which one is missing
    fault "hang:1:$1" 3 1 "s for rank 1 (process N) ($2): it is dead or hangs, and all end" \
        "s for the other ranks ($2): one of them is dead or hangs, and all end"
}
hangs 20 "the gradients' sums"
hangs 9 "the sums of losses and norms"
hangs 14 "the updated weights"
hangs 0 "the start of NCCL"
fault error:1:20 20 1 "train_gpt2: rank 1: NCCL: remote process exited or there was a network error"
fault die:2:20 20 "1 137" "train_gpt2: rank 2 (process" "train_gpt2: rank 0: rank 2 is gone; all ranks end, the last checkpoint is intact"
a_rank_dies "$fp32/train_gpt2" --zero 1 --save-every 2

summary
