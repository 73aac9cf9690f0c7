#!/bin/sh
# What the programs say in numbers, against what the numbers mean: the console and metrics.jsonl, --quiet, --profile and
# --seconds; a slay checkpoint in inspect; llm.c's files in the sampler; training that learns whatever its options are.
# Needs the programs. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0
. scripts/checks.sh
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
{
    ./stories --stories 60 --seed 3 --out "$work/text" && ./stories --stories 20 --seed 4 --out "$work/other" &&
        ./tokenize train --vocab 400 --out "$work/vocab" "$work/text" &&
        ./tokenize encode --vocab-file "$work/vocab" --out "$work/shard" --validation-file "$work/other" "$work/text"
} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; echo "0 passed, 1 failed"; exit 1; }
sizes="--layers 2 --heads 2 --width 32 --context 32 --batch 4 --warmup 2 --lr 1e-2"
train() { # name, words: its output is in $work/NAME.out
    name=$1
    shift
    # shellcheck disable=SC2086
    ./train_gpt2 --train "$work/shard_train_000000.bin" --val "$work/shard_val_000000.bin" --tokenizer "$work/vocab" $sizes \
        --out "$work/$name" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null || fail "$name" "$(head -n 3 "$work/$name.err")"
}
field() { sed -n "s/.*\"$1\": \([-0-9.e+]*\)[,}].*/\1/p"; }
lines() { grep "\"type\": \"$1\"" "$work/$2/metrics.jsonl"; }
within() { awk -v a="$1" -v b="$2" -v bound="$3" 'BEGIN { d = a - b; print (d <= bound && d >= -bound) }'; }

# ---- the console and metrics.jsonl; a byte of text has so many bits
train loud --steps 12 --val-every 6 --attention slay --profile
# the bytes of the tokens that are predicted: all but the first; end-of-text, the last of the vocabulary, has none
bytes=$({
    sed 's/ .*//' "$work/vocab"
    echo tokens
    tail -c +1027 "$work/shard_val_000000.bin" | od -An -v -tu2 -w2
} | awk '$1 == "tokens" { tokens = 1; next }
    !tokens { length_of[NR - 1] = 3 * length($1) / 4 - gsub(/=/, "=", $1) }
    tokens { sum += length_of[$1] }
    END { print sum }')
lines validation loud | while IFS= read -r line; do
    echo "$(echo "$line" | field loss) $(echo "$line" | field tokens) $(echo "$line" | field bits_per_byte) $(echo "$line" | field perplexity)"
done >"$work/validations"
check_equal "two validations" "$(wc -l <"$work/validations" | tr -d ' ')" 2
while read -r loss tokens bits perplexity; do
    check_equal "loss $loss, $tokens tokens of $bytes bytes: bits per byte" \
        "$(within "$bits" "$(awk "BEGIN { printf \"%.9f\", $loss * $tokens / log(2) / $bytes }")" 0.000005)" 1
    check_equal "loss $loss: perplexity" "$(within "$perplexity" "$(awk "BEGIN { printf \"%.9f\", exp($loss) }")" 0.001)" 1
done <"$work/validations"
check_equal "validations on the console" "$(sed -n 's/^validation at step [0-9]*  //p' "$work/loud.out")" \
    "$(awk '{ printf "loss %.4f  perplexity %.2f  bits/byte %.4f  (%d tokens)\n", $1, $4, $3, $2 }' "$work/validations")"
sed -n 's|^step *\([0-9]*\)/12  loss *\([0-9.]*\)  norm *\([0-9.]*\)  lr \([^ ]*\) .*|\1 \2 \3 \4|p' "$work/loud.out" >"$work/steps"
check_equal "steps on the console: those of the metrics, rounded" \
    "$(lines step loud | sed 's/.*"step": \([0-9]*\),.*"loss": \([0-9.]*\), "norm": \([0-9.]*\), "lr": \([^,]*\),.*/\1 \2 \3 \4/' |
        paste -d ' ' - "$work/steps" | awk '$1 == $5 && ($2 - $6) ^ 2 < 0.00006 ^ 2 && ($3 - $7) ^ 2 < 0.0006 ^ 2 && ($4 / $8 - 1) ^ 2 < 0.006 ^ 2' | wc -l | tr -d ' ')" 12
check_equal "tokens of the steps" "$(lines step loud | field tokens | tr '\n' ' ')" "$(seq 128 128 1536 | tr '\n' ' ')"

# ---- --quiet says less, and writes the same
train still --steps 12 --val-every 6 --attention slay --quiet
check_equal "--quiet: the console" "$(grep -cE '^step|^validation at|^machine|^parameters|^saved' "$work/still.out")" 0
check_equal "without it: the console" "$(grep -cE '^step|^validation at|^machine|^parameters|^saved' "$work/loud.out")" 17
check_equal "--quiet: metrics" "$(lines step still | sed 's/"ms": .*//')" "$(lines step loud | sed 's/"ms": .*//')"
check_equal "--quiet: validations" "$(lines validation still)" "$(lines validation loud)"

# ---- --profile: rows add up
sed -n '/^ms per step/,/^in all/p' "$work/loud.out" >"$work/profile"
for kind in embeddings "matrix products" attention GELU LayerNorm "head and loss" "norm and AdamW" validation saving; do
    check_equal "profile: $kind" "$(grep -c "^$kind  *[0-9.]*  *[0-9.]*  *[0-9.]*  *[0-9.]*%" "$work/profile")" 1
