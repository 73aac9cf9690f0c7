# For tests, to be read by `.`: make_shard writes a shard of pseudo-random tokens below 61, through octal escapes.
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
