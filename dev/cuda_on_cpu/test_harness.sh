#!/bin/bash
# Tests of the harness itself: the rewriter, every construct in every mode, every planted bug and its report.
# Ends with `N passed, N failed`.
cd "$(dirname "$0")/../.." || exit 1
export BUILD=${BUILD:-build}
here=dev/cuda_on_cpu
work=$BUILD/cuda_on_cpu/test_harness
passed=0 failed=0
. scripts/checks.sh
export ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
mkdir -p "$work"

ok() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "FAIL $1"
    [ -z "${2:-}" ] || sed 's/^/    /' "$2" | tail -n 12
}

# ---- what needs no headers
if command -v python3 >/dev/null; then
    for test in test_rewrite_cuda.py test_find_mutants.py ../cuda/test_report.py; do
        if python3 "$here/$test" >"$work/log" 2>&1; then ok; else fail "$test" "$work/log"; fi
    done
else
    skip "the tests in Python" "there is no python3"
fi
if ! "$here/headers.sh" >/dev/null 2>"$work/log"; then
    skip "the harness itself" "$(tail -n 1 "$work/log")"
    summary
    exit
fi

# ---- build: the modes one after the other, the files of a mode side by side
modes="fast check asan"
# valgrind's runtime is one more to compile: only in make test-harness
if [ -n "${WITH_VALGRIND:-}" ]; then
    if command -v valgrind >/dev/null && [ -f /usr/include/valgrind/memcheck.h ]; then modes="$modes valgrind"
    else skip "valgrind's mode" "there is no valgrind with its headers"; fi
fi
has_header() { [ -n "$(find $("$here/headers.sh" --find) -maxdepth 1 -name "$1" -print -quit)" ]; }
collectives="" cudnn=""
if has_header nccl.h; then collectives=test_collectives; else skip "NCCL" "there is no nccl.h"; fi
if has_header cudnn_graph.h; then cudnn=test_cudnn; else skip "cuDNN" "there is no cudnn_graph.h"; fi
build_program() { # mode program
    local source=${2%_bf16} flags=""
    [ "$source" = "$2" ] || flags=-DPRECISION_BF16
    local object=$work/$2_$1.o
    if [ ! -f "$object" ] || [ -n "$(find "$here" -newer "$object" \( -name "$source.cu" -o -name '*.h' -o -name cudacc -o -name '*.py' \) -print -quit)" ]; then
        "$here/cudacc" --mode="$1" --allow-unchecked -I. -Wall -Wextra $flags -c "$here/$source.cu" -o "$object" || return 1
    fi
    [ "$2" = test_faults ] || set -- "$1" "$2" "$work/cuda_common_$1.o"
    "$here/cudacc" --mode="$1" "$object" ${3:+"$3"} -o "$work/$2_$1"
}
programs_of() {
    case $1 in
    fast) echo "test_constructs test_faults test_libraries test_libraries_bf16 $collectives $cudnn" ;;
    check) echo "test_constructs test_faults test_libraries" ;;
    asan) echo "test_constructs test_faults" ;;
    *) echo "test_faults" ;;
    esac
}
build_mode() {
    "$here/cudacc" --mode="$1" --runtime-only || return 1
    "$here/cudacc" --mode="$1" -I. -Wall -Wextra -c core/gpu/cuda_common.cu -o "$work/cuda_common_$1.o" || return 1
    for program in $(programs_of "$1"); do build_program "$1" "$program" || return 1; done
}
for mode in $modes; do
    build_mode "$mode" >"$work/build_$mode.log" 2>&1 &
    [ "$mode" = fast ] || wait # two at a time, whatever the machine
done
wait
for mode in $modes; do
    if [ -x "$work/test_faults_$mode" ] && [ ! -s "$work/build_$mode.log" ]; then ok; else fail "building in mode $mode" "$work/build_$mode.log"; fi
done

# ---- constructs
constructs() { # description, then an environment and the mode
    local mode=${*: -1}
    if env "${@:2:$#-2}" "$work/test_constructs_$mode" >"$work/log" 2>&1; then ok; else fail "constructs, $1" "$work/log"; fi
}
constructs "fast" A=1 fast
constructs "reverse order" CUDA_ON_CPU_ORDER=reverse fast
for seed in 1 2 3; do constructs "random order $seed" CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=$seed fast; done
constructs "lazy streams" CUDA_ON_CPU_LAZY=1 fast
constructs "lazy streams, random order" CUDA_ON_CPU_LAZY=1 CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=4 fast
constructs "check" A=1 check
constructs "check, random order" CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=5 check
constructs "asan" A=1 asan

# ---- libraries
for program in test_libraries_fast test_libraries_bf16_fast test_libraries_check ${cudnn:+test_cudnn_fast}; do
    if "$work/$program" >"$work/log" 2>&1; then ok; else fail "$program" "$work/log"; fi
