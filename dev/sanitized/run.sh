#!/bin/bash
# The C code under sanitizers, each in a tree of links of its own (build/sanitized/NAME), so that the programs here stay:
#   dev/sanitized/run.sh [address] [valgrind] [thread] [coverage]      without words the first three
#   address   the CPU's tests, programs and scripts, and the kept fuzz inputs, with address and undefined-behaviour
#             sanitizers; the gaps between an arena's tensors are poisoned (core/math/arena.c)
#   valgrind  a tiny model trained, resumed, sampled, evaluated, inspected and exported under memcheck
#   thread    loader, matrix products, attentions, the model, and ranks that meet over TCP under ThreadSanitizer: clang's
#             OpenMP with archer, which knows what its barriers order
#   coverage  no sanitizer: what the CPU's tests and scripts execute, and failing calls besides, by gcov; writes
#             docs/coverage.md and docs/refusals.md
# Last line: `N passed, N failed, N skipped`.
. "$(dirname "$0")/../../scripts/usage.sh"
cd "$(dirname "$0")/../.." || exit 1
for word in "$@"; do case $word in address | valgrind | thread | coverage) ;; *) refuse "unknown word $word; see --help" ;; esac done
[ $# != 0 ] || set -- address valgrind thread
home=$PWD
jobs=${JOBS:-$(nproc)}
export OMP_NUM_THREADS=2 RUN_AT_ONCE=$jobs

# NAME: a tree with nothing of its own but what make builds there.
plant() {
    tree=$home/build/sanitized/$1
    mkdir -p "$tree"
    for name in Makefile ./*.[ch] ./*.cu README.md SECURITY.md CONTRIBUTING.md LICENSE attention core dataloader dev docs scripts; do
        ln -sfn "$home/$name" "$tree/$(basename "$name")"
    done
    cd "$tree" || exit 1
}
build() { # make's words
    BUILD=build make -s setup "${compiler[@]}" && BUILD=build make -s -j"$jobs" "${compiler[@]}" "$@"
}
names_of() { make -s "${compiler[@]}" BUILD=build --eval='names: ; @echo $('"$1"')' names | tail -n 1; } # setting up may say something before

# What these scripts test is not the C code, or cannot be had under the sanitizer.
left_out() {
    case $1 in
    */test_memory.sh) echo "limits the address space, of which the sanitizer reserves terabytes" ;;
    */test_curves.sh) echo "minutes of training, the same code as test_train.sh" ;;
    */test_setup.sh | */test_install.sh | */test_docs.sh | */test_structure.sh | */test_scripts.sh | */test_new_attention.sh | \
        */test_harness.sh | */test_tile_layouts.sh | */test_compare.sh | */test_report.sh | */test_experiments.sh | \
        */test_get_corpus.sh | */test_tensorboard.sh | */test_train_124M.sh | */test_ranks_gpu.sh | */test_two_gpus.sh)
        echo "tests no C code, or builds its own" ;;
    *) false ;;
    esac
}

under_address() {
    plant address
    compiler=(OPT="-O1 -march=native -fno-math-errno -fno-omit-frame-pointer"
        EXTRA_CFLAGS="-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all")
    export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=1
    build all fuzz-programs $(names_of 'TESTS) $(GRADIENT_TESTS) $(BUILD)/test_gpt2_gradient $(COMPARE_TOOLS') || return 1
    words=()
    tests=($(names_of 'TESTS) $(GRADIENT_TESTS) $(BUILD)/test_gpt2_gradient'))
    for script in $(names_of TEST_SCRIPTS); do
        if why=$(left_out "$script"); then words+=(--left-out "$script: $why"); else tests+=("$script"); fi
    done
    BUILD=build scripts/run_tests.sh "${words[@]}" "${tests[@]}"
}

under_valgrind() {
    if ! command -v valgrind >/dev/null; then
        scripts/run_tests.sh --left-out 'valgrind: it is not installed'
        return
    fi
    plant valgrind
    compiler=(ARCH=x86-64-v3 OPT="-O1 -march=x86-64-v3 -fno-math-errno") # valgrind knows no AVX-512
    build all && OMP_NUM_THREADS=1 BUILD=build scripts/run_tests.sh dev/sanitized/memcheck.sh
}

under_thread() {
    archer=$(find /usr/lib/llvm-*/lib -name libarcher.so 2>/dev/null | tail -n 1)
    if ! command -v clang >/dev/null || [ -z "$archer" ]; then
        scripts/run_tests.sh --left-out 'thread: clang or its libarcher (libomp-dev) is not installed'
        return
    fi
    plant thread
    compiler=(CC=clang OPT="-O1 -g -march=native -fno-math-errno" EXTRA_CFLAGS="-fsanitize=thread")
    export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66" OMP_TOOL_LIBRARIES=$archer OMP_NUM_THREADS=3
    tests=(build/dataloader/test_dataloader build/core/math/test_matmul build/core/math/test_matvec build/attention/test_linear
        build/attention/test_quadratic build/attention/test_stack build/core/ranks/test_muon build/test_gpt2)
    build all build/core/ranks/test_parallel "${tests[@]}" && BUILD=build scripts/run_tests.sh "${tests[@]}" scripts/test_rendezvous.sh
}

under_coverage() { # one thread, so that counting needs no atomic operations; test_linear_long is left out: test_linear's code, for long
    plant coverage
    find build -name '*.gcda' -delete 2>/dev/null
    compiler=(OPT="-O1 -march=native -fno-math-errno" EXTRA_CFLAGS=--coverage EXTRA_LIBS=--coverage)
    export OMP_NUM_THREADS=1
    tests=(dev/fuzz/test_corpora.sh dataloader/test_tokenize.sh dataloader/stories/test_stories.sh core/model/test_inspect.sh)
    for name in train sample evaluate llmc hybrids hostile vocabulary values prompt work_kept full_output rendezvous parallel tensorboard install; do
        tests+=(scripts/test_$name.sh)
    done
    programs=$(names_of 'filter-out %/test_linear_long,$(TESTS)')
    build all fuzz-programs $programs || return 1
    BUILD=build scripts/run_tests.sh $programs "${tests[@]}"
    result=$?
    count_faults && python3 dev/sanitized/coverage.py write "$home/docs" build/after_tests build/after_faults $programs "${tests[@]}" || result=1
    return $result
}
# What the tests have executed, then what calls that fail execute besides (whether all goes well then: make test-faults).
count_faults() {
    export FAULTS_EVERY=7
    python3 dev/sanitized/coverage.py count build/float build/after_tests || return 1
    mkdir -p build/faults/dev && cp -r "$home/dev/faults" build/faults/dev && ln -sfn "$home/scripts" build/faults/scripts || return 1
    for program in train_gpt2 sample_gpt2 evaluate tokenize stories inspect export_gguf export_llmc; do
        ln -sfn "$PWD/$program" "build/faults/$program"
    done
    python3 build/faults/dev/faults/test_faults.py --every $FAULTS_EVERY >build/faults.log || tail -n 20 build/faults.log
    python3 dev/sanitized/coverage.py count build/float build/after_faults
}

status=0
for name in "$@"; do
    echo "$name, $(date -u +%F)"
    (under_"$name") | tee "$home/build/sanitized_$name.log"
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
done
cat $(printf 'build/sanitized_%s.log ' "$@") | awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
    END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped" }'
exit $status
