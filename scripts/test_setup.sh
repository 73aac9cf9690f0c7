#!/bin/sh
# Tests of setting up, of make cuda and of counting tests: what the tests need is installed, what is left out is counted and
# explained, the GPU's programs are built for what was asked, and without a GPU nothing is built to test on one. Stand-ins
# play apt-get, nvcc, NVIDIA's driver and compute-sanitizer. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
. scripts/checks.sh
unset MAKEFLAGS MAKELEVEL MFLAGS CXX CUDA_ARCH TF32 TEST_ONLY RUN_UNDER SANITIZER_TESTS
export BUILD="$work/build"
stand_in() { # path; the script is standard input
    { echo '#!/bin/sh' && cat; } >"$1" && chmod +x "$1"
}

# ---- setting up on a machine without g++, by root and by somebody who may not install anything
mkdir "$work/bin" && find /usr/local/bin /usr/bin /bin -maxdepth 1 ! -type d ! -name '*g++*' ! -name sudo -exec ln -sf -t "$work/bin" {} + || exit 1
rm -f "$work/bin/apt-get" "$work/bin/id"
stand_in "$work/bin/apt-get" <<END
echo "\$@" >>"$work/apt"
END
stand_in "$work/bin/id" <<END
cat "$work/user"
END
set_up() { # user's number, options
    echo "$1" >"$work/user"
    shift
    : >"$work/apt"
    PATH="$work/bin" scripts/setup.sh "$@" >"$work/out" 2>"$work/err" </dev/null
    check_equal "setup $*: exit code" "$? $(cat "$work/err")" "0 "
}
asks_for_compiler() { grep -q '^install .* g++' "$work/apt" && echo yes || echo no; }
set_up 0
check_equal "training needs no g++" "$(asks_for_compiler)" no
set_up 0 --tests
check_equal "the tests' g++ is installed" "$(asks_for_compiler)" yes
check_contains "which is said" "g++" "$work/out"
set_up 1000 --tests
check_equal "nobody is stopped for its sake" "$(cat "$work/apt")" ""
check_equal "why the GPU's tests are left out" "$(PATH="$work/bin" dev/cuda_on_cpu/headers.sh --why)" "there is no g++"

# ---- tests that cannot be built are named to run_tests.sh
PATH="$work/bin" make -n run-tests >"$work/out" 2>&1
for test in fast/attention/test_linear_gpu fast-bf16/test_gpt2 fast-cudnn/attention/test_softmax_gpu; do
    check_contains "$test is counted" "--left-out '$BUILD/cuda_on_cpu/$test: there is no g++'" "$work/out"
done
check_contains "so is the script" "--left-out 'scripts/test_train_gpu.sh: there is no g++'" "$work/out"

# ---- counting
printf 'echo "3 passed, 0 failed"\n' | stand_in "$work/whole.sh"
printf 'echo "skipped: a part: no reason"\necho "2 passed, 0 failed, 1 skipped"\n' | stand_in "$work/partly.sh"
printf 'echo "skipped: everything: it rains"\necho "0 passed, 0 failed, 1 skipped"\n' | stand_in "$work/nothing.sh"
printf 'echo "0 passed, 0 failed"\n' | stand_in "$work/empty.sh"
printf 'echo "1 passed, 0 failed, 1 skipped"\n' | stand_in "$work/silent.sh"
printf 'echo "FAIL x"\necho "1 passed, 1 failed"\nexit 1\n' | stand_in "$work/failing.sh"
printf 'exit 0\n' | stand_in "$work/dumb.sh"
count() { # exit code and last line
    scripts/run_tests.sh "$@" >"$work/out" 2>&1
    echo "$?: $(tail -n 1 "$work/out")"
}
check_equal "nothing skipped" "$(count "$work/whole.sh")" "0: 3 passed, 0 failed, 0 skipped"
check_equal "sums" "$(count --left-out 'a/test: no g++' "$work/whole.sh" "$work/partly.sh" "$work/nothing.sh")" \
    "0: 5 passed, 0 failed, 3 skipped"
sed -n '/^skipped:$/,$p' "$work/out" >"$work/list"
printf '%s\n' "skipped:" "  a/test: no g++" "  $work/partly.sh: a part: no reason" "  $work/nothing.sh: everything: it rains" \
    "5 passed, 0 failed, 3 skipped" >"$work/expected"
check_same_file "with the reason of each" "$work/list" "$work/expected"
check_equal "a failure" "$(count "$work/failing.sh" "$work/partly.sh")" "1: 3 passed, 1 failed, 1 skipped"
check_equal "a test that does nothing" "$(count "$work/empty.sh")" "1: 0 passed, 1 failed, 0 skipped"
check_equal "a test without a last line" "$(count "$work/dumb.sh")" "1: 0 passed, 1 failed, 0 skipped"
check_equal "skipping without a reason" "$(count "$work/silent.sh")" "1: 1 passed, 1 failed, 1 skipped"
printf 'print("ok   first")\nprint("1 passed, 0 failed")\n' >"$work/one.py"
check_equal "a test in Python" "$(count "$work/one.py")" "0: 1 passed, 0 failed, 0 skipped"

