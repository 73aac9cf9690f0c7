#!/bin/sh
# Steps to a validation loss with Muon beside AdamW: a small model on generated stories, three seeds each, both rates
# swept, warm-up and then a constant rate, so that no schedule favours a number of steps. Makes its data and runs under
# FOLDER (default: build/muon) and prints a table; runs that are there are not repeated.
#   dev/experiments/muon.sh [FOLDER]
cd "$(dirname "$0")/../.." || exit 1
case ${1:-} in --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; -*) echo "muon: unknown option $1; see --help" >&2 && exit 1 ;; esac
folder=${1:-build/muon}
steps=${STEPS:-500} seeds=${SEEDS:-1 2 3}
mkdir -p "$folder" || exit 1
[ -e "$folder/words.json" ] || {
    ./stories --bytes 4M --out "$folder/text" --validation-stories 200 --validation-out "$folder/val" &&
        ./tokenize train --vocab 1024 --out "$folder/vocab" "$folder/text" &&
        ./tokenize encode --vocab-file "$folder/vocab" --out "$folder/words" --validation-file "$folder/val" "$folder/text"
} >"$folder/log" 2>&1 || { tail -n 3 "$folder/log" && exit 1; }
train() { # name, options
    name=$1
    shift
    for seed in $seeds; do
        run=$folder/runs/$name-$seed
        grep -qs '"type": "done"' "$run/metrics.jsonl" && continue
        rm -rf "$run"
        ./train_gpt2 --train "$folder/words_train_*.bin" --val "$folder/words_val_*.bin" --tokenizer "$folder/vocab" \
            --layers 4 --heads 4 --width 96 --context 96 --batch 12 --steps "$steps" --warmup 20 --schedule constant \
            --val-every 10 --val-tokens 8192 --save-every 0 --seed "$seed" --init-std 0.04 --quiet --out "$run" "$@" || exit 1
    done
}
for rate in ${ADAMW_RATES:-2e-3 4e-3 8e-3}; do train "adamw-$rate" --lr "$rate"; done
for rate in ${MUON_RATES:-0.01 0.02 0.04}; do train "muon-$rate" --optimizer muon --lr "${MUON_ADAMW_RATE:-4e-3}" --muon-lr "$rate"; done
python3 - "$folder/runs" <<'PYTHON'
import glob, json, statistics, sys

def curve(run):
    lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    return {line["step"]: line["loss"] for line in lines if line["type"] == "validation"}

runs = {}
for run in sorted(glob.glob(sys.argv[1] + "/*")):
    runs.setdefault(run.split("/")[-1].rsplit("-", 1)[0], []).append(curve(run))
last = {name: [curve[max(curve)] for curve in curves] for name, curves in runs.items()}
adamw = min((name for name in runs if name.startswith("adamw")), key=lambda name: statistics.mean(last[name]))
target = statistics.mean(last[adamw])
print(f"target {target:.4f}: the mean of {adamw} at its last step")
for name, curves in runs.items():
    first = [min((step for step, loss in curve.items() if loss <= target), default=None) for curve in curves]
    spread = statistics.stdev(last[name]) if len(curves) > 1 else 0
    print(f"{name:14} last loss {statistics.mean(last[name]):.4f} +- {spread:.4f}   steps to the target {first}")
PYTHON
