#!/bin/sh
# The entropy of the stories' validation text in nats per token, which no model's loss can be below on average:
#   scripts/stories_floor.sh [data/stories]
. "$(dirname "$0")/usage.sh"
take_words 0 1 "$@"
json=${1:-data/stories}/stories.json
[ -r "$json" ] || refuse "$json: no such file; make quickstart makes it"
tokens=$(tr -d '\n' <"$json" | sed 's/.*"val": *{ *"tokens": *\([0-9]*\).*/\1/')
bits=$(sed -n 's/^ *"floor_bits": *\([0-9.]*\).*/\1/p' "$json")
awk -v bits="$bits" -v tokens="$tokens" 'BEGIN { printf "%.4f\n", bits * log(2) / tokens }'