# ---- comparisons with others' software: a machine without venv, or from which pip reaches nothing, skips the quick ones
mkdir -p "$work/tree" "$work/python" && cp -r scripts "$work/tree/" || exit 1
interop() { # options: exit code and output
    rm -rf "$work/tree/build"
    (PATH="$work/python:$PATH" "$work/tree/scripts/test_interop.sh" "$@" 2>&1; echo "$?") | grep -v '^installing ' | tr '\n' '|'
}
printf 'exit 1\n' | stand_in "$work/python/python3"
why="cannot make a Python environment; on Debian and Ubuntu: apt install python3-venv"
check_equal "no venv" "$(interop --quick)" "skipped: comparisons with others' software: $why|0 passed, 0 failed, 1 skipped|0|"
check_equal "no venv, asked for" "$(interop)" "$why|0 passed, 1 failed|1|"
stand_in "$work/python/python3" <<'END'
mkdir -p "$3/bin" && { echo '#!/bin/sh' && echo 'echo "ERROR: no route to host" >&2' && echo 'exit 1'; } >"$3/bin/python" && chmod +x "$3/bin/python"
END
why="cannot install them within 10 minutes; is the network there? See build/venv-interop.txt"
check_equal "no network" "$(interop --quick)" "skipped: comparisons with others' software: $why|0 passed, 0 failed, 1 skipped|0|"
check_contains "what pip has said" "no route to host" "$work/tree/build/venv-interop.txt"

cat >"$work/skips.c" <<'END'
#include "core/base/test.h"
static void runs(void) { CHECK(1); }
static void cannot(void) { SKIP("no such thing here"); }
static void fails_first(void) { CHECK(0); SKIP("too late"); }
int main(void) { RUN(runs); RUN(cannot); RUN(fails_first); return test_summary(); }
END
"$(sed -n 's/^CC := //p' "$BUILD/config.mk")" -I. -o "$work/skips" "$work/skips.c" -lm && "$work/skips" >"$work/out"
check_equal "a program in C: exit code" "$?" 1
check_equal "its last line" "$(tail -n 1 "$work/out")" "1 passed, 1 failed, 1 skipped"
check_contains "its reason" "skipped: cannot: no such thing here" "$work/out"

# ---- objects depend on the flags they were built with; commands are short lines unless V=1 asks for all of them
object="$BUILD/float/core/base/progress.o"
made() { make "$object" "$@" 2>/dev/null | grep -c 'core/base/progress.c'; }
check_equal "compiled once" "$(made) $(made)" "1 0"
check_equal "other flags compile it anew" "$(made EXTRA_CFLAGS=-DOTHER) $(made EXTRA_CFLAGS=-DOTHER)" "1 0"
check_equal "a compilation is one short line" "$(make "$object" 2>/dev/null | grep -v '^setup' | tail -n 1)" "compile  core/base/progress.c"
check_equal "or the whole command" "$(make V=1 EXTRA_CFLAGS=-DOTHER "$object" 2>/dev/null | grep -c -e '-DOTHER .*-c -o')" 1
check_equal "make help looks for nothing" "$(BUILD="$work/nothing" make help >/dev/null 2>&1; [ -e "$work/nothing" ] && echo found)" ""

