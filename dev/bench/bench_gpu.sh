#!/bin/sh
# What `make bench-gpu` prints (dev/bench/bench_gpu.sh): attentions alone over lengths, forward, backward and decoding;
# GPT-2 124M's training and decoding speed with each attention, bf16 and fp32; and the progressions from naive to
# shipped kernels. Tables ready to paste. Takes a while, even on a data-centre GPU: decoding and the quadratic
# attentions at 131072 tokens are most of it. Variables for a small run: PROGRAMS, TRAIN, SAMPLE (fp32's names end in
# _fp32), CONTEXT, ROWS, STEPS, TOKENS, ATTENTIONS, ATTENTION_SIZES, MODEL (options of the trainer), CASES.
. "$(dirname "$0")/../../scripts/usage.sh"
take_words 0 0 "$@"
cd "$(dirname "$0")/../.." || exit 1
programs=${PROGRAMS:-${BUILD:-build}/cuda/bf16}
train=${TRAIN:-./train_gpt2_cuda} sample=${SAMPLE:-./sample_gpt2_cuda}
context=${CONTEXT:-1024} rows=${ROWS:-16} steps=${STEPS:-20}
attentions=${ATTENTIONS:-softmax yat yat-spherical elu cosformer favor slay}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
# shellcheck disable=SC2086
"$programs/dev/bench/bench_gpu" ${ATTENTION_SIZES:-} || exit 1

python3 - "$work/train.bin" <<'PYTHON' || exit 1
import array, random, sys
random.seed(1)
header = array.array("i", [20240520, 1, 2000000] + [0] * 253)
tokens = array.array("H", (random.randrange(50257) for _ in range(2000000)))
with open(sys.argv[1], "wb") as out:
    header.tofile(out), tokens.tofile(out)
PYTHON

# A row of the training table, from the metrics of a run: over all steps but the first quarter, in which clocks rise and
# graphs are captured. The trainer's first lines say who does the attention where there is a choice.
training_row() { # metrics log attention
    python3 - "$1" "$2" "$3" <<'PYTHON'
import json, re, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
peak = lines[0]["machine"]["gflops"]
steps = [line for line in lines if line["type"] == "step"]
steps = steps[min(max(len(steps) // 4, 1), len(steps) - 1):]
ms = [step["ms"] for step in steps]
tokens = sum(step["tokens_per_second"] * step["ms"] for step in steps) / sum(ms)
gflops = sum(step["gflops"] * step["ms"] for step in steps) / sum(ms)
spread = statistics.pstdev(ms) / statistics.mean(ms)
by = re.search(r"^%s +by (.*)" % re.escape(sys.argv[3]), open(sys.argv[2]).read(), re.M)
print("| %s | %s | %.0f | %.1f%% | %.1f, %.1f | %.1f%% |" % (
    sys.argv[3], by.group(1) if by else "own kernels", tokens, 100 * spread, min(ms), max(ms), 100 * gflops / peak))
PYTHON
}

# Tokens per second of text after a prompt of this length, with the choice of each token.
decoding_speed() { # program checkpoint position
    "$1" "$2" --prompt-ids "$(seq -s , 1 "$3")" --tokens "${TOKENS:-48}" --no-stop --temperature 0 --stats >/dev/null 2>"$work/stats" &&
        sed -n 's/^text: .* \([0-9]*\) tokens\/s.*/\1/p' "$work/stats" || tail -n 1 "$work/stats"
}

for precision in bf16 fp32; do
    suffix=$([ "$precision" = fp32 ] && echo _fp32)
    : >"$work/decoding"
    echo
    echo "Training GPT-2 124M, $precision, $context tokens a row, $rows rows at once, random tokens; means of $steps steps but the"
    echo "first quarter, with the standard deviation of a step's time as a share of it, and the fastest and slowest."
    echo
    echo "| attention | done by | tokens per second | deviation | ms, least and most | share of the data sheet's peak |"
    echo "|---|---|---:|---:|---:|---:|"
    for attention in $attentions; do
        rm -rf "$work/run"
        # shellcheck disable=SC2086
        if "$train$suffix" --train "$work/train.bin" --attention "$attention" --out "$work/run" --batch "$rows" --micro-batch "$rows" \
            --steps "$steps" --warmup 1 --graphs ${MODEL:-} >"$work/log" 2>&1; then
            training_row "$work/run/metrics.jsonl" "$work/log" "$attention"
            short=$(decoding_speed "$sample$suffix" "$work/run" 5)
            half=$(decoding_speed "$sample$suffix" "$work/run" $((context / 2)))
            echo "| $attention | $short | $half | $(decoding_speed "$sample$suffix" "$work/run" $((context * 15 / 16))) |" >>"$work/decoding"
        else
            echo "| $attention | $(tail -n 1 "$work/log") | | | | |"
        fi
    done
    echo
    echo "Text from the same models, $precision: tokens per second, one sequence, after a prompt of so many tokens."
    echo
    echo "| attention | 5 | $((context / 2)) | $((context * 15 / 16)) |"
    echo "|---|---:|---:|---:|"
    cat "$work/decoding"
done

# From the naive to the shipped kernel. Those of attention take a version at a time: version, mechanism, B T NH HS.
before=""
while read -r case sizes; do
    [ -n "$case" ] || continue
    [ "$case" = "$before" ] || printf '\n%s: %s\n' "$case" "$sizes"
    before=$case
    # shellcheck disable=SC2086
    "$programs/dev/cuda/$case" $sizes
done <<CASES
${CASES-layernorm 65536 768
layernorm_backward 65536 768
linear_gelu 65536 768 3072
classifier 2048 50257
adamw 124000000
gradient_norm 124000000
embedding_backward 64 1024 768 50257
attention_forward 1 softmax 4 1024 12 64
attention_forward 2 softmax 4 1024 12 64
attention_forward 3 softmax 4 1024 12 64
attention_forward 1 yat 4 1024 12 64
attention_forward 2 yat 4 1024 12 64
attention_forward 3 yat 4 1024 12 64
attention_backward 1 softmax 4 1024 12 64
attention_backward 2 softmax 4 1024 12 64
attention_backward 3 softmax 4 1024 12 64
attention_backward 1 yat 4 1024 12 64
attention_backward 2 yat 4 1024 12 64
attention_backward 3 yat 4 1024 12 64
attention_decode 1 softmax 1 1024 12 64
attention_decode 2 softmax 1 1024 12 64
attention_decode 3 softmax 1 1024 12 64
attention_decode 1 yat 1 1024 12 64
attention_decode 2 yat 1 1024 12 64
attention_decode 3 yat 1 1024 12 64
linear_attention 1 4 1024 12 64
linear_attention 2 4 1024 12 64
linear_attention 3 4 1024 12 64
linear_attention 4 4 1024 12 64}
CASES