done
if [ -n "$collectives" ]; then
    if "$work/test_collectives_fast" 1 >"$work/log" 2>&1; then ok; else fail "collectives of one rank" "$work/log"; fi
    if ! command -v mpirun >/dev/null; then skip "NCCL between two ranks" "there is no mpirun"
    elif OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 "$work/test_collectives_fast" 2 >"$work/log" 2>&1; then ok
    else fail "collectives of two ranks" "$work/log"; fi
fi

# ---- planted bugs
run_bug() { # mode name: output in log, exit code in $code
    # shellcheck disable=SC2086
    if [ "$1" = valgrind ]; then valgrind --quiet --error-exitcode=99 "$work/test_faults_$1" "$2" >"$work/log" 2>&1
    else env ${environment:-A=1} "$work/test_faults_$1" "$2" >"$work/log" 2>&1; fi
    code=$?
}
says() { grep -q -- "$1" "$work/log"; }
# The report must come with a failing exit code and say each of the patterns.
caught() { # mode name patterns...
    local mode=$1 name=$2 pattern
    run_bug "$mode" "$name"
    shift 2
    for pattern in "$@"; do
        if ! says "$pattern"; then fail "$mode mode, $name: exit code $code, expected \"$pattern\"" "$work/log"; return; fi
    done
    case $code in
    1 | 99) ok ;;
    *) fail "$mode mode, $name: exit code $code" "$work/log" ;;
    esac
}
line_of() { grep -n "// bug: $1\$" "$here/test_faults.cu" | cut -d: -f1; }
in_kernel() { # mode kind name block-and-thread: with the kernel, block, thread and line
    caught "$1" "$3" "$2" "kernel $3, $4" "test_faults.cu:$(line_of "$3")"
}
unnoticed() { # mode name
    run_bug "$1" "$2"
    if [ "$code" = 0 ]; then ok; else fail "$1 mode, $2: exit code $code without a bug" "$work/log"; fi
}
for mode in $modes; do unnoticed "$mode" none; unnoticed "$mode" shared_memory; done

in_kernel check "out of bounds" write_past_end "block (12,0,0), thread (16,0,0)"
in_kernel check "out of bounds" read_before_start "block (0,0,0), thread (0,0,0)"
in_kernel check "out of bounds" read_past_shared "block (0,0,0), thread (31,0,0)"
in_kernel check "out of bounds" write_past_dynamic "block (0,0,0), thread (31,0,0)"
in_kernel check "out of bounds" use_freed "block (0,0,0), thread (0,0,0)"
in_kernel check "uninitialised" read_uninitialised "block (0,0,0), thread (0,0,0)"
in_kernel check "uninitialised" read_uninitialised_shared "block (0,0,0), thread (31,0,0)"
in_kernel check "data race" no_barrier "block (0,0,0), thread ([0-9]*,0,0)"
in_kernel check "data race" no_barrier_before_reuse "block (0,0,0), thread (0,0,0)"
in_kernel check "data race" no_syncwarp "block (0,0,0), thread ([0-9]*,0,0)"
in_kernel check "data race" in_order_only "block (0,0,0), thread (1,0,0)"
in_kernel check "data race" lanes_disagree "block (0,0,0), thread (1,0,0)"
unnoticed check lanes_agree
caught check rows_without_syncwarp "data race" "kernel rows_without_syncwarp" "tile_twins.h"
in_kernel check "uninitialised" copies_not_waited_for "block (0,0,0), thread (0,0,0)"
in_kernel check "data race" no_atomic "block (0,0,0), thread (1,0,0)"
in_kernel check "data race" no_fence "block (3,0,0), thread (0,0,0)"
caught check host_reads_device "host access to device memory" "test_faults.cu:$(line_of host_reads_device)"
caught check blas_uninitialised "uninitialised" "cublasSgemm"

in_kernel asan "heap-buffer-overflow\|use-after-poison\|SEGV\|memory fault" write_past_end "block (12,0,0), thread (16,0,0)"
in_kernel asan "use-after-poison" read_before_start "block (0,0,0), thread (0,0,0)"
in_kernel asan "use-after-poison" use_freed "block (0,0,0), thread (0,0,0)"
in_kernel asan "use-after-poison\|index 32 out of bounds" read_past_shared "block (0,0,0), thread (31,0,0)"
in_kernel asan "use-after-poison" write_past_dynamic "block (0,0,0), thread (31,0,0)"
case ${CXX:-g++} in
*clang*) skip "misaligned vectors" "clang checks no copies of structures" ;;
*)
    in_kernel check "misaligned" misaligned_vector "block (0,0,0), thread (0,0,0)"
    in_kernel asan "misaligned address" misaligned_vector "block (0,0,0), thread (0,0,0)" ;;
