# For tests, to be read by `.`: make_shard writes a shard of pseudo-random tokens below 61, make_documents one of documents,
# through octal escapes.
octal_bytes() { # value, bytes: little endian
    awk -v value="$1" -v bytes="$2" 'BEGIN { for (; bytes > 0; bytes--) { printf "\\0%03o", value % 256; value = int(value / 256) } }'
}
make_shard() { # path tokens seed
    {
        printf '%b' "$(for word in 20240520 1 "$2"; do octal_bytes "$word" 4; done)"
        head -c 1012 /dev/zero
        printf '%b' "$(awk -v count="$2" -v x="$3" 'BEGIN {
            for (i = 0; i < count; i++) { x = (x * 1103 + 12345) % 65536; printf "\\0%03o\\0000", int(x / 7) % 61 } }')"
    } >"$1"
}
# Documents as long as they are listed, for dev/fixtures/tokenizer_small.tiktoken, whose last of 700 tokens, the bytes 0273
# and 2, is end-of-text.
make_documents() { # path seed lengths...
    path=$1 x=$2 count=1
    shift 2
    for length in "$@"; do count=$((count + length)); done
    {
        printf '%b' "$(for word in 20240520 1 $count; do octal_bytes "$word" 4; done)"
        head -c 1012 /dev/zero
        printf '%b' "$(echo "$@" | awk -v x="$x" '{ for (i = 1; i <= NF; i++) { printf "\\0273\\0002"
            for (t = 1; t < $i; t++) { x = (x * 1103 + 12345) % 65536; printf "\\0%03o\\0000", int(x / 7) % 256 } }
            printf "\\0273\\0002" }')"
    } >"$path"
}
