#!/bin/sh
# Judges a quick start's run: scripts/check_quickstart.sh RUN [MOST] [GRAMMATICAL] [FACTS]
# The validation loss has to be within MOST nats per token of the stories' floor; of what the model writes at temperature
# 0.7, so many percent of the sentences have to be grammatical and of the recalled facts right.
set -eu
cd "$(dirname "$0")/.."
run=${1:?usage: scripts/check_quickstart.sh RUN [MOST] [GRAMMATICAL] [FACTS]}
most=${2:-0.5} least_grammatical=${3:-90} least_facts=${4:-60}
data=data/stories
val_tokens=$(tr -d '\n' <"$data/stories.json" | sed 's/.*"val": *{ *"tokens": *\([0-9]*\).*/\1/')
floor_bits=$(sed -n 's/^ *"floor_bits": *\([0-9.]*\).*/\1/p' "$data/stories.json")
loss=$(grep '"type": "validation"' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*"loss": \([0-9.]*\).*/\1/')
./sample_gpt2 "$run" --no-stop --tokens 6000 --temperature 0.7 --seed 7 --no-stats </dev/null >"$run/check.txt"
./stories --check "$run/check.txt" | tee "$run/check_result.txt"