esac

in_kernel fast "barrier" different_barriers "block (0,0,0), thread (16,0,0)"
in_kernel fast "barrier" barrier_after_return "block (0,0,0), thread (40,0,0)"
in_kernel fast "warp operation" shuffle_after_return "block (0,0,0), thread (20,0,0)"
in_kernel fast "warp operation" shuffle_in_branches "block (0,0,0), thread (0,0,0)"
in_kernel fast "warp operation" shuffle_from_outside_mask "block (0,0,0), thread (15,0,0)"
in_kernel fast "warp operation" caller_not_in_mask "block (0,0,0), thread (16,0,0)"
in_kernel fast "warp operation" warp_beyond_block "block (0,0,0), thread (32,0,0)"
in_kernel fast "misaligned" misaligned_tile "block (0,0,0), thread (0,0,0)"
in_kernel fast "misaligned" misaligned_row "block (0,0,0), thread (0,0,0)"
in_kernel fast "not in shared memory" row_in_global_memory "block (0,0,0), thread (0,0,0)"
in_kernel fast "stack overflow" deep_stack "block (0,0,0), thread (0,0,0)"
in_kernel fast "memory fault" use_freed "block (0,0,0), thread (0,0,0)"
in_kernel fast "memory fault" read_host_memory "block (0,0,0), thread (0,0,0)"
in_kernel fast "waits for lane 8 .* which waits at __syncthreads" warp_waits_at_barrier "block (0,0,0), thread (0,0,0)"
caught fast much_static_shared "53248 bytes" "kernel much_static_shared, block (0,0,0), thread (0,0,0)"
caught fast much_shared_in_all "4096 bytes static and 47104 dynamic" "kernel much_shared_in_all, block (0,0,0), thread (0,0,0)"
caught fast poisoned
caught fast copy_wrong_way "HostToDevice"
caught fast copy_too_much "out of bounds"
caught fast set_too_much "out of bounds"
caught fast free_twice "freed twice"
caught fast unchecked_launch "launch of fill was refused" "test_faults.cu:$(line_of unchecked_launch)"
caught fast unchecked_launch_at_exit "launch of fill was refused" "test_faults.cu:$(line_of unchecked_launch_at_exit)"
caught fast blas_out_of_bounds "out of bounds" "cublasSgemm"
caught fast blas_host_pointer "not device memory"
caught fast blas_in_place "also an operand"
caught fast blas_leading_dimension
environment=CUDA_ON_CPU_PROTECT=1 caught fast host_reads_device "host access to device memory" "test_faults.cu:$(line_of host_reads_device)"
environment=CUDA_ON_CPU_LAZY=1 caught fast stale_pinned
environment=CUDA_ON_CPU_LAZY=1 caught fast no_event
environment=CUDA_ON_CPU_LAZY=1 caught fast late_upload
unnoticed fast in_order_only
for seed in 1 2 3; do # a race shows in every schedule but the one that it relies on, and its seed is reported
    environment="CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=$seed" caught fast in_order_only "CUDA_ON_CPU_SEED=$seed"
done
unnoticed fast stale_pinned
unnoticed fast late_upload
caught fast second_device "a process works on one device"
case $modes in
*valgrind*)
    caught valgrind read_uninitialised "uninitialised" "test_faults.cu"
    in_kernel valgrind "uninitialised" branch_on_uninitialised "block (0,0,0), thread (0,0,0)" ;;
esac

# ---- mutants
if python3 "$here/test_mutants.py" "$work/cuda_common_check.o" >"$work/log" 2>&1; then ok; else fail "test_mutants.py" "$work/log"; fi

# ---- a schedule is repeated by its seed, which is reported
environment="CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=7"
run_bug fast none
if says "CUDA_ON_CPU_SEED=7"; then ok; else fail "the seed is not printed" "$work/log"; fi
environment=CUDA_ON_CPU_ORDER=sideways
run_bug fast none
if [ "$code" = 1 ] && says "expected forward, reverse or random"; then ok; else fail "a wrong setting is not refused" "$work/log"; fi
environment=""

# ---- a status thrown away is refused by the compiler
printf '#include <cuda_runtime.h>\nint main() {\n    cudaDeviceSynchronize();\n    (void)cudaDeviceSynchronize();\n}\n' >"$work/unchecked.cu"
if "$here/cudacc" -c "$work/unchecked.cu" -o "$work/unchecked.o" >"$work/log" 2>&1 || ! says "unchecked.cu:3: error: the status of cudaDeviceSynchronize"; then
    fail "an unchecked status is compiled" "$work/log"
else ok; fi

summary
