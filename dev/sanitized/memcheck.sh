#!/bin/sh
# A tiny model under valgrind's memcheck, through every program that reads or writes one, with every attention; nothing may
# read what was never written, or past the end of a block. Part of dev/sanitized/run.sh. Last line: `N passed, N failed`.
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
. scripts/checks.sh
. scripts/tiny_shard.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
make_shard "$work/train.bin" 1500 1
make_shard "$work/val.bin" 200 3
small="--layers 2 --heads 2 --width 16 --context 32 --vocab 61 --sequence 16 --batch 2 --warmup 1 --lr 1e-3"
watched() { valgrind --quiet --error-exitcode=99 "$@"; }
train() { # run, words
    run=$1
    shift
    watched ./train_gpt2 --train "$work/train.bin" --val "$work/val.bin" --val-every 2 --out "$work/$run" "$@"
}
for attention in softmax elu cosformer favor rff slay uniform yat yat-spherical; do
    # shellcheck disable=SC2086
    check "$attention: training" train $attention $small --attention $attention --steps 3
    check "$attention: sampling" watched ./sample_gpt2 "$work/$attention" --tokens 20 --prompt-ids 1,2,3
done
check "resuming" watched ./train_gpt2 --resume "$work/slay" --steps 5
check "inspecting" watched ./inspect "$work/slay"
# shellcheck disable=SC2086
check "dropout, recomputing, Muon" train muon $small --steps 3 --dropout 0.1 --recompute blocks --optimizer muon
check "exporting to llm.c" watched ./export_llmc "$work/softmax" "$work/model.bin"
check "starting from llm.c" train llmc --init "$work/model.bin" --steps 1 --sequence 16 --batch 2
check "encoding" watched ./tokenize --vocab dev/fixtures/tokenizer_small.tiktoken dev/fixtures/tokenizer_text.txt --out "$work/text"
summary
