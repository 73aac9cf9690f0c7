#!/bin/sh
# Tests of the program sample_gpt2 as its user meets it: prompts from everywhere, seeds, what goes to which stream, bad
# input. Needs the programs; makes its own tiny model. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh
. scripts/tiny_shard.sh

check_refused() { # name, what the message has to contain, then the arguments
    name=$1 part=$2
    shift 2
    ./sample_gpt2 "$@" >"$work/out" 2>"$work/err" </dev/null
    check_equal "$name: exit code" "$?" 1
    check_equal "$name: one line" "$(wc -l <"$work/err" | tr -d ' ')" 1
    check_equal "$name: nothing on standard output" "$(wc -c <"$work/out" | tr -d ' ')" 0
    grep -qF -e "$part" "$work/err"
    check_equal "$name: says \"$part\" ($(head -c 300 "$work/err"))" "$?" 0
}
train() { # run, options
    run=$1
    shift
    ./train_gpt2 --train "$work/shard_train_000000.bin" --val "$work/shard_train_000000.bin" --val-tokens 1000000 \
        --tokenizer "$work/vocab" --layers 1 --heads 2 --width 32 --context 32 --batch 4 --steps 8 --warmup 2 \
        --lr 3e-3 --out "$work/$run" "$@"
}
sample() { ./sample_gpt2 "$work/run" --tokens 12 "$@" 2>/dev/null </dev/null; }

{
    ./stories --stories 60 --seed 3 --out "$work/text" &&
        ./tokenize train --vocab 400 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/shard" "$work/text" &&
        train run && train documents --documents
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }

# ---- the same text by every way in, the same seed, other seeds
once=$(sample --prompt "The old" --seed 5)
check_equal "the same seed gives the same text" "$(sample --prompt "The old" --seed 5)" "$once"
check_equal "another seed gives another" "$([ "$(sample --prompt "The old" --seed 6)" != "$once" ] && echo other)" other
check_equal "the text starts with the prompt" "$(echo "$once" | head -c 7)" "The old"
check_equal "standard input" "$(echo "The old" | ./sample_gpt2 "$work/run" --tokens 12 --seed 5 2>/dev/null)" "$once"
echo "The old" >"$work/prompt"
check_equal "a file" "$(sample --prompt-file "$work/prompt" --seed 5)" "$once"
check_equal "one thread" "$(sample --prompt "The old" --temperature 0 --threads 1)" "$(sample --prompt "The old" --temperature 0)"
check_equal "top-k 1 is greedy" "$(sample --prompt "The old" --top-k 1)" "$(sample --prompt "The old" --temperature 0)"
check_equal "the checkpoint itself" "$(./sample_gpt2 "$work/run/step_00000008" --tokens 12 --seed 5 --prompt "The old" 2>/dev/null)" "$once"
check_equal "token numbers" "$(sample --prompt-ids 84,104,101 --tokens 0)" "The"

# ---- how much, and where it goes
check_equal "three samples have two lines between them" "$(sample --samples 3 | grep -c '^---$')" 2
check_equal "the first of several is the only one" "$(sample --prompt "The old" --seed 5 --samples 2 | sed '/^---$/,$d')" "$once"
./sample_gpt2 "$work/run" --tokens 12 --prompt x >"$work/out" 2>"$work/err" </dev/null
check_equal "statistics go to standard error" "$(grep -c 'tokens/s' "$work/err")$(grep -c 'tokens/s' "$work/out")" 20
./sample_gpt2 "$work/run" --tokens 12 --prompt x --no-stats >/dev/null 2>"$work/err" </dev/null
check_equal "and can be left out" "$(wc -c <"$work/err" | tr -d ' ')" 0
printf 'The old\nThe old\n\n' | ./sample_gpt2 "$work/run" --interactive --tokens 12 --seed 5 >"$work/out" 2>"$work/err"
check_equal "prompts one after the other" "$(head -n "$(printf '%s\n' "$once" | wc -l)" "$work/out")" "$once"
check_equal "each with its statistics" "$(grep -c '^text: ' "$work/err")" 2
check_equal "texts longer than the context go on" "$(sample --tokens 200 --no-stop --temperature 0 | wc -c | awk '{print ($1 > 150)}')" 1
./sample_gpt2 --help >"$work/out" 2>&1
check_equal "--help exits with 0" "$?" 0

