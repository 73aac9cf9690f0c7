#!/bin/sh
# Fetches a corpus into data/NAME as train.txt and val.txt, documents separated by lines <|endoftext|>; with --vocab
# also trains a tokenizer and writes token shards. Every download is verified; a failure leaves nothing behind.
set -u

usage() {
    cat <<'END'
usage: scripts/get_corpus.sh NAME [options]

  stories        made up here by ./stories; needs no network
  austen         five novels by Jane Austen, a sixth (Persuasion) held out; from a Debian package
  enwik8         the first 10^8 bytes of a Wikipedia dump, split 90:5:5; from a Python package
  shakespeare    1 MB of plays
  fineweb        web text as shards of GPT-2 tokens, ready for training; 200 MB each
  PATH           a text file, or a folder of .txt and .md files

  --out DIR      where to (data/NAME)
  --vocab K      also train a tokenizer of K tokens and write shards; auto: as many as the text is enough for
  --prose        enwik8: only the prose of the articles, every 20th held out
  --shards N     fineweb: number of training shards (1, at most 103)
  --megabytes N  stories: how much text (20)
  --unverified   austen: take another edition of the text than the one known here
END
}

fail() {
    echo "get_corpus: $*" >&2
    exit 1
}

# ---- options

name="" out="" vocab="" prose="" shards=1 megabytes=20 unverified=""
count_option() { # --option value most: a whole number from 1 to most
    case $2 in '' | *[!0-9]* | ??????????*) fail "$1 $2: expected a whole number from 1 to $3" ;; esac
    { [ "$2" -ge 1 ] && [ "$2" -le "$3" ]; } || fail "$1 $2: expected a whole number from 1 to $3"
}
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --prose) prose=1 ;;
        --unverified) unverified=1 ;;
        --out | --vocab | --shards | --megabytes)
            [ $# -ge 2 ] && [ -n "$2" ] || fail "$1 needs a value; see --help"
            case $1 in
                --out) out=$2 ;;
                --vocab) { [ "$2" = auto ] || count_option "$1" "$2" 65536; } && vocab=$2 ;;
                --shards) count_option "$1" "$2" 103 && shards=$2 ;;
                --megabytes) count_option "$1" "$2" 100000 && megabytes=$2 ;;
            esac
            shift
            ;;
        -*) fail "unknown option $1; see --help" ;;
        *) [ -z "$name" ] || fail "one corpus at a time: $name, $1"; name=$1 ;;
    esac
    shift
done
[ -n "$name" ] || { usage >&2; exit 1; }

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
corpus=$name source_path="" # the corpus may be kept under another name
case $name in
    stories | austen | enwik8 | shakespeare | fineweb) ;;
    *)
        corpus=path
        [ -e "$name" ] || fail "$name: no such corpus, file or folder; see --help"
        source_path=$(readlink -f -- "$name")
        name=$(basename -- "$source_path")
        case $name in .*) ;; *) name=${name%%.*} ;; esac
        name=$(printf '%s' "$name" | LC_ALL=C tr -c 'A-Za-z0-9_.-' _)
        ;;
