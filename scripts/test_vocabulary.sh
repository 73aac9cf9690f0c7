#!/bin/sh
# Tests of what becomes of a vocabulary: every checkpoint holds it, whatever happens to the file it came from; runs that
# continue or start from a checkpoint take it over; exports say that a text begins with end-of-text. And of checkpoints whose
# optimizer is damaged, which are whole models still. Needs the programs; makes its own data. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
. scripts/train_checks.sh

{
    ./stories --stories 60 --seed 3 --out "$work/text" &&
        ./tokenize train --vocab 400 --out "$work/kept" "$work/text" &&
        ./tokenize train --vocab 420 --out "$work/other" "$work/text" &&
        ./tokenize encode --vocab-file "$work/kept" --out "$work/shard" "$work/text" &&
        ./tokenize encode --vocab-file "$work/kept" --vocab 300 --out "$work/short" "$work/text"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }
shard=$work/shard_train_000000.bin
sizes="--layers 1 --heads 2 --width 16 --context 32"
common="--batch 2 --warmup 2 --val-tokens 500 --quiet"

train() { # options; standard output and error go to $work/out and $work/err
    ./train_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null
}
works() { # name, options
    name=$1
    shift
    train "$@"
    check_equal "$name: exit code ($(head -c 300 "$work/err"))" $? 0
}
newest() { # run: the directory of its newest checkpoint
    find "$1" -maxdepth 1 -name 'step_*' | sort | tail -n 1
}
steps_so_far() { # run
    grep -c '"type": "step"' "$1/metrics.jsonl" 2>/dev/null || true
}
start_run() { # run, options: one that ends by a signal only
    # shellcheck disable=SC2086
    ./train_gpt2 --train "$shard" --tokenizer "$work/vocab" $sizes $common --steps 1G --save-every 0 --out "$1" \
        >/dev/null 2>"$work/err" </dev/null &
    running=$!
    for _ in $(seq 1200); do
        [ "$(steps_so_far "$1")" -ge 3 ] 2>/dev/null && return
        sleep 0.05
    done
    fail "waiting for a step of $1" "$(cat "$work/err")"
}
end_run() { # name
    kill -TERM "$running"
    wait "$running" 2>/dev/null
    check_equal "$1: exit code ($(head -c 300 "$work/err"))" $? 143
    running=""
}
has_vocabulary() { # name checkpoint: it is the kept one, for every program
    check_same_file "$1: tokenizer.tiktoken" "$2/tokenizer.tiktoken" "$work/kept"
    check_contains "$1: tokenizer.json" '"content":"<|endoftext|>"' "$2/tokenizer.json"
    check_contains "$1: tokenizer_config.json" '"add_bos_token":true' "$2/tokenizer_config.json"
    for file in tokenizer.tiktoken tokenizer.json tokenizer_config.json; do
        check_contains "$1: checksum of $file" "\"$file\"" "$2/state.json"
    done
    ./inspect "$2" >"$work/out" 2>&1
    check_equal "$1: all of it verifies" $? 0
    ./sample_gpt2 "$2" --prompt "The old" --tokens 2 >"$work/out" 2>&1 </dev/null
    check_equal "$1: it makes text ($(head -c 300 "$work/out"))" $? 0
}
reports_bytes() { # name run: the last validation knows how long the tokens' text is
    check_equal "$1: bits per byte" \
        "$(sed -n 's/.*"type": "validation".*"bits_per_byte": \([0-9]\).*/number \1/p' "$2/metrics.jsonl" | tail -n 1 | cut -c 1-6)" number
}

# ---- the file it came from is removed, or replaced by another, while the run goes on

