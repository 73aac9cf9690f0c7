#!/bin/sh
# Hostile surroundings as the programs meet them: fifos in the place of files, outputs that are devices, paths of any bytes,
# sizes that no file bears out. Needs the programs; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
for program in train_gpt2 sample_gpt2 export_gguf inspect tokenize; do
    [ -x ./$program ] || { echo "./$program is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
done
. scripts/train_checks.sh

make_shard "$work/train.bin" 1500 1
sizes="--layers 1 --heads 2 --width 16 --context 32 --vocab 61"
small="--train $work/train.bin $sizes --sequence 16 --batch 2 --warmup 1 --quiet"

limited() { # command: one that waits for ever is ended, long after any that works would have
    timeout 120 "$@" >"$work/out" 2>"$work/err" </dev/null
}
works() { # name, command
    name=$1
    shift
    limited "$@"
    code=$?
    check_equal "$name: exit code ($(head -c 300 "$work/err"))" "$code" 0
}
refuses() { # name, part of the message, command
    name=$1 part=$2
    shift 2
    limited "$@"
    check_equal "$name: exit code" $? 1
    check_equal "$name: messages" "$(grep -vc 'warning: ' "$work/err")" 1
    check_contains "$name: message" "$part" "$work/err"
}

# ---- paths of any bytes: what was saved of them leads back to the data

any_bytes() {
    strange=$(printf '%s/d\377\303(%%41' "$work")
    mkdir "$strange" 2>/dev/null || { echo "skipped: this file system has no names that are not UTF-8"; return; }
    make_shard "$strange/a.bin" 900 2
    # shellcheck disable=SC2086
    works "a strange path" ./train_gpt2 $sizes --sequence 16 --batch 2 --warmup 1 --quiet --train "$strange" --steps 2 \
        --out "$strange/run"
    check_contains "the path is saved" '/d%FF%C3(%2541"' "$strange/run/step_00000002/state.json"
    check_equal "its event is told" "$(grep -c '"event": "saved"' "$strange/run/metrics.jsonl")" 1
    works "resumed from there" ./train_gpt2 --resume "$strange/run" --steps 4 --quiet
    check_equal "which goes on" "$(ls -d "$strange/run/step_00000004")" "$strange/run/step_00000004"
}
any_bytes

# ---- fifos in the place of files: nothing waits for them

# shellcheck disable=SC2086
fifos() {
    works "a run" ./train_gpt2 $small --steps 2 --out "$work/run"
    mkdir "$work/fifo" "$work/lock"
    mkfifo "$work/fifo/metrics.jsonl" "$work/lock/lock" "$work/pipe"
    refuses "metrics.jsonl" "metrics.jsonl: expected a regular file, found a pipe" ./train_gpt2 $small --out "$work/fifo"
    works "lock" ./train_gpt2 $small --steps 1 --out "$work/lock"
    refuses "shard" "pipe: expected a regular file" ./train_gpt2 $small --train "$work/pipe" --out "$work/none"
    refuses "vocabulary" "pipe: expected a regular file" ./train_gpt2 $small --tokenizer "$work/pipe" --out "$work/none"
    refuses "model" "$work/pipe" ./train_gpt2 $small --init "$work/pipe" --out "$work/none"
    for file in config.json state.json model.safetensors optimizer.safetensors; do
        rm -rf "$work/copy"
        cp -r "$work/run" "$work/copy"
        rm "$work/copy/step_00000002/$file"
        mkfifo "$work/copy/step_00000002/$file"
        refuses "$file" "$file: expected a regular file" ./train_gpt2 --resume "$work/copy" --quiet
        refuses "$file, inspected" "$file: expected a regular file" ./inspect "$work/copy/step_00000002"
    done
    cp -r "$work/run" "$work/newest"
    mkfifo "$work/newest/step_00000003"
    works "a checkpoint" ./sample_gpt2 "$work/newest" --prompt-ids 1 --tokens 1
    check_contains "a checkpoint: passed over" "step_00000003" "$work/err"
}
fifos

# ---- outputs: devices and pipes stay what they are (through links, so that the machine's own are in no danger)

outputs() {
    head -c 5000 dev/fixtures/tokenizer_text.txt >"$work/text.txt"
    ln -s /dev/null "$work/null"
    works "a device as output" ./tokenize train --vocab 300 --out "$work/null" "$work/text.txt"
    check_equal "the device's name is a link still" "$(readlink "$work/null")" /dev/null
    refuses "a pipe that nobody reads" "nobody at its other end" ./tokenize train --vocab 300 --out "$work/pipe" "$work/text.txt"
    works "a vocabulary" ./tokenize train --vocab 300 --out "$work/vocab.tiktoken" "$work/text.txt"
    cat "$work/pipe" >"$work/received" &
    reader=$!
    exec 3>"$work/pipe" # now somebody reads
    works "a pipe that somebody reads" ./tokenize train --vocab 300 --out "$work/pipe" "$work/text.txt"
    exec 3>&-
    wait "$reader"
    check_same_file "all of it arrived" "$work/received" "$work/vocab.tiktoken"
    touch "$work/real"
    ln -s real "$work/link"
    works "a link as output" ./tokenize train --vocab 300 --out "$work/link" "$work/text.txt"
    check_equal "the link stays" "$(readlink "$work/link")" real
    check_same_file "what it leads to is new" "$work/real" "$work/vocab.tiktoken"
    refuses "a directory as output" "found a directory" ./tokenize train --vocab 300 --out "$work/fifo" "$work/text.txt"
}
outputs

# ---- --strict: only weights that carry checksums

strict_everywhere() { # name, part of the message, model: every program refuses it with --strict, and reads it without
    for program in "./sample_gpt2 $3 --prompt-ids 1 --tokens 1" "./inspect $3" "./export_llmc $3 $work/strict.bin" \
        "./train_gpt2 --train $work/train.bin --sequence 16 --batch 2 --steps 0 --quiet --force --init $3 --out $work/strict_run"; do
        # shellcheck disable=SC2086
        works "$1: without --strict: ${program%% *}" $program
        # shellcheck disable=SC2086
        refuses "$1: ${program%% *}" "$3: expected checksums for everything, as --strict demands, found $2; leave --strict out" $program --strict
    done
}
# shellcheck disable=SC2086
strict_weights() {
    works "a run with checksums" ./train_gpt2 $small --steps 2 --out "$work/sums" --strict
    works "resumed with --strict" ./train_gpt2 --resume "$work/sums" --steps 3 --quiet --strict
    works "sampled with --strict" ./sample_gpt2 "$work/sums" --prompt-ids 1 --tokens 1 --strict
    cp -r "$work/sums/step_00000003" "$work/bare"
    rm "$work/bare/state.json" "$work/bare/optimizer.safetensors"
    strict_everywhere "no state.json" "no state.json with them" "$work/bare"
    check "an llm.c file" ./export_llmc "$work/sums" "$work/llmc.bin"
    works "llm.c's file, without --strict" ./sample_gpt2 "$work/llmc.bin" --prompt-ids 1 --tokens 1
    refuses "llm.c's file" "found a file of llm.c's, which has none; leave --strict out" ./sample_gpt2 "$work/llmc.bin" --prompt-ids 1 --strict
    sed 's/xxh3:transformer.wpe/xxxx:transformer.wpe/' "$work/bare/model.safetensors" >"$work/unsigned.safetensors"
    works "one tensor without a checksum, without --strict" ./inspect "$work/unsigned.safetensors"
    refuses "one tensor without a checksum" "found tensors without; leave --strict out" ./inspect "$work/unsigned.safetensors" --strict
}
strict_weights

# ---- sizes

# A configuration of a million positions over a file with 32, where memory for a model of that size is not to be had.
# shellcheck disable=SC2086
huge_configuration() {
    works "a wide model" ./train_gpt2 $small --width 512 --steps 1 --out "$work/wide"
    mkdir "$work/huge"
    mv "$work/wide/step_00000001/model.safetensors" "$work/huge"
    sed 's/"n_positions": 32/"n_positions": 1048576/' "$work/wide/step_00000001/config.json" >"$work/huge/config.json"
    if (ulimit -v 2000000 && ./train_gpt2 --help >/dev/null 2>&1); then ulimit -v 2000000; fi
    shapes="tensor transformer.wpe.weight: expected shape (1048576,512), found (32,512)"
    refuses "--init" "$shapes" ./train_gpt2 --train "$work/train.bin" --quiet --init "$work/huge" --out "$work/none"
    refuses "sampling" "$shapes" ./sample_gpt2 "$work/huge" --prompt-ids 1
    refuses "exporting" "$shapes" ./export_gguf "$work/huge" "$work/huge.gguf"
}
# shellcheck disable=SC2086
refuses "--context" "option --context: expected a whole number from 1 to 1048576" \
    ./train_gpt2 $small --context 1048577 --out "$work/none"
huge_configuration

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
