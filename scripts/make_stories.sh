#!/bin/sh
# The generated stories with vocabulary and token shards, in data/stories; made once, and again when the programs that make
# them are newer. Other data under that name is set aside, not removed. `make quickstart` and `make compare` train on them.
#   scripts/make_stories.sh
set -eu
. "$(dirname "$0")/usage.sh"
take_words 0 0 "$@"
cd "$(dirname "$0")/.."
. scripts/recipe.sh
data=data/stories
if [ "$data/stories.json" -nt ./stories ] && [ "$data/stories.json" -nt ./tokenize ]; then
    echo "$data: there already, newer than the programs that make them"
    exit 0
fi
rm -rf "$data.tmp" && mkdir -p "$data.tmp"
./stories --bytes 16M --seed 1 --out "$data.tmp/train.txt" --validation-stories 300 \
    --validation-out "$data.tmp/val.txt" --floor-out "$data.tmp/floor.json"
./tokenize train --vocab 2048 --out "$data.tmp/vocab.tiktoken" "$data.tmp/train.txt"
./tokenize encode --vocab-file "$data.tmp/vocab.tiktoken" --validation-file "$data.tmp/val.txt" \
    --floor "$data.tmp/floor.json" --out "$data.tmp/stories" "$data.tmp/train.txt"
if [ -e "$data" ] && diff -r "$data" "$data.tmp" >/dev/null; then
    touch "$data/stories.json"
    rm -rf "$data.tmp"
    exit 0
fi
if [ -e "$data" ]; then
    aside=$(free_name "$data.before")
    mv "$data" "$aside"
    echo "$data: what was there is other data, now in $aside"
fi
mv "$data.tmp" "$data"
