#!/bin/sh
# make quickstart: trains a small GPT on generated stories and shows what it learned.
#   scripts/quickstart.sh [ATTENTION] [SECONDS]
# Corpus, vocabulary and shards are made once, in data/stories; the run goes to runs/quickstart_ATTENTION, or, where an
# earlier one is, to runs/quickstart_ATTENTION_2, _3 ...
set -eu
. "$(dirname "$0")/usage.sh"
take_words 0 2 "$@"
cd "$(dirname "$0")/.."
. scripts/recipe.sh
attention=${1:-softmax} seconds=${2:-200}
case $seconds in '' | *[!0-9]*) refuse "expected a whole number of seconds, found '$seconds'" ;; esac
require_attention "$attention"
data=data/stories run=$(free_name "runs/quickstart_$attention")

echo "== 1. stories: text, vocabulary, tokens ($data)"
scripts/make_stories.sh
floor=$(scripts/stories_floor.sh "$data")

echo
echo "== 2. training: a small GPT-2 with $attention attention, $seconds seconds ($run)"
# shellcheck disable=SC2046
./train_gpt2 --train "$data/stories_train_*.bin" --val "$data/stories_val_*.bin" --tokenizer "$data/vocab.tiktoken" \
    --documents --attention "$attention" $(quick_recipe) \
    --seconds "$seconds" --val-every 100 --val-tokens 1000000 --save-every 0 --out "$run"

echo
echo "== 3. the curve"
scripts/curve.sh "$run" "$floor"
loss=$(grep '"type": "validation"' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*"loss": \([0-9.]*\).*/\1/')
echo
printf 'validation loss   %s nats per token\n' "$loss"
printf 'floor             %s nats per token: the stories'"'"' own entropy, which no model can beat\n' "$floor"
awk "BEGIN { printf \"difference        %.4f\n\", $loss - $floor }"

echo
echo "== 4. three samples"
./sample_gpt2 "$run" --samples 3 --temperature 0.5 --seed 1 --tokens 300 --no-stats </dev/null | tee "$run/samples.txt"

cat <<END

== next
./sample_gpt2 $run                               type the beginning of a story
./sample_gpt2 $run --prompt "$(head -c 24 "$data/val.txt" | tr -d '"\n')" --temperature 0
./train_gpt2 --resume $run --steps 3000         train on, exactly where it stopped
./inspect $run                                   what the checkpoint holds
./train_gpt2 --attention list                    the other attentions: make quickstart ATTENTION=NAME
scripts/get_corpus.sh austen --vocab 4096        real text
END
