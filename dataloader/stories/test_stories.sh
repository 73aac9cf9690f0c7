#!/bin/sh
# Tests of the program stories as its user meets it: files, sizes, the floor, --check, error messages and exit codes.
# Needs ./stories. Last line: `N passed, N failed`.
cd "$(dirname "$0")/../.." || exit 1
stories=${STORIES:-./stories}
[ -x "$stories" ] || { echo "$stories is missing; run make"; echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh
refuses() { # part of the message, then arguments; nothing goes to standard output
    part=$1
    shift
    check_refused "stories $*" "$part" "$stories" "$@"
    check_equal "stories $*: standard output" "$(cat "$work/stdout")" ""
}
number() { # of a key in one part of the floor file: number train bits
    tr -d '\n ' <"$work/floor.json" | sed "s/.*\"$1\":{\([^}]*\)}.*/,\1,/; s/.*,\"$2\":\([0-9.]*\),.*/\1/"
}

# ---- the corpus
"$stories" --bytes 100k --seed 3 --out "$work/train.txt" --validation-stories 20 --validation-out "$work/val.txt" \
    --floor-out "$work/floor.json" 2>"$work/floor.txt"
"$stories" --bytes 100k --seed 3 >"$work/again.txt" 2>/dev/null
"$stories" --bytes 100k --seed 4 >"$work/other.txt" 2>/dev/null
check "same seed, same text" cmp "$work/train.txt" "$work/again.txt"
check "other seed, other text" sh -c "! cmp '$work/train.txt' '$work/other.txt'"
check "as many validation stories as wanted" [ "$(grep -c '^<|endoftext|>$' "$work/val.txt")" = 20 ]
check "every story is closed by a line" [ "$(tail -n 1 "$work/val.txt")" = "<|endoftext|>" ]
check "no leftovers" [ ! -e "$work/train.txt.tmp" ]
"$stories" --first 7 --stories 1 --seed 3 >"$work/one.txt" 2>/dev/null
awk -v RS='<[|]endoftext[|]>\n' -v ORS='<|endoftext|>\n' 'NR == 8' "$work/train.txt" >"$work/eighth.txt"
check "a story on its own" cmp "$work/one.txt" "$work/eighth.txt"

# ---- the floor: bytes are the stories' own, without 15 of line break and separator line each
for part in train val; do
    key=train
    [ $part = train ] || key=validation
    size=$(($(wc -c <"$work/$part.txt") - 15 * $(grep -c '^<|endoftext|>$' "$work/$part.txt")))
    check "bytes of $part" [ "$size" = "$(number $key bytes)" ]
    check "stories of $part" [ "$(grep -c '^<|endoftext|>$' "$work/$part.txt")" = "$(number $key stories)" ]
    check "bits per byte of $part" awk "BEGIN { d = $(number $key bits) / $size / $(number $key bits_per_byte) - 1; exit !(d * d < 1e-18) }"
done
check "the floor is the validation part's" grep -q "\"floor_bits\": $(number validation bits)" "$work/floor.json"
check "the floor is printed" grep -q "^train: .* bits per byte, .* nats per byte$" "$work/floor.txt"

# ---- checking
check "true stories pass" sh -c "'$stories' --check '$work/val.txt' | tail -n 1 | grep -q '^20 stories: 100.0 % .* 100.0 % .* 100.0 %'"
check "standard input" sh -c "'$stories' --check - <'$work/val.txt' | tail -n 1 | grep -q '^20 stories: 100.0 %'"
tr 'e' 'a' <"$work/val.txt" >"$work/wrong.txt"
check "false ones do not" sh -c "'$stories' --check '$work/wrong.txt' | tail -n 1 | grep -q ': 0.0 % complete'"
head -c 20000 /dev/urandom >"$work/noise"
check "noise is survived" "$stories" --check "$work/noise"

# ---- refusals
check "help" "$stories" --help
refuses "did you mean --stories" --storys 3
refuses "--bytes" --bytes many
refuses "--bytes" --bytes 0
refuses "--stories" --stories -1
refuses "go together" --validation-stories 3
refuses "go together" --validation-out "$work/x"
refuses "$work/none/x" --stories 1 --out "$work/none/x"
refuses "$work/none" --check "$work/none"
: >"$work/empty"
refuses "found no text" --check "$work/empty"
refuses "$work" --check "$work"
check "a full disk is noticed" sh -c "[ ! -e /dev/full ] || ! '$stories' --bytes 1M >/dev/full"

summary
