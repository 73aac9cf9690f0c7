#!/bin/sh
# Standard output on a full disk: every program says so in one line and ends with exit code 1, however it ends. Needs the
# programs and /dev/full. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh

[ -c /dev/full ] || { echo "skipped: there is no /dev/full"; echo "0 passed, 0 failed"; exit 0; }

fails() { # name, then a command whose output goes to a full disk
    name=$1
    shift
    "$@" >/dev/full 2>"$work/err" </dev/null
    check_equal "$name: exit code" "$?" 1
    check_equal "$name: one line" "$(grep -c 'standard output: cannot write' "$work/err")$(grep -c 'cannot' "$work/err")" 11
}

{
    ./stories --stories 60 --seed 3 --out "$work/text" &&
        ./tokenize train --vocab 300 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/shard" "$work/text" &&
        ./train_gpt2 --train "$work/shard_train_000000.bin" --tokenizer "$work/vocab" --layers 1 --heads 1 --width 16 \
            --context 16 --batch 2 --steps 1 --warmup 1 --out "$work/run"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }

for program in train_gpt2 sample_gpt2 inspect export_gguf export_llmc stories tokenize; do
    fails "$program --help" "./$program" --help
done
fails "tokenize train --help" ./tokenize train --help
fails "the list of attentions" ./train_gpt2 --attention list
fails "inspect of a run" ./inspect "$work/run"
fails "inspect of a file" ./inspect "$work/shard_train_000000.bin"
fails "a sample" ./sample_gpt2 "$work/run" --prompt Once --tokens 16777216 --no-stop --no-stats # stops at once
fails "samples" ./sample_gpt2 "$work/run" --prompt Once --tokens 3 --samples 1000000 --no-stats
fails "a sample in numbers" ./sample_gpt2 "$work/run" --prompt-ids 1,2 --tokens 3 --no-stats
fails "a loss" ./sample_gpt2 "$work/run" --loss "$work/shard_train_000000.bin" --loss-tokens 64 --no-stats
fails "stories" ./stories --stories 3
fails "tokens as text" ./tokenize decode --vocab-file "$work/vocab" "$work/shard_train_000000.bin"
fails "what a vocabulary holds" ./tokenize info "$work/vocab"
fails "an exported model" ./export_gguf "$work/run" "$work/model.gguf"

# The message of what went wrong first stays alone.
./inspect "$work/none" >/dev/full 2>"$work/err"
check_equal "another error: exit code" "$?" 1
check_equal "another error: one line" "$(wc -l <"$work/err" | tr -d ' ')$(grep -c 'none' "$work/err")" 11

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
