#!/bin/sh
# The inputs kept in dev/fuzz/corpus through every fuzz target, without libFuzzer (`make fuzz` is for new ones); and
# damaged files before the report page.
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
. scripts/checks.sh
work=$(mktemp -d) || exit 1
BUILD=${BUILD:-build}
trap 'rm -rf "$work"' EXIT

for source in dev/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    name=${name#fuzz_}
    check_equal "$name: inputs accepted" "$("$BUILD/dev/fuzz/fuzz_$name" "dev/fuzz/corpus/$name"/* 2>&1 | tail -n 3)" \
        "$(find "dev/fuzz/corpus/$name" -type f | wc -l) passed, 0 failed"
done
check_equal "a corpus for each target" "$(ls dev/fuzz/corpus)" "$(for source in dev/fuzz/fuzz_*.c; do basename "$source" .c | sed s/fuzz_//; done)"
check "damaged files before the report page" dev/fuzz/fuzz_report.py --runs 200
summary