esac
[ -z "$prose" ] || name=${name}_prose
case $out in '') out=$root/data/$name ;; /*) ;; *) out=$PWD/$out ;; esac
[ -z "$prose" ] || [ "$corpus" = enwik8 ] || fail "--prose is for enwik8 only"
[ -z "$vocab" ] || [ "$corpus" != fineweb ] || fail "fineweb comes as GPT-2's tokens already; leave --vocab out"
[ -z "$vocab" ] || [ -x "$root/tokenize" ] || fail "./tokenize is missing; run make first"

# ---- everything is fetched into a folder beside the destination, which gets its name when it is complete

parent=$(dirname -- "$out") made_parent=""
clean_up() {
    rm -rf -- "$stage"
    [ -z "$made_parent" ] || rmdir -- "$parent" 2>/dev/null
}
prepare_stage() {
    [ -d "$parent" ] || { mkdir -p -- "$parent" && made_parent=1; } || fail "$parent: cannot create it"
    stage=$(mktemp -d -- "$parent/.get_corpus.XXXXXX") || fail "$parent: cannot write there"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP PIPE
    work=$stage/work result=$stage/result
    mkdir "$work" "$result" || fail "$stage: cannot write there"
}
need() { # program, Debian package
    command -v "$1" >/dev/null 2>&1 || fail "$1 is missing; install it (Debian: sudo apt-get install $2)"
}
verify() { # algorithm, expected sum, file
    found=$("$1" <"$3" | cut -d' ' -f1)
    [ "$found" = "$2" ] || fail "$(basename -- "$3"): the checksum is wrong ($1: expected $2, found $found); \
the download is damaged or was changed at its source; nothing was kept: try again later"
}
download() { # address, file
    need curl curl
    curl -fL --retry 2 --silent --show-error -o "$2" -- "$1" 2>"$work/log" || fail "cannot download $1 \
($(tail -n 1 "$work/log")); nothing was kept: check the network, then try again"
}

# ---- splitting: the last twentieth of the text, from the next document or paragraph on, is held out

split_text() { # file
    bytes=$(wc -c <"$1")
    (cd "$result" && LC_ALL=C awk -v bytes="$bytes" '
        BEGIN { out = "train.txt" }
        out == "train.txt" && done >= bytes * 0.95 && (between || done >= bytes * 0.975) { out = "val.txt" }
        { print >out; done += length($0) + 1; between = $0 == "" || $0 == "<|endoftext|>" }' "$1") ||
        fail "cannot write to $stage"
    for part in train val; do
        grep -q '[^[:space:]]' "$result/$part.txt" 2>/dev/null ||
            fail "$source_path: too little text, or too few lines, to hold a part out for validation"
    done
}

# ---- the corpora

get_stories() {
    [ -x "$root/stories" ] || fail "./stories is missing; run make first"
    ./stories --bytes "${megabytes}M" --out "$result/train.txt" --validation-stories 1000 \
        --validation-out "$result/val.txt" --floor-out "$result/floor.json" || exit 1
}

# sha256 of the extracted texts of package version 1.0.0
austen_train_sum=78390603c5ed826a3931b4ce47fcf05185cd46609d077bbe7f3207f22f2ef2ff
austen_val_sum=ea05f5bd05c12e0b8a04e80ff9f65cb37920658ac47d07a58f615733f93664d2
get_austen() {
    need python3 python3
    need dpkg-deb dpkg
    need apt-get apt
    # apt checks the package against its signed lists.
    (cd "$work" && apt-get -qq download r-cran-janeaustenr >log 2>&1) || fail "apt-get download r-cran-janeaustenr failed \
($(tail -n 1 "$work/log")); run: sudo apt-get update, then try again"
    dpkg-deb -x "$work"/r-cran-janeaustenr_*.deb "$work/package" || fail "the package cannot be unpacked; try again"
    mkdir "$work/novels"
    python3 scripts/extract_austen.py "$work/package/usr/lib/R/site-library/janeaustenr/data" "$work/novels" || exit 1
    for novel in emma mansfieldpark northangerabbey prideprejudice sensesensibility persuasion; do
        [ -s "$work/novels/$novel.txt" ] || fail "the package does not hold the six novels ($novel is missing)"
    done
    (cd "$work/novels" && cat emma.txt && for novel in mansfieldpark northangerabbey prideprejudice sensesensibility; do
        echo '<|endoftext|>' && cat $novel.txt || exit 1
    done) >"$result/train.txt" && cp "$work/novels/persuasion.txt" "$result/val.txt" || fail "cannot write to $stage"
    [ -n "$unverified" ] || printf '%s  %s\n' $austen_train_sum train.txt $austen_val_sum val.txt |
        (cd "$result" && sha256sum --quiet --check >/dev/null 2>&1) ||
        fail "the novels are of another edition than the package's version 1.0.0 (the sha256 differs); nothing was kept: \
to take them as they are, add --unverified"
}

# pip wants to know a source package's metadata, for which it would fetch and run its build system. This stand-in for that
# system answers instead, so that pip only downloads (and checks) the file and nothing of the package is run.
write_build_stand_in() { # folder
    mkdir -p "$1/hatchling"
    : >"$1/hatchling/__init__.py"
    cat >"$1/hatchling/build.py" <<'END'
import os


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    folder = "mingru_pytorch-0.2.1.dist-info"
    os.mkdir(os.path.join(directory, folder))
    with open(os.path.join(directory, folder, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: mingru-pytorch\nVersion: 0.2.1\n")
    return folder
END
}

enwik8_package_sum=fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d # sha256 of the package
enwik8_sum=a1fa5ffddb56f4953e226637dabbb36a                                         # md5 of the unpacked text
get_enwik8() {
    need python3 python3
    python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing; install it (Debian: sudo apt-get install python3-pip)"
    write_build_stand_in "$work/stand_in"
    echo "mingru-pytorch==0.2.1 --hash=sha256:$enwik8_package_sum" >"$work/requirements.txt"
    PYTHONPATH=$work/stand_in python3 -m pip download --quiet --no-cache-dir --no-deps --no-build-isolation \
        --no-binary :all: --dest "$work" -r "$work/requirements.txt" >"$work/log" 2>&1 ||
        fail "pip could not download mingru-pytorch 0.2.1, which holds enwik8 ($(grep -i error "$work/log" | head -n 1)); \
nothing was kept: check the network, then try again"
    tar -xzOf "$work/mingru_pytorch-0.2.1.tar.gz" mingru_pytorch-0.2.1/data/enwik8.gz | gzip -dc >"$work/enwik8" ||
        fail "the package does not hold enwik8; nothing was kept"
    verify md5sum $enwik8_sum "$work/enwik8"
    if [ -n "$prose" ]; then
        python3 scripts/strip_enwik.py "$work/enwik8" "$result/train.txt" "$result/val.txt" || exit 1
    else # the split that published results on enwik8 use
        head -c 90000000 "$work/enwik8" >"$result/train.txt" &&
            tail -c 10000000 "$work/enwik8" | head -c 5000000 >"$result/val.txt" &&
            tail -c 5000000 "$work/enwik8" >"$result/test.txt" || fail "cannot write to $stage"
    fi
}

shakespeare_sum=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
get_shakespeare() {
    download https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt "$work/input.txt"
    verify sha256sum $shakespeare_sum "$work/input.txt"
    split_text "$work/input.txt"
}

# The sums of the first two are known here; the others' are in the data set's own index, at a fixed revision.
fineweb_address=https://huggingface.co/datasets/kjj0/fineweb10B-gpt2
fineweb_revision=889765ea1f903759787add96995d81171b632d0c
fineweb_sum() { # file name
    case $1 in
        fineweb_val_000000.bin) echo 5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640 ;;
        fineweb_train_000001.bin) echo 771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e ;;
        *)
            download "$fineweb_address/raw/$fineweb_revision/$1" "$work/index"
            sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p' "$work/index"
            ;;
    esac
}
get_fineweb() {
    number=0
    while [ $number -le "$shards" ]; do
        file=$(printf 'fineweb_train_%06d.bin' $number)
        [ $number -gt 0 ] || file=fineweb_val_000000.bin
        echo "get_corpus: $file ($number of $shards)"
        sum=$(fineweb_sum "$file") || exit 1
        [ -n "$sum" ] || fail "$file: the data set's index does not tell its checksum; nothing was kept"
        download "$fineweb_address/resolve/$fineweb_revision/$file" "$work/$file"
        verify sha256sum "$sum" "$work/$file"
        mv "$work/$file" "$result/$file" || exit 1
        number=$((number + 1))
    done
}

get_path() {
    if [ -d "$source_path" ]; then
        find "$source_path" -type f \( -name '*.txt' -o -name '*.md' \) -print0 | LC_ALL=C sort -z >"$work/files"
        [ -s "$work/files" ] || fail "$source_path: no .txt or .md files in this folder"
        # shellcheck disable=SC2016
        xargs -0 sh -c 'for file do
            cat -- "$file" || exit 1
            [ -z "$(tail -c 1 -- "$file")" ] || echo
            echo "<|endoftext|>"
        done' sh <"$work/files" >"$work/text" || fail "$source_path: cannot read it"
    else
        cat -- "$source_path" >"$work/text" || fail "$source_path: cannot read it"
    fi
    [ "$(head -c 1000000 "$work/text" | LC_ALL=C tr -dc '\000' | head -c 1 | wc -c)" -eq 0 ] ||
        fail "$source_path: not text (it has zero bytes)"
    split_text "$work/text"
}

# ---- shards

make_shards() {
    floor=""
    [ "$vocab" != auto ] || vocab=$(vocabulary_size)
    [ ! -e "$shown/floor.json" ] || floor=--floor=$shown/floor.json # what is known about the text goes with its tokens
    ./tokenize train --vocab "$vocab" --out "$shown/vocab.tiktoken" "$shown/train.txt" &&
        ./tokenize encode --vocab-file "$shown/vocab.tiktoken" --out "$shown/$name" ${floor:+"$floor"} \
            --validation-file "$shown/val.txt" "$shown/train.txt" || exit 1
}

# ---- what was asked for

fetch() {
    prepare_stage
    "get_$corpus"
    mv -- "$result" "$out" || fail "$out: cannot be created"
    clean_up # at once, for what follows may take long or be cut off
    echo "$shown: $(cd "$out" && du -bc -- * | awk '$2 != "total" { printf "%s%s %.1f MB", sep, $2, $1 / 1e6; sep = ", " }')"
}
quoted() { # a path as a shell reads it
    case $1 in *[!A-Za-z0-9_./-]*) printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;; *) printf '%s' "$1" ;; esac
}
vocabulary_size() { # that the text has enough different pairs for
    bytes=$(wc -c <"$out/train.txt")
    if [ "$bytes" -ge 1000000 ]; then echo 4096; elif [ "$bytes" -ge 100000 ]; then echo 1024; else echo 300; fi
}
# Commands that end in minutes, whatever the size of the corpus.
show_next_steps() {
    echo "next:"
    vocabulary=$(quoted "$shown/vocab.tiktoken") train=$(quoted "$shown/train.txt") val=$(quoted "$shown/val.txt")
    if [ -e "$out/train.txt" ] && [ ! -e "$out/$name.json" ]; then
        echo "  ./tokenize train --vocab $(vocabulary_size) --out $vocabulary $train"
        echo "  ./tokenize encode --vocab-file $vocabulary --out $(quoted "$shown/$name") --validation-file $val $train"
    fi
    options=""
    [ "$corpus" = fineweb ] || options="$options --tokenizer $vocabulary"
    [ "$corpus" != stories ] || options="$options --documents"
    echo "  ./train_gpt2 --train $(quoted "$shown/${name}_train_*.bin") --val $(quoted "$shown/${name}_val_*.bin")$options \\"
    echo "    $(quick_recipe) \\"
    echo "    --seconds 200 --out $(quoted "$(free_name "runs/$name")")"
}

cd "$root" || exit 1
. scripts/recipe.sh
shown=${out#"$root"/} # as it is from here
if [ -e "$out" ]; then echo "$shown is there already; remove it to fetch it again"; else fetch; fi
[ -z "$vocab" ] || [ -e "$out/$name.json" ] || make_shards
show_next_steps