# ---- weights of fewer bits: the same model but for rounding, in text and in loss
check_equal "fp32 weights are the default" "$(sample --prompt "The old" --seed 5 --weights fp32)" "$once"
printed_loss() { # run, options
    run=$1
    shift
    ./sample_gpt2 "$work/$run" "$@" 2>/dev/null </dev/null | sed -n 's/^loss \([0-9.]*\) .*/\1/p'
}
loss_of() { printed_loss run --loss "$work/shard_train_000000.bin" --weights "$1"; }
exact=$(loss_of fp32)
check_equal "the loss is one of this vocabulary" "$(echo "$exact" | awk '{print ($1 > 3 && $1 < 6)}')" 1
within() { echo "$1 $2 $3" | awk '{ d = $1 - $2; print (NF == 3 && d <= $3 && -d <= $3) }'; } # found expected bound
for run in "run --no-begin" documents; do # rows that begin anywhere, as a trainer has them by default, or at documents
    validated=$(sed -n 's/.*"type": "validation", "step": 8, "loss": \([0-9.]*\),.*/\1/p' "$work/${run%% *}/metrics.jsonl")
    # shellcheck disable=SC2086
    found=$(printed_loss $run --loss "$work/shard_train_000000.bin")
    check_equal "$run: the loss $found is the trainer's, $validated" "$(within "$found" "$validated" 0.000001)" 1