done
check_equal "profile: forward and backward make both, all shares the whole" "$(awk '
    /%/ { n++; share = $0; sub(/%.*/, "", share); count = split(share, word, " "); sum += word[count - 1]; shares += word[count]
          d = word[count - 3] + word[count - 2] - word[count - 1]; if (d > 0.0151 || d < -0.0151) wrong++
          if (n > 1 && word[count - 1] > last) wrong++; last = word[count - 1] }
    /^in all/ { all = $3 }
    END { print wrong + 0, (sum - all < 0.1 && all - sum < 0.1), (shares > 99 && shares < 101) }' "$work/profile")" "0 1 1"
both_ways() { awk -v kind="$1" 'index($0, kind) == 1 { sub(kind, ""); print ($1 > 0) ($2 > 0) }' "$work/profile"; }
check_equal "profile: products are in both directions" "$(both_ways "matrix products")" 11
check_equal "profile: the optimizer is behind the backward pass" "$(both_ways "norm and AdamW")" 01
check_equal "profile: only when asked for" "$(grep -c '^ms per step' "$work/still.out")" 0

# ---- --seconds: ends by itself, at the end of the schedule that it has settled on
train timed --seconds 1 --val-every 0 --final-lr 0.1 --schedule linear
last=$(lines step timed | tail -n 1)
steps=$(echo "$last" | field step)
check_equal "--seconds: more steps than it is timed by" "$([ "$steps" -gt 6 ] && echo yes)" yes
check_equal "--seconds: every step once" "$(lines step timed | field step | tr '\n' ' ')" "$(seq 1 "$steps" | tr '\n' ' ')"
check_equal "--seconds: the last one is saved" "$(ls "$work/timed" | grep -c "^step_$(printf %08d "$steps")$")" 1
check_equal "--seconds: its estimate" "$(grep -c '^about [0-9]* steps fit into 1 s$' "$work/timed.out")" 1
check_equal "--seconds: the rate is near its end" "$(echo "$last" | field lr | awk '{ print ($1 < 0.004) }')" 1

# ---- inspect of a slay checkpoint
./inspect "$work/loud/step_00000012" >"$work/inspected" 2>&1
says() { check_equal "inspect: $1" "$(awk -v key="$1" '$1 == key { $1 = ""; sub(/^ /, ""); print; exit }' "$work/inspected")" "$2"; }
says model_type slay-gpt2
says parameters $((400 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32))
says attention.name slay
says attention.R 3
says attention.M 16
says attention.P 8
says attention.eps 0.001
says attention.poly anchor
says attention.seed 1337
says step 12
for layer in 0 1; do
    check_equal "inspect: nodes and weights of layer $layer" \
        "$(awk -v name="transformer.h.$layer.attn.quad_" 'index($1, name) == 1 { printf "%s %.4g ", $3, $4 }' "$work/inspected")" "(3) 1.499 (3) 0.1666 "
    check_equal "inspect: omega of layer $layer" "$(awk -v name="transformer.h.$layer.attn.omega" '$1 == name { print $3, ($5 > 0.9 && $5 < 1.1) }' "$work/inspected")" "(3,2,16,16) 1"
done
# the mean of a tensor, from the file itself: the first of the model, whose bytes come first
mean=$(tail -c +$((9 + $(od -An -tu8 -N8 "$work/loud/step_00000012/model.safetensors"))) "$work/loud/step_00000012/model.safetensors" |
    od -An -v -tf4 -w4 -N $((4 * 400 * 32)) | awk '{ sum += $1 } END { printf "%.6f", sum / NR }')
check_equal "inspect: the mean of the embedding, $mean" \
    "$(within "$mean" "$(awk '$1 == "transformer.wte.weight" { print $4; exit }' "$work/inspected")" 0.000002)" 1

# ---- an llm.c file in the sampler is the model that was exported
train plain --steps 12 --val-every 0
check "export to llm.c" ./export_llmc "$work/plain" "$work/model.bin"
logits() { ./sample_gpt2 "$1" --tokenizer "$work/vocab" --prompt "The old keeper" --logits "$work/$2" 2>"$work/err" >"$work/out" || head -n 2 "$work/err"; }
logits "$work/plain" logits
logits "$work/model.bin" logits_llmc
check_same_file "llm.c's file: logits to the bit" "$work/logits" "$work/logits_llmc"
text() { ./sample_gpt2 "$1" --tokenizer "$work/vocab" --prompt "The old" --tokens 20 --seed 7 2>/dev/null </dev/null; }
check_equal "llm.c's file: text" "$(text "$work/model.bin")" "$(text "$work/plain")"
check_equal "llm.c's file: it says something" "$(text "$work/plain" | head -c 7)" "The old"

# ---- whatever its options are, training learns: without a gradient the loss stays where it was
first_loss() { lines step "$1" | field loss | head -n 1; }
last_loss() { lines step "$1" | field loss | tail -n 1; }
learns() { # name, words: the loss of 30 steps on the same few stories falls by a nat
    train "$@" --steps 30 --val-every 0 --quiet
    check_equal "$1: $(first_loss "$1") falls to $(last_loss "$1")" "$(awk "BEGIN { print ($(last_loss "$1") < $(first_loss "$1") - 1) }")" 1
}
for attention in softmax elu cosformer favor rff slay uniform yat yat-spherical; do learns $attention --attention $attention; done
learns muon --optimizer muon --lr 1e-2 --muon-lr 0.05
learns recompute --recompute blocks
learns dropout --dropout 0.1
learns micro_batches --micro-batch 1
learns hybrid --attention slay,softmax --positions none
summary
