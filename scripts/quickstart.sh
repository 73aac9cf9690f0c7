#!/bin/sh
# make quickstart: trains a small GPT on generated stories and shows what it learned.
#   scripts/quickstart.sh [ATTENTION] [SECONDS]
# Corpus, vocabulary and shards are made once, in data/stories; the run goes to runs/quickstart_ATTENTION.
set -eu
cd "$(dirname "$0")/.."
attention=${1:-softmax} seconds=${2:-200}
data=data/stories run=runs/quickstart_$attention

case $seconds in '' | *[!0-9]*) echo "quickstart: SECONDS: expected a whole number of seconds, found '$seconds'" >&2; exit 1 ;; esac
./train_gpt2 --attention list | grep -q "^$attention " || {
    echo "quickstart: ATTENTION: expected one of $(./train_gpt2 --attention list | awk '{printf "%s%s", sep, $1; sep = ", "}'), found '$attention'" >&2
    exit 1
}

echo "== 1. stories: text, vocabulary, tokens ($data)"
scripts/make_stories.sh
floor=$(scripts/stories_floor.sh "$data")

echo
echo "== 2. training: a small GPT-2 with $attention attention, $seconds seconds ($run)"
rm -rf "$run"
./train_gpt2 --train "$data/stories_train_*.bin" --val "$data/stories_val_*.bin" --tokenizer "$data/vocab.tiktoken" \
    --documents --attention "$attention" --layers 2 --heads 2 --width 128 --context 256 --init-std 0.06 \
    --batch 8 --lr 3e-3 --schedule wsd --wsd-decay 0.4 --warmup 60 --final-lr 0 --weight-decay 0.01 \
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