after() { # name, a command that does something to $work/vocab
    run=$work/$1
    cp "$work/kept" "$work/vocab"
    start_run "$run"
    eval "$2"
    end_run "$1"
    has_vocabulary "$1" "$(newest "$run")"
    # shellcheck disable=SC2086
    works "$1, resumed" --resume "$run" --val "$shard" --steps $(($(steps_so_far "$run") + 2)) --quiet
    has_vocabulary "$1, resumed" "$(newest "$run")"
    reports_bytes "$1, resumed" "$run"
}
after removed 'rm "$work/vocab"'
after replaced 'cp "$work/other" "$work/vocab"'
after emptied ': >"$work/vocab"'

# ---- a run that starts from a checkpoint, with and without a word about the vocabulary

# shellcheck disable=SC2086
{
    works "a run to start from" --train "$shard" --tokenizer "$work/kept" $sizes $common --steps 1 --out "$work/base"
    works "init" --init "$work/base" --train "$shard" --val "$shard" $common --steps 2 --out "$work/init"
    has_vocabulary "init" "$(newest "$work/init")"
    reports_bytes "init" "$work/init"
    works "init with its vocabulary" --init "$work/base" --tokenizer "$work/kept" --train "$shard" $common --steps 1 --out "$work/init_same"
    has_vocabulary "init with its vocabulary" "$(newest "$work/init_same")"
    ./tokenize train --vocab 300 --out "$work/small" "$work/text" >/dev/null 2>&1
    train --init "$work/base" --tokenizer "$work/small" --train "$shard" $common --steps 1 --out "$work/init_small"
    check_equal "init with a vocabulary of another size: exit code" $? 1
    check_equal "init with a vocabulary of another size: one line" "$(wc -l <"$work/err" | tr -d ' ')" 1
    check_contains "init with a vocabulary of another size" "$work/small" "$work/err"
    works "the first ranks of a vocabulary" --tokenizer "$work/kept" --vocab 300 --train "$work/short_train_000000.bin" \
        $sizes $common --steps 1 --out "$work/first"
    check_equal "no more ranks are saved than the model has" "$(wc -l <"$work/first/step_00000001/tokenizer.tiktoken" | tr -d ' ')" 299
    ./sample_gpt2 "$work/first" --prompt "The old" --tokens 2 >"$work/out" 2>&1 </dev/null
    check_equal "the first ranks: they make text ($(head -c 300 "$work/out"))" $? 0
    works "no vocabulary" --vocab 400 --train "$shard" $sizes $common --steps 1 --out "$work/none"
    check_equal "no vocabulary: no files of one" "$(find "$work/none" -name 'tokenizer*')" ""
}

# ---- GGUF: what is put before a text

