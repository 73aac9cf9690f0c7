#!/bin/sh
# Judges a quick start: scripts/check_quickstart.sh RUN [MOST] [GRAMMATICAL] [FACTS]
# The validation loss has to be within MOST nats per token of the stories' floor. Of what the model writes at temperature
# 0.5, so many percent of the sentences have to be grammatical, and so many percent of the names, things and answers have
# to be the ones that the story had settled (./stories --check).
set -eu
. "$(dirname "$0")/usage.sh"
take_words 1 4 "$@"
cd "$(dirname "$0")/.."
run=$1
[ -r "$run/metrics.jsonl" ] || refuse "$run/metrics.jsonl: no such file; give the run that make quickstart named"
most=${2:-0.5} least_grammatical=${3:-90} least_facts=${4:-50}
floor=$(scripts/stories_floor.sh)
loss=$(grep '"type": "validation"' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*"loss": \([0-9.]*\).*/\1/')
./sample_gpt2 "$run" --samples 40 --tokens 250 --temperature 0.5 --seed 7 --no-stats </dev/null |
    sed 's/^---$/<|endoftext|>/' >"$run/check.txt"
result=$(./stories --check "$run/check.txt" | tail -n 1)
echo "what it writes: $result"
grammatical=$(echo "$result" | sed 's/.* \([0-9.]*\) % of [0-9]* sentences.*/\1/')
facts=$(echo "$result" | sed 's/.* \([0-9.]*\) % of [0-9]* facts.*/\1/')
awk -v loss="$loss" -v floor="$floor" -v most="$most" -v grammatical="$grammatical" \
    -v least_grammatical="$least_grammatical" -v facts="$facts" -v least_facts="$least_facts" '
function judge(what, found, wanted, good) {
    printf "%-4s %-34s %8.4f, wanted %s\n", good ? "ok" : "FAIL", what, found, wanted
    if (!good) failed = 1
}
BEGIN {
    gap = loss - floor
    judge("nats per token above the floor", gap, "at most " most, loss != "" && gap <= most && gap > -0.05)
    judge("% of sentences grammatical", grammatical, "at least " least_grammatical, grammatical + 0 >= least_grammatical)
    judge("% of facts right", facts, "at least " least_facts, facts + 0 >= least_facts)
    exit failed
}'
