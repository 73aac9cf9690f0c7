#!/bin/sh
# Tests of dev/experiments: a small corpus, then dev/experiments/test_experiments.py. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
for program in ./train_gpt2 build/dev/attention_task; do
    [ -x $program ] || { echo "$program is missing; run make $program"; echo "0 passed, 1 failed"; exit 1; }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive TOY="$work"
{
    ./stories --bytes 100k --seed 3 --out "$work/train.txt" --validation-stories 5 --validation-out "$work/val.txt"
    ./tokenize train --vocab 300 --out "$work/vocab.tiktoken" "$work/train.txt"
    ./tokenize encode --vocab-file "$work/vocab.tiktoken" --validation-file "$work/val.txt" --out "$work/toy" "$work/train.txt"
} >"$work/out" 2>&1 || { tail -n 3 "$work/out"; echo "0 passed, 1 failed"; exit 1; }
python3 dev/experiments/test_experiments.py >"$work/out" 2>&1
code=$?
[ $code = 0 ] && tail -n 1 "$work/out" || cat "$work/out"
exit $code
