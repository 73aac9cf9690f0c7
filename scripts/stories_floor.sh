#!/bin/sh
# The entropy of the stories' validation text in nats per token, which no model's loss can be below on average:
#   scripts/stories_floor.sh [data/stories]
json=${1:-data/stories}/stories.json
[ -r "$json" ] || { echo "stories_floor: $json: no such file; make quickstart makes it" >&2; exit 1; }
tokens=$(tr -d '\n' <"$json" | sed 's/.*"val": *{ *"tokens": *\([0-9]*\).*/\1/')
bits=$(sed -n 's/^ *"floor_bits": *\([0-9.]*\).*/\1/p' "$json")
awk -v bits="$bits" -v tokens="$tokens" 'BEGIN { printf "%.4f\n", bits * log(2) / tokens }'
