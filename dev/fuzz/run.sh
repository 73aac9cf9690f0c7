#!/bin/bash
# Fuzzes every reader of files and options with libFuzzer, address and undefined-behaviour sanitizers.
#   dev/fuzz/run.sh [--minutes N] [--runs N] [--at-once N] [TARGET]...
# --minutes: of each target (2). --runs: instead, so many executions of each, counted over all calls in dev/fuzz/results.tsv.
# --at-once: targets that run at the same time (the number of cores). What is found by the way is kept in build/fuzz/found, so
# that the next call goes on from there; an input that breaks a target stays in build/fuzz/broken, and fails this script.
. "$(dirname "$0")/../../scripts/usage.sh"
cd "$(dirname "$0")/../.." || exit 1
minutes=2 runs=0 at_once=$(nproc) names=()
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --runs | --at-once)
        [ $# -ge 2 ] || refuse "$1 needs a value; see --help"
        case $2 in *[!0-9]* | '') refuse "$1: expected a whole number, found $2; see --help" ;; esac
        declare "$(echo "${1#--}" | tr - _)=$2"
        shift
        ;;
    -*) refuse "unknown option $1; see --help" ;;
    *) [ -e "dev/fuzz/fuzz_$1.c" ] || refuse "there is no target $1; see dev/fuzz" && names+=("$1") ;;
    esac
    shift
done
[ ${#names[@]} != 0 ] || for source in dev/fuzz/fuzz_*.c; do
    name=${source#dev/fuzz/fuzz_} && names+=("${name%.c}")
done

build=build/fuzz
works() { echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }' | clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null; }
if ! works; then
    version=$(clang --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
    sudo=$([ "$(id -u)" = 0 ] || echo sudo)
    echo "fuzz: will install clang, libclang-rt-${version:-14}-dev, libomp-dev (${sudo:+$sudo }apt-get install)"
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang "libclang-rt-${version:-14}-dev" libomp-dev >/dev/null
    works || refuse "clang with libFuzzer does not work here; install clang and libclang-rt-dev by hand"
fi
sanitizers=address,undefined,float-cast-overflow
# Without trace-cmp, which calls out at every comparison: half of the time went there, and the mutators know the structure.
make -s setup CC=clang BUILD=$build &&
    make -s -j"$(nproc)" CC=clang BUILD=$build FUZZ_DRIVER=mutators fuzz-programs \
        OPT="-O2 -fno-omit-frame-pointer" EXTRA_CFLAGS="-fsanitize=fuzzer-no-link,$sanitizers -fno-sanitize-coverage=trace-cmp -fno-sanitize-recover=all" \
        EXTRA_LIBS="-fsanitize=fuzzer,$sanitizers" || exit 1

# The longest input of a target: room for its structure, and no more, for long inputs take long.
longest() {
    case $1 in encode | keys) echo 256 ;; gguf | options | vocabulary | metrics) echo 512 ;; safetensors) echo 1024 ;; checkpoint) echo 4096 ;; *) echo 2200 ;; esac
}
# DATE TARGET EXECUTIONS SECONDS BROKEN: added to what the target has done on that day, a row of results.tsv.
add_result() {
    {
        flock 9
        awk -F '\t' -v OFS='\t' -v row="$*" '
            BEGIN { split(row, new, " ") }
            $1 == new[1] && $2 == new[2] { for (i = 3; i <= 5; i++) $i += new[i]; met = 1 }
            { print }
            END { if (!met) print new[1], new[2], new[3], new[4], new[5] }' dev/fuzz/results.tsv >build/fuzz/results.new &&
            cp build/fuzz/results.new dev/fuzz/results.tsv
    } 9>build/fuzz/results.lock
}
export -f add_result
# What was freed stays out of use for some ten executions: a longer quarantine misses the cache at every allocation.
export ASAN_OPTIONS=malloc_context_size=1:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:allocator_release_to_os_interval_ms=-1
export OMP_NUM_THREADS=1
# shellcheck disable=SC2016
one='name=$1 minutes=$2 left=$3 longest=$4 build=build/fuzz
mkdir -p $build/found/$name $build/broken
start=$(date +%s)
nice $build/dev/fuzz/fuzz_$name -max_len=$longest -timeout=20 -malloc_limit_mb=1024 -rss_limit_mb=4096 \
    -reload=0 -print_final_stats=1 -artifact_prefix=$build/broken/$name- -runs=$left $([ $left != -1 ] || echo -max_total_time=$((60 * minutes))) \
    $build/found/$name dev/fuzz/corpus/$name >$build/$name.log 2>&1
code=$?
count=$(sed -n "s/^stat::number_of_executed_units: *//p" $build/$name.log)
broken=$([ $code = 0 ] || [ $code = 72 ] && echo 0 || echo 1) # 72: somebody ended it
add_result "$(date -u +%F)" $name "${count:-0}" $(($(date +%s) - start)) $broken
echo "$name: ${count:-0} executions$([ $broken = 0 ] || echo "; BROKEN, see $build/$name.log and $build/broken")"
[ $broken = 0 ]'
done_before() { awk -F '\t' -v name="$1" '$2 == name { sum += $3 } END { print sum + 0 }' dev/fuzz/results.tsv; }
[ -e dev/fuzz/results.tsv ] || printf 'date\ttarget\texecutions\tseconds\tbroken\n' >dev/fuzz/results.tsv
for name in "${names[@]}"; do
    left=-1
    [ "$runs" = 0 ] || left=$((runs - $(done_before "$name")))
    [ "$left" = -1 ] || [ "$left" -gt 0 ] || continue
    printf '%s\n' "$name" "$minutes" "$left" "$(longest "$name")"
done | xargs -r -n 4 -P "$at_once" bash -c "$one" bash
status=$?
for name in "${names[@]}"; do printf '%-12s %12s executions in all\n' "$name" "$(done_before "$name")"; done
exit $status
