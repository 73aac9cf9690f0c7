#!/bin/bash
# The program `tokenize` from outside: round trips, splits, threads, messages and exit codes, nothing half-written.
cd "$(dirname "$0")/.." || exit 1
tokenize=${TOKENIZE:-./tokenize}
vocabulary=dev/fixtures/tokenizer_small.tiktoken
text=dev/fixtures/tokenizer_text.txt
work=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
passed=0 failed=0
. scripts/checks.sh
refuses() { # check_refused, and no file left behind
    rm -rf "$work/out"
    mkdir "$work/out"
    check_refused "$@"
    check_equal "$1: left behind" "$(ls -A "$work/out")" ""
}
encode() { "$tokenize" encode --vocab-file "$vocabulary" "$@"; }
decode() { "$tokenize" decode --vocab-file "$vocabulary" "$@"; }
same_text() { decode "$1"_train_*.bin | cmp - "$2"; }
field() { # the number after "split" ... "key" in a PREFIX.json
    tr -d '\n ' <"$work/$1.json" | sed -n "s/.*\"${2%%.*}\":{[^}]*\"${2##*.}\":\([0-9]*\).*/\1/p"
}

# ---- round trips
encode --out "$work/a" "$text" >/dev/null
check "a text comes back" same_text "$work/a" "$text"
head -c 300000 /dev/urandom >"$work/noise"
encode --out "$work/noise" "$work/noise" >/dev/null
check "random bytes come back" same_text "$work/noise" "$work/noise"
encode --out "$work/stdin" <"$text" >/dev/null
check "standard input is a file too" cmp "$work/stdin_train_000000.bin" "$work/a_train_000000.bin"
cat "$text" | encode --out "$work/pipe" >/dev/null
check "a pipe too" cmp "$work/pipe_train_000000.bin" "$work/a_train_000000.bin"
encode --ids "$text" >"$work/ids"
check "ids come back" cmp <(decode --ids "$work/ids") "$text"
printf 'one\0\0two\nlines\0' >"$work/nulls"
check "documents with 0 bytes" cmp <(encode --ids --null "$work/nulls" | decode --ids --null) "$work/nulls"
check "in short" cmp <(encode --ids -0 "$work/nulls" | decode --ids -0) "$work/nulls"
check "a line for each of them" [ "$(encode --ids --null "$work/nulls" | wc -l)" = 3 ]
printf 'one\n<|endoftext|>\ntwo\n\n<|endoftext|>\nthree' >"$work/documents"
encode --out "$work/documents" "$work/documents" >/dev/null
check "documents come back" same_text "$work/documents" "$work/documents"
check "and are counted" [ "$(field documents train.documents)" = 3 ]
check "their bytes too" [ "$(field documents train.text_bytes)" = 12 ]
decode "$work"/documents_train_*.bin | encode --out "$work/again" >/dev/null
check "encode undoes decode" cmp "$work/again_train_000000.bin" "$work/documents_train_000000.bin"
encode --out "$work/two" "$text" "$text" >/dev/null
check "every file is a document" [ "$(field two train.documents)" = 2 ]

