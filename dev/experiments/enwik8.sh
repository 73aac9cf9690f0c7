#!/bin/sh
# The comparison of docs/results/compare_enwik8: every attention on the prose of enwik8, each at its own rate, three seeds. It is
# interrupted by Ctrl-C or SIGTERM and goes on when it is called again, here or elsewhere: finished runs are the small files in
# docs/results/compare_enwik8/kept. The attentions that decide most come first; the page shows what is there after every run.
#   dev/experiments/enwik8.sh          the mechanisms, their controls and feature-matched rows: 15 rows
#   dev/experiments/enwik8.sh --all    also SLAY's variants, other features and a hybrid: 8 rows more
# The budget: a step of 2048 tokens with a million weights outside the embeddings takes 0.2 seconds of a core, two thirds of it
# matrix products near the processor's rate, so a run of 10 million tokens 17 minutes; three rates at a tenth of that and three seeds
# make 56 minutes a row, and 15 rows some seven hours of two idle cores.
cd "$(dirname "$0")/../.." || exit 1
variants="slay:preset=recall elu:decay=learned slay*3:decay=learned+softmax:window=64,decay=learned slay:preset=recall,decay=learned
    slay:fusion=hadamard,M=128 favor:features=exp rff slay:poly=exact"
case ${1:-} in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    --all) ;;
    '') variants="" ;;
    *) echo "enwik8.sh: unknown option $1; see --help" >&2 && exit 1 ;;
esac
corpus=data/enwik8_prose out=docs/results/compare_enwik8
[ -e $corpus/vocab.tiktoken ] || scripts/get_corpus.sh enwik8 --prose --vocab 1024 --out $corpus || exit 1
begun() { # how many attentions an earlier call came to
    python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["attentions"]))' $out/compare.json 2>/dev/null || echo 0
}
set -f # the stars above are no patterns
set --
for more in "softmax uniform slay" \
    "elu softmax:decay=learned slay:decay=learned uniform:decay=learned" \
    "favor:M=384 slay:poly=none,M=128 softmax:window=64 yat yat:normalizer=softmax yat-spherical favor cosformer" \
    "$variants"; do
    # shellcheck disable=SC2086
    set -- "$@" $more
    [ $# -ge "$(begun)" ] || continue
    scripts/compare --attentions "$@" --seeds 2,3,4 --budget 10.24Mtokens --rates 1e-3,3e-3,1e-2 --sweep-budget 1.024Mtokens \
        --sweep-seed 1 --corpus $corpus --model layers=4,heads=3,width=144,context=256 --jobs 2 --no-costs --out $out \
        --runs runs/compare_enwik8 -- --warmup 100 || exit
done