done
for kind in bf16:0.002 int8:0.01; do
    check_equal "$kind: the loss of fp32" "$(within "$(loss_of "${kind%:*}")" "$exact" "${kind#*:}")" 1
    check_equal "$kind: text" "$(sample --prompt "The old" --weights "${kind%:*}" | head -c 7)" "The old"
    check_equal "$kind: one thread or two" "$(sample --weights "${kind%:*}" --threads 1)" "$(sample --weights "${kind%:*}" --threads 2)"
done
check_equal "the loss is printed alone" "$(./sample_gpt2 "$work/run" --loss "$work/shard_train_000000.bin" 2>&1 | wc -l | tr -d ' ')" 1

# ---- logits, by value: their cross-entropy is the loss of the same tokens
make_shard "$work/row.bin" 32 7
ids=$(tail -c +1025 "$work/row.bin" | od -An -v -tu2 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//')
sample --prompt-ids "$ids" --logits "$work/logits" >"$work/out"
check_equal "logits: their shape" "$(./inspect "$work/logits" | grep -c '^ *logits .*32.*400')" 1
found=$(tail -c +$((9 + $(od -An -tu8 -N8 "$work/logits"))) "$work/logits" | od -An -v -tf4 -w4 | awk -v ids="$ids" '
    BEGIN { count = split(ids, id, " "); V = 400 }
    { row = int((NR - 1) / V); sum[row] += exp($1); if ((NR - 1) % V == id[row + 2]) at[row] = $1 }
    END { for (r = 0; r < count - 1; r++) loss += log(sum[r]) - at[r]; if (NR == count * V) printf "%.6f", loss / (count - 1) }')
loss_of_row=$(printed_loss run --loss "$work/row.bin" --no-begin)
check_equal "logits: their loss $found is $loss_of_row" "$(within "$found" "$loss_of_row" 0.000002)" 1

# ---- several samples of one prompt: each starts from the same past, also where that is the sums of a linear attention
for attention in softmax slay "favor --features exp"; do
    # shellcheck disable=SC2086
    ./train_gpt2 --train "$work/shard_train_000000.bin" --tokenizer "$work/vocab" --layers 2 --heads 2 --width 32 \
        --context 96 --batch 4 --steps 40 --warmup 4 --lr 1e-2 --attention $attention --out "$work/past" --force \
        >"$work/log" 2>&1 || tail -n 5 "$work/log"
    ./sample_gpt2 "$work/past" --prompt "The old keeper went down" --tokens 75 --no-stop --temperature 0 --samples 2 \
        >"$work/out" 2>/dev/null </dev/null
    alone=$(./sample_gpt2 "$work/past" --prompt "The old keeper went down" --tokens 75 --no-stop --temperature 0 2>/dev/null)
    check_equal "$attention: the first sample" "$(sed '/^---$/,$d' "$work/out")" "$alone"
    check_equal "$attention: the second sample" "$(sed '1,/^---$/d' "$work/out")" "$alone"
    rm -rf "$work/past"
done

# ---- GGUF for llama.cpp (its contents: make test-interop)
./export_gguf "$work/run" "$work/model.gguf" >"$work/out" 2>"$work/err"
check_equal "a GGUF file is written" "$?$(head -c 4 "$work/model.gguf")" 0GGUF
./export_gguf "$work/run" >"$work/out" 2>"$work/err"
check_equal "export_gguf wants two paths" "$?$(grep -c 'found 1 of them' "$work/err")" 11

# ---- bad input
check_refused "weights of an unknown kind" "--weights" "$work/run" --weights int7 --prompt x
check_refused "no such shards" "$work/no" "$work/run" --loss "$work/no_*.bin"
check_refused "no model" "no model" --prompt x
check_refused "no such model" "$work/nothing" "$work/nothing" --prompt x
check_refused "a text instead of a model" "$work/text" "$work/text" --prompt x
check_refused "ids beyond the vocabulary" "below 400" "$work/run" --prompt-ids 1,400
check_refused "ids that are none" "expected numbers" "$work/run" --prompt-ids 1,x
check_refused "an unknown option" "--temperature" "$work/run" --temprature 1
check_refused "a negative temperature" "--temperature" "$work/run" --temperature -1 --prompt x
check_refused "no such prompt" "$work/none" "$work/run" --prompt-file "$work/none"
check_refused "a vocabulary of another model" "vocabulary" "$work/run" --tokenizer dev/fixtures/tokenizer_small.tiktoken --prompt x

# ---- finite weights so large that sums of them are not: an llm.c model with 64 tokens, 8 positions, 2 channels
{
    printf '\306\327\064\001' # 20240326: magic; then version, positions, tokens, layers, heads, channels, tokens again
    for number in 3 8 64 1 1 2 64; do printf "\\$(printf %03o $number)\0\0\0"; done
    head -c 992 /dev/zero
    for i in $(seq $((2 * (64 + 8)))); do printf '\346\261\141\177'; done # 3e38: wte and wpe
    head -c 4000 /dev/zero
} | head -c $((1024 + 4 * (2 * (64 + 8) + 48 + 26 + 4))) >"$work/huge.bin"
{ printf '\210\330\064\001\001\0\0\0\020\0\0\0'; head -c 1044 /dev/zero; } >"$work/tokens.bin" # 20240520: a shard of 16
huge() { # name, then a sampler
    name=$1 sampler=$2
    for choice in "--top-k 40" "--top-k 40 --top-p 0.5" "--temperature 0" "--samples 2" "--logits $work/huge.logits"; do
        # shellcheck disable=SC2086
        $sampler "$work/huge.bin" --prompt-ids 1,2,3,4,5,6 --tokens 5 --no-stats $choice >"$work/out" 2>"$work/err" </dev/null
        code=$?
        check_equal "$name, $choice: exit code ($(head -c 300 "$work/err"))" $code 1
        check_equal "$name, $choice: one line" "$(wc -l <"$work/err" | tr -d ' ')$(grep -c 'huge.bin: expected finite logits' "$work/err")" 11
    done
    check_equal "$name: no logits are written" "$(find "$work" -name 'huge.logits*' | wc -l | tr -d ' ')" 0
    $sampler "$work/huge.bin" --loss "$work/tokens.bin" --no-begin --no-stats >"$work/out" 2>"$work/err" </dev/null
    code=$?
    check_equal "$name, --loss: exit code and output ($(head -c 300 "$work/err"))" "$code$(wc -c <"$work/out" | tr -d ' ')" 10
    check_equal "$name, --loss: one line" "$(wc -l <"$work/err" | tr -d ' ')$(grep -c 'huge.bin: expected finite losses' "$work/err")" 11
}
huge "huge weights" ./sample_gpt2
gpu_sampler=${BUILD:-build}/cuda_on_cpu/fast/sample_gpt2
if [ -x "$gpu_sampler" ]; then huge "huge weights on the GPU" "$gpu_sampler"; else
    skip "huge weights on the GPU" "there is no $gpu_sampler"
fi

cp -r "$work/run" "$work/bare" && rm "$work"/bare/step_*/tokenizer.tiktoken
check_refused "a damaged checkpoint" "tokenizer" "$work/bare" --prompt x

summary