# ---- shards and splits
for i in $(seq 300); do printf 'Document %d has %d words, or so it says.\n<|endoftext|>\n' "$i" $((i * i)); done >"$work/many"
encode --out "$work/many" --shard-tokens 1000 --validation 0.2 "$work/many" >/dev/null
check "several shards" [ "$(ls "$work"/many_train_*.bin | wc -l)" -gt 3 ]
check "all of one size but the last" [ "$(stat -c %s "$work"/many_train_000000.bin)" = 3024 ]
check "a share for validation" [ "$(field many val.documents)" -gt 30 -a "$(field many val.documents)" -lt 90 ]
check "no document is lost" [ $(($(field many train.documents) + $(field many val.documents))) = 300 ]
encode --out "$work/same" --shard-tokens 1000 --validation 0.2 --threads 7 "$work/many" >/dev/null
check "threads change nothing" cmp <(cat "$work"/same_*.bin) <(cat "$work"/many_*.bin)
encode --out "$work/seed" --validation 0.2 --seed 2 "$work/many" >/dev/null
check "another seed, another split" [ "$(decode "$work"/seed_val_*.bin | md5sum)" != "$(decode "$work"/many_val_*.bin | md5sum)" ]
encode --out "$work/every" --validation-every 10 "$work/many" >/dev/null
check "every tenth document" [ "$(field every val.documents)" = 30 ]
encode --out "$work/file" --validation-file "$text" "$work/many" >/dev/null
check "a file for validation" cmp <(decode "$work"/file_val_*.bin) "$text"
encode --out "$work/many" "$work/many" >/dev/null
check "shards of an earlier run are gone" [ "$(ls "$work"/many_*.bin | wc -l)" = 1 ]
echo '{"floor_bits": 1.25}' >"$work/floor.json"
encode --out "$work/floor" --floor "$work/floor.json" "$text" >/dev/null
check "the floor is passed on" grep -q '"floor_bits": 1.25' "$work/floor.json"

# ---- a large document in parallel: 3 MB, cut into blocks
for i in $(seq 1000); do cat "$text"; done >"$work/large"
encode --out "$work/one" --threads 1 "$work/large" >/dev/null
encode --out "$work/four" --threads 4 "$work/large" >/dev/null
check "blocks of one document" cmp "$work/one_train_000000.bin" "$work/four_train_000000.bin"
# ---- training
"$tokenize" train --vocab 700 --out "$work/new/dir/v.tiktoken" "$text" >"$work/trained"
check "train tells what it has made" grep -qE "v.tiktoken: a vocabulary of 700 from [1-9][0-9]* different pieces, [0-9.]+ s$" "$work/trained"
check "train makes the fixture" cmp "$work/new/dir/v.tiktoken" "$vocabulary"
"$tokenize" train --vocab 700 --threads 3 --out "$work/v3.tiktoken" "$work/large" >/dev/null
"$tokenize" train --vocab 700 --threads 1 --out "$work/v1.tiktoken" <"$work/large" >/dev/null
check "threads train the same" cmp "$work/v1.tiktoken" "$work/v3.tiktoken"

# ---- info
check "info on a shard" grep -q "documents    3 " <("$tokenize" info --vocab-file "$vocabulary" "$work"/documents_train_000000.bin)
check "info on a long shard" grep -q "text         300000 bytes" <("$tokenize" info --vocab-file "$vocabulary" "$work"/noise_train_000000.bin)
check "info on a vocabulary" grep -q "700 tokens (699 ranks" <("$tokenize" info "$vocabulary")
check "info without a vocabulary" grep -q "give --vocab-file" <("$tokenize" info "$work"/documents_train_000000.bin)
"$tokenize" export --vocab-file "$vocabulary" --out "$work/hf" >/dev/null
check "export writes Hugging Face's files" [ "$(ls "$work/hf" | tr '\n' ' ')" = "merges.txt tokenizer_config.json vocab.json " ]
check "with every token and end-of-text" grep -q '"<|endoftext|>":699}' "$work/hf/vocab.json"
for command in train encode decode info export; do
    check "$command --help" "$tokenize" "$command" --help
done
check "--help" "$tokenize" --help

