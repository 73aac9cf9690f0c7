#!/bin/sh
# The comparison of docs/results/compare_enwik8: every attention on the prose of enwik8, each at its own rate, three seeds. It takes
# some 15 hours of two cores, is interrupted by Ctrl-C or SIGTERM, and goes on when it is called again, here or elsewhere: finished
# runs are the small files in docs/results/compare_enwik8/kept. The attentions that decide most come first.
#   dev/experiments/enwik8.sh
cd "$(dirname "$0")/../.." || exit 1
case ${1:-} in --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; ?*) echo "enwik8.sh: unknown option $1; see --help" >&2 && exit 1 ;; esac
corpus=data/enwik8_prose out=docs/results/compare_enwik8
[ -e $corpus/vocab.tiktoken ] || scripts/get_corpus.sh enwik8 --prose --vocab 1024 --out $corpus || exit 1
begun() { # how many attentions an earlier call came to
    python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["attentions"]))' $out/compare.json 2>/dev/null || echo 0
}
set -f # the stars below are no patterns
set --
for more in "softmax uniform" \
    "slay elu softmax:decay=learned slay:decay=learned elu:decay=learned uniform:decay=learned" \
    "yat-spherical slay:preset=recall softmax:window=64 favor:M=384 yat yat:normalizer=softmax
     slay*3:decay=learned+softmax:window=64,decay=learned" \
    "cosformer favor favor:features=exp slay:poly=none,M=128 slay:fusion=hadamard,M=128 slay:preset=recall,decay=learned
     slay:poly=exact"; do
    # shellcheck disable=SC2086
    set -- "$@" $more
    [ $# -ge "$(begun)" ] || continue
    scripts/compare --attentions "$@" --seeds 2,3,4 --budget 10.24Mtokens --rates 1e-3,3e-3,1e-2 --sweep-budget 2.048Mtokens \
        --sweep-seed 1 --corpus $corpus --model layers=4,heads=3,width=144,context=256 --jobs 2 --no-costs --out $out \
        --runs runs/compare_enwik8 -- --warmup 200 || exit
done