value_in() { # file key: the bytes after the key, its type first
    at=$(LC_ALL=C grep -aobF "$2" "$1" | cut -d : -f 1)
    dd if="$1" bs=1 skip=$((at + ${#2})) count="$3" 2>/dev/null | od -An -tx1 | tr -d ' \n'
}
adds_bos() { # name model expected
    ./export_gguf "$2" "$work/model.gguf" --tokenizer "$work/kept" >"$work/out" 2>&1
    check_equal "$1: exported ($(head -c 300 "$work/out"))" $? 0
    check_equal "$1: add_bos_token" "$(value_in "$work/model.gguf" tokenizer.ggml.add_bos_token 5)" "07000000$3"
    check_equal "$1: bos_token_id" "$(value_in "$work/model.gguf" tokenizer.ggml.bos_token_id 8)" 040000008f010000
}
adds_bos "trained here" "$work/init" 01
adds_bos "trained here, without a vocabulary" "$work/none" 01
cp -r "$(newest "$work/init")" "$work/stateless" && rm "$work/stateless/state.json"
adds_bos "trained here, its state removed" "$work/stateless" 01
mkdir "$work/plain" && cp "$work/stateless/config.json" "$work/stateless/model.safetensors" "$work/plain"
adds_bos "a Hugging Face directory" "$work/plain" 00
echo '{"model_max_length": 1024}' >"$work/plain/tokenizer_config.json"
adds_bos "a Hugging Face directory with a tokenizer" "$work/plain" 00

# ---- the newest checkpoint's optimizer is damaged: its model is not

# shellcheck disable=SC2086
works "two checkpoints" --train "$shard" --tokenizer "$work/kept" $sizes $common --steps 8 --save-every 4 --lr 0.05 --out "$work/hurt"
last=$work/hurt/step_00000008
sample() { ./sample_gpt2 "$1" --prompt "The old" --tokens 8 --temperature 0 --no-stats 2>"$work/err" </dev/null; }
text=$(sample "$last")
./export_gguf "$last" "$work/whole.gguf" >/dev/null
check_damage() { # name
    check_equal "$1: text from the newest weights" "$(sample "$work/hurt")" "$text"
    check_equal "$1: not a word about it" "$(cat "$work/err")" ""
    ./export_gguf "$work/hurt" "$work/hurt.gguf" >/dev/null 2>"$work/err"
    check_equal "$1: export_gguf has no warning" "$(cat "$work/err")" ""
    check_same_file "$1: export_gguf takes the newest weights" "$work/hurt.gguf" "$work/whole.gguf"
    rm -rf "$work/from_hurt"
    # shellcheck disable=SC2086
    works "$1: --init" --init "$work/hurt" --train "$shard" $common --steps 1 --warmup 0 --lr 0 --weight-decay 0 --out "$work/from_hurt"
    check_equal "$1: --init has no warning" "$(cat "$work/err")" ""
    check_same_file "$1: --init takes the newest weights" "$work/from_hurt/step_00000001/model.safetensors" "$last/model.safetensors"
    ./inspect "$last" >"$work/out" 2>"$work/err"
    check_equal "$1: inspect's exit code" $? 1
    check_equal "$1: inspect says one line" "$(wc -l <"$work/err" | tr -d ' ')" 1
    check_contains "$1: inspect names the file" "optimizer.safetensors" "$work/err"
    check_contains "$1: inspect shows the model" "transformer.ln_f.bias" "$work/out"
    ./inspect "$work/hurt" >"$work/out" 2>"$work/err"
    check_equal "$1: inspect of the run: exit code" $? 1
    check_contains "$1: inspect of the run" "the model verified, damaged: " "$work/out"
}
cp -r "$work/hurt" "$work/resumed"
printf '\377\377' | dd of="$last/optimizer.safetensors" bs=1 seek=9000 conv=notrunc 2>/dev/null
check_damage "a damaged optimizer"
cp "$last/optimizer.safetensors" "$work/resumed/step_00000008"
works "--resume" --resume "$work/resumed" --steps 8 --quiet
check_contains "--resume needs the optimizer: the checkpoint before is taken" "step_00000004" "$work/err"
check_same_file "--resume makes the lost steps again" "$work/resumed/step_00000008/model.safetensors" "$last/model.safetensors"
rm "$last/optimizer.safetensors"
check_damage "a missing optimizer"

# ---- a file that only other programs read is damaged: here nothing misses it, but inspect tells

cp -r "$work/base" "$work/scratched"
printf 'x' | dd of="$work/scratched/step_00000001/tokenizer.json" bs=1 seek=30 conv=notrunc 2>/dev/null
sample "$work/scratched" >/dev/null
check_equal "a damaged tokenizer.json: text" "$?$(cat "$work/err")" 0
works "a damaged tokenizer.json: --resume" --resume "$work/scratched" --steps 2 --quiet
has_vocabulary "a damaged tokenizer.json: the next checkpoint" "$work/scratched/step_00000002"
./inspect "$work/scratched/step_00000001" >"$work/out" 2>"$work/err"
check_equal "a damaged tokenizer.json: inspect's exit code" $? 1
check_contains "a damaged tokenizer.json: inspect names it" "tokenizer.json" "$work/err"
check_contains "a damaged tokenizer.json: inspect shows the optimizer" "transformer.ln_f.bias.v" "$work/out"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
