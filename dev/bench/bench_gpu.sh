#!/bin/sh
# What `make bench-gpu` prints: attentions alone over lengths, GPT-2 124M's training speed with each attention, and the
# progressions from naive to shipped kernels, as tables ready to paste. Takes a few minutes on a data-centre GPU.
cd "$(dirname "$0")/../.." || exit 1
programs=${BUILD:-build}/cuda/bf16
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$programs/bench_gpu" || exit 1

echo
echo "Training GPT-2 124M, bf16, 1024 tokens a row, 16 rows at once, random tokens; the last of 20 steps."
echo
echo "| attention | tokens per second | share of the data sheet's peak |"
echo "|---|---:|---:|"
python3 - "$work/train.bin" <<'PYTHON' || exit 1
import array, random, sys
random.seed(1)
header = array.array("i", [20240520, 1, 2000000] + [0] * 253)
tokens = array.array("H", (random.randrange(50257) for _ in range(2000000)))
with open(sys.argv[1], "wb") as out:
    header.tofile(out), tokens.tofile(out)
PYTHON
for attention in softmax yat yat-spherical elu cosformer favor slay; do
    rm -rf "$work/run"
    if ./train_gpt2_cuda --train "$work/train.bin" --attention "$attention" --out "$work/run" --batch 16 --micro-batch 16 \
        --steps 20 --warmup 1 --graphs --quiet >"$work/log" 2>&1; then
        python3 - "$work/run/metrics.jsonl" "$attention" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
peak = lines[0]["machine"]["gflops"]
last = [line for line in lines if line["type"] == "step"][-1]
print("| %s | %.0f | %.1f%% |" % (sys.argv[2], last["tokens_per_second"], 100 * last["gflops"] / peak))
PYTHON
    else
        echo "| $attention | $(tail -n 1 "$work/log") | |"
    fi
done
for case in layernorm:"65536 768" linear_gelu:"65536 768 3072" classifier:"2048 50257" adamw:"124000000" embedding_backward:"64 1024 768 50257"; do
    echo
    echo "${case%%:*} ${case#*:}"
    # shellcheck disable=SC2086
    "$programs/${case%%:*}" ${case#*:}
done
