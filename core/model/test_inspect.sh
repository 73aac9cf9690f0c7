#!/bin/sh
# inspect: every kind of thing it knows is described, every kind of damage ends in one line and exit code 1.
# INSPECT and MAKER name other builds of the two programs it uses.
set -u
inspect=${INSPECT:-./inspect}
maker=${MAKER:-build/core/model/test_checkpoint}
passed=0 failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT INT TERM

. scripts/checks.sh

# shows NAME PATH TEXT...: exit code 0, nothing on standard error, every TEXT in the output
shows() {
    name=$1 path=$2
    shift 2
    "$inspect" "$path" >"$work/out" 2>"$work/err"
    check_equal "$name: exit code" $? 0
    check_equal "$name: standard error" "$(cat "$work/err")" ""
    for text in "$@"; do check_contains "$name" "$text" "$work/out"; done
}

# refuses NAME PATH TEXT: exit code 1, one line on standard error that contains TEXT
refuses() {
    check_refused "$1" "$3" "$inspect" "$2"
}

# int32 VALUE...: little-endian numbers
int32() {
    for value in "$@"; do
        printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $((value & 255)) $((value >> 8 & 255)) $((value >> 16 & 255)) $((value >> 24 & 255)))"
    done
}

# safetensors HEADER: length, header, and the bytes on standard input
safetensors() {
    int32 ${#1} 0
    printf '%s' "$1"
    cat
}

# flip FILE OFFSET: replaces a byte
flip() {
    printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

"$maker" --make "$work/run" || exit 1
step=$work/run/step_00000002
shows "a run" "$work/run" "2 checkpoints" "0.333333" "verified"
shows "a checkpoint" "$step" "gpt2" "channels C                   4" "softmax" "every tensor verified" "step                         2" \
    "transformer.h.0.attn.c_attn.weight F32   (4,12)" "transformer.wte.weight.m"
check_equal "a checkpoint: the tables of weights and of moments have titles" \
    "$(grep -cE '^name +dtype shape +mean +std +min +max$' "$work/out")" 2
shows "a safetensors file" "$step/model.safetensors" "tensors                      17" "every tensor verified"

cp -r "$step" "$work/copy"
flip "$work/copy/config.json" 30
refuses "a changed configuration" "$work/copy" "config.json"
rm "$work/copy/state.json" "$work/copy/optimizer.safetensors"
cp "$step/config.json" "$work/copy"
shows "a directory without state" "$work/copy" "none: a model to start from" "optimizer                    none"
sed 's/"n_head": 2/"n_head": 3/' "$step/config.json" >"$work/copy/config.json"
refuses "heads that do not divide" "$work/copy" "multiple of n_head = 3"
sed 's/"model_type": "gpt2"/"model_type": "slay-gpt2", "attention": {"name": "magic"}/' "$step/config.json" >"$work/copy/config.json"
refuses "an unknown attention" "$work/copy" "unknown mechanism \"magic\""
rm "$work/copy/model.safetensors"
refuses "a directory without a model" "$work/copy" "expected model.safetensors"

size=$(wc -c <"$step/model.safetensors")
flip "$step/model.safetensors" $((size - 3))
refuses "a damaged tensor" "$step" "tensor transformer.ln_f.bias: expected checksum"
refuses "a damaged file" "$step/model.safetensors" "tensor transformer.ln_f.bias: expected checksum"
refuses "a damaged checkpoint in a run" "$work/run" "1 of 2 checkpoints damaged"
check "the sound one in the run's table" grep -q "1 .* verified" "$work/stdout"
check "and the damaged one" grep -q "2 .* damaged: .*ln_f.bias" "$work/stdout"

header='{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
printf '\0\0\200\77\0\0\0\100' | safetensors "$header" >"$work/plain.safetensors"
shows "a file of other makers" "$work/plain.safetensors" "none for some or all tensors" "1.5" "(2)"
printf '\0\0\200\77\0\0\300\177' | safetensors "$header" >"$work/nan.safetensors"
refuses "a file with NaN" "$work/nan.safetensors" "tensor a: expected finite numbers"
echo '<!DOCTYPE html><html></html>' >"$work/page.safetensors"
refuses "a web page" "$work/page.safetensors" "web page"
: >"$work/empty"
refuses "an empty file" "$work/empty" "found 0"
refuses "nothing" "$work/none" "cannot open"
mkfifo "$work/fifo"
refuses "a pipe" "$work/fifo" "expected a regular file"
mkdir "$work/hollow"
refuses "an empty directory" "$work/hollow" "neither a model nor checkpoints"

{ int32 20240326 3 2 3 1 1 2 4; dd if=/dev/zero bs=1 count=$((992 + 4 * (8 + 4 + 48 + 26 + 4))) 2>/dev/null; } >"$work/model.bin"
shows "an llm.c model" "$work/model.bin" "float (version 3)" "parameters                   88" "with padding      4"
printf x >>"$work/model.bin"
refuses "an llm.c model with a byte too many" "$work/model.bin" "bytes by its header"
{ int32 20240520 1 3; dd if=/dev/zero bs=1 count=$((1012 + 6)) 2>/dev/null; } >"$work/shard.bin"
shows "a token shard" "$work/shard.bin" "tokens                       3"
printf x >>"$work/shard.bin"
refuses "a shard with a byte too many" "$work/shard.bin" "shard.bin"

check "--help" "$inspect" --help
"$inspect" >"$work/out" 2>&1
check_equal "no path: exit code" $? 1

summary