# ---- make cuda: an nvcc that knows two architectures and makes scripts, which find no GPU
stand_in "$work/nvcc" <<END
case \$1 in
--version) echo "release 13.0" && exit ;;
--list-gpu-code) printf 'sm_80\nsm_90\n' && exit ;;
esac
echo "\$*" >>"$work/compiled"
while [ \$# -gt 0 ]; do [ "\$1" != -o ] || out=\$2; shift; done
printf '#!/bin/sh\necho "find_gpu: no GPU found" >&2\nexit 1\n' >"\$out" && chmod +x "\$out"
END
export NVCC="$work/nvcc" USE_CUDNN=0
make -n cuda CUDA_ARCH=80 >"$work/out" 2>&1
check_equal "one architecture is reported" "$(grep '^GPUs ' "$work/out")" "GPUs       sm 80"
check_equal "and built" "$(grep -o 'sm_[0-9]*' "$work/out" | sort -u)" sm_80
rm -f "$BUILD/cuda.mk"
make -n cuda >"$work/out" 2>&1
check_equal "without a choice those that nvcc knows" "$(grep '^GPUs ' "$work/out" | tail -n 1)" "GPUs       sm 80 90"
check_contains "and it says which it does not" "not sm 100 120, which this nvcc does not know" "$work/out"
compiled() { # options: how many files make compiles to ask for a GPU
    : >"$work/compiled"
    make -s nvcc-find-gpu "$@" >"$work/out" 2>&1 || cat "$work/out"
    grep -c -e ' -c -o ' "$work/compiled"
}
check_equal "compiled once" "$(compiled CUDA_ARCH=80) $(compiled CUDA_ARCH=80)" "2 0"
check_equal "another architecture is compiled anew" "$(compiled CUDA_ARCH=90)" 2

# ---- make test-gpu: a driver that shows so many GPUs
driver() { # how many
    mkdir -p "$work/driver"
    printf 'int cuInit(unsigned flags) { return (int)flags; }\nint cuDeviceGetCount(int *count) { *count = %s; return 0; }\n' \
        "$1" >"$work/driver.c"
    cc -shared -fPIC -o "$work/driver/libcuda.so.1" "$work/driver.c"
}
test_gpu() { # options of make: the exit code, and what was said
    : >"$work/compiled"
    LD_LIBRARY_PATH="$work/driver" make -s "$@" >"$work/out" 2>"$work/err"
    echo "$? $(grep -v '^make' "$work/err")"
}
driver 0
for target in test-gpu bench-gpu; do
    check_equal "$target without a GPU: exit code, one line" "$(BUILD="$work/fresh" test_gpu $target)" "2 no GPU found: the driver shows \
none: look at nvidia-smi and CUDA_VISIBLE_DEVICES; make test runs the kernels' tests on the CPU"
    check_equal "$target without a GPU: nothing is looked for" "$(cat "$work/out" "$work/compiled" && ls "$work/fresh")" cuda
done
: >"$work/driver/libcuda.so.1"
check_equal "without a driver" "$(BUILD="$work/fresh" test_gpu test-gpu | cut -d ';' -f 1)" \
    "2 no GPU found: NVIDIA's driver (libcuda.so.1) is not there"
driver 1
check_equal "a GPU that the toolkit does not see: exit code, one line" "$(test_gpu test-gpu)" "2 find_gpu: no GPU found"
check_equal "nothing else is compiled for it" "$(grep -c -e ' -c -o ' "$work/compiled")" 2
echo 'echo "GPU 0: a stand-in"' | stand_in "$BUILD/cuda/find_gpu"
make -n test-gpu >"$work/out" 2>&1
for test in core/ranks/test_parallel_gpu test_gpt2 test_gpt2_124M; do
    check_contains "on a GPU $test is run" " $BUILD/cuda/bf16/$test " "$work/out"
done
check_contains "on a GPU: the tests with the smallest shapes under compute-sanitizer" \
    "$BUILD/cuda/bf16/attention/test_linear_gpu=$(sed -n 's/^VALGRIND_test_linear_gpu *:= *//p' dev/cuda_on_cpu/harness.mk)" "$work/out"
check_contains "on a GPU: other tests in bf16" ",rounding_is_fair" "$work/out"
check_equal "on a GPU: not those of minutes" "$(grep -c '_124M=' "$work/out")" 0

# ---- compute-sanitizer: both tools for every program; what they find is counted
printf 'echo "$TEST_ONLY" >>"%s"\necho "1 passed, 0 failed"\n' "$work/sanitized" | stand_in "$work/one_test"
printf 'echo "FAIL it"\necho "0 passed, 1 failed"\nexit 1\n' | stand_in "$work/bad_test"
mkdir "$work/nvidia"
stand_in "$work/nvidia/compute-sanitizer" <<END
[ "\$1 \$3 \$4 \$5" = "--tool --error-exitcode 99 --log-file" ] || exit 3
echo "\$2" >>"$work/sanitized"
echo "report of \$2" >"\$6"
"\$7" || exit
[ "\$2" != "\$FINDS" ] || exit 99
END
sanitize() { # a tool that finds something, or -; then SANITIZER_TESTS
    : >"$work/sanitized"
    PATH="$work/nvidia:$PATH" FINDS=$1 SANITIZER_TESTS=$2 count scripts/test_sanitizer.sh
}
check_equal "compute-sanitizer finds nothing" "$(sanitize - "$work/one_test=a,b $work/one_test=")" "0: 4 passed, 0 failed, 0 skipped"
check_equal "its tools and tests" "$(tr '\n' ' ' <"$work/sanitized")" "memcheck a,b racecheck a,b memcheck  racecheck  "
check_equal "it finds a race" "$(sanitize racecheck "$work/one_test=a")" "1: 1 passed, 1 failed, 0 skipped"
check_contains "and shows it" "report of racecheck" "$work/out"
check_equal "a test that fails under it" "$(sanitize - "$work/bad_test=a")" "1: 0 passed, 2 failed, 0 skipped"
check_equal "it is not installed" "$(PATH="$work/bin" SANITIZER_TESTS="$work/one_test=a" count scripts/test_sanitizer.sh)" \
    "0: 0 passed, 0 failed, 1 skipped"

cd "$root" || exit 1
summary