# ---- refusals
out=$work/out
refuses "no command" "" "$tokenize" nonsense
refuses "unknown option" "did you mean --vocab-file" "$tokenize" encode --vocabfile x --out "$out/x" "$text"
refuses "no vocabulary given" "--vocab-file is needed" "$tokenize" encode --out "$out/x" "$text"
refuses "no output given" "--out is needed" encode "$text"
refuses "vocabulary missing" "/nonexistent" "$tokenize" encode --vocab-file /nonexistent --out "$out/x" "$text"
refuses "vocabulary is a directory" "directory" "$tokenize" encode --vocab-file "$work" --out "$out/x" "$text"
: >"$work/empty"
refuses "vocabulary is empty" "empty" "$tokenize" encode --vocab-file "$work/empty" --out "$out/x" "$text"
head -n 500 "$vocabulary" | head -c -3 >"$work/cut"
refuses "vocabulary is cut" "$work/cut" "$tokenize" encode --vocab-file "$work/cut" --out "$out/x" "$text"
refuses "vocabulary is a text" "not a tiktoken" "$tokenize" encode --vocab-file "$text" --out "$out/x" "$text"
refuses "text missing" "/nonexistent.txt" encode --out "$out/x" "$text" /nonexistent.txt
refuses "text is a directory" "name the files in it" encode --out "$out/x" "$work"
mkfifo "$work/fifo"
refuses "text is a fifo" "standard input" encode --out "$out/x" "$work/fifo"
refuses "no text at all" "no text to encode" encode --out "$out/x" "$work/empty"
refuses "nothing for validation" "fell to the train split" encode --out "$out/x" --validation-every 5 "$text"
refuses "a bad share" "--validation" encode --out "$out/x" --validation 1.5 "$text"
refuses "shards of 0 tokens" "--shard-tokens" encode --out "$out/x" --shard-tokens 0 "$text"
refuses "two ways to choose" "not both" encode --out "$out/x" --validation 0.5 --validation-every 2 "$text"
refuses "more than the file has" "699 ranks" encode --out "$out/x" --vocab 800 "$text"
refuses "fewer than the bytes" "expected 257" encode --out "$out/x" --vocab 100 "$text"
refuses "floor missing" "$work/none.json" encode --out "$out/x" --floor "$work/none.json" "$text"
refuses "floor without the number" "floor_bits" encode --out "$out/x" --floor "$work/a.json" "$text"
refuses "output below a file" "cannot create" encode --out "$work/a.json/x" "$text"
refuses "train too much" "65536" "$tokenize" train --vocab 70000 --out "$out/v" "$text"
refuses "train too little" "257" "$tokenize" train --vocab 256 --out "$out/v" "$text"
refuses "train beyond the text" "give more text" "$tokenize" train --vocab 60000 --out "$out/v" "$text"
refuses "train without a size" "--vocab is needed" "$tokenize" train --out "$out/v" "$text"
refuses "train on a missing text" "/nonexistent" "$tokenize" train --vocab 300 --out "$out/v" /nonexistent
refuses "export below a file" "cannot create" "$tokenize" export --vocab-file "$vocabulary" --out "$work/a.json/x"
refuses "export a file name" "unexpected word" "$tokenize" export --vocab-file "$vocabulary" --out "$out/x" "$text"
refuses "decode nothing" "name the shards" decode
refuses "decode a text" "$text" decode "$text"
refuses "decode with a smaller vocabulary" "not in the vocabulary" decode --vocab 300 "$work/a_train_000000.bin"
echo "12 x" >"$work/letters"
refuses "decode letters" "expected ids" decode --ids "$work/letters"
echo "99999999999999999999" >"$work/huge"
refuses "decode a huge id" "not in the vocabulary" decode --ids "$work/huge"
refuses "info on a bad shard" "$work/bad.bin" "$tokenize" info "$work/bad.bin"
head -c 1000 "$work/a_train_000000.bin" >"$work/short.bin"
refuses "info on a short shard" "short.bin" "$tokenize" info "$work/short.bin"
refuses "output that cannot be written" "cannot write" bash -c "'$tokenize' decode --vocab-file '$vocabulary' '$work/a_train_000000.bin' >/dev/full"

# a file size limit stands for a full disk: the old shards stay as they were, no temporary file stays
mkdir "$work/full"
encode --out "$work/full/x" --shard-tokens 100000 "$text" >/dev/null
before=$(cat "$work"/full/* | md5sum)
(ulimit -f 300 && trap '' XFSZ && encode --out "$work/full/x" --shard-tokens 400000 "$work/large") >/dev/null 2>"$work/stderr"
check "a full disk ends with code 1" [ $? = 1 ]
check "and one line" [ "$(wc -l <"$work/stderr")" = 1 ]
check "and leaves what was there" [ "$(cat "$work"/full/* | md5sum)" = "$before" -a "$(ls "$work/full" | wc -l)" = 2 ]

summary
