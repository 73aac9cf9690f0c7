#!/bin/sh
# Tests of get_corpus.sh and its readers, without a network: stand-ins play curl, apt-get and pip.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0
. scripts/checks.sh

check() { # description, command...
    what=$1
    shift
    if ("$@") >"$folder/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        sed 's/^/  /' "$folder/output" | head -20
    fi
}
stand_in() { # name; the script is standard input
    mkdir -p "$folder/bin"
    cat >"$folder/bin/$1"
    chmod +x "$folder/bin/$1"
}
get() { # runs the script with the stand-ins first
    PATH="$folder/bin:$PATH" scripts/get_corpus.sh "$@"
}
# Must fail with exit code 1 and one line that says `part`, and leave nothing behind.
refused() { # part, arguments...
    part=$1
    shift
    rm -rf "$folder/data"
    message=$(get "$@" --out "$folder/data/x" 2>&1 >/dev/null)
    status=$?
    echo "$message (exit code $status)"
    [ $status -eq 1 ] && [ "$(echo "$message" | wc -l)" -eq 1 ] && [ ! -e "$folder/data" ] &&
        case $message in "get_corpus: "*"$part"*) true ;; *) false ;; esac
}

# ---- options

check "help goes to standard output" sh -c "scripts/get_corpus.sh --help | grep -q fineweb"
check "unknown corpus" refused "no such corpus" nonsense
check "unknown option" refused "unknown option --nonsense" austen --nonsense
check "missing value" refused "needs a value" austen --vocab ""
check "bad number" refused "from 1 to 103" fineweb --shards 104
check "zero" refused "from 1 to 65536" austen --vocab 0
check "text for a number" refused "from 1 to 65536" austen --vocab 1k
check "fineweb with a vocabulary" refused "leave --vocab out" fineweb --vocab 300
check "prose of something else" refused "enwik8 only" austen --prose
check "two corpora" refused "one corpus at a time" austen enwik8
no_name() { ! scripts/get_corpus.sh >/dev/null 2>&1; }
check "no corpus" no_name

# ---- stories

makes_stories() {
    rm -rf "$folder/data"
    get stories --megabytes 1 --vocab 400 --out "$folder/data/x" && cd "$folder/data/x" && ls -l && [ "$(ls -A ..)" = x ] &&
        [ "$(wc -c <train.txt)" -ge 1000000 ] && [ -s stories_train_000000.bin ] && [ -s stories_val_000000.bin ] &&
        grep -q floor stories.json
}
check "stories become shards, with their floor" makes_stories

# ---- text files and folders

seq -f 'line %g of a small text' 1 1000 | awk '{ print } NR % 10 == 0 { print "" }' >"$folder/text.txt"
splits_a_file() {
    rm -rf "$folder/data"
    get "$folder/text.txt" --out "$folder/data/x" && cd "$folder/data/x" && ls -A .. &&
        [ "$(ls -A ..)" = x ] && [ "$(ls)" = "train.txt
val.txt" ] && cat train.txt val.txt | cmp - "$folder/text.txt" && head -1 val.txt && head -1 val.txt | grep -q 'line 961 '
}
check "a file is split at a paragraph, nothing lost" splits_a_file
keeps_what_is_there() { get "$folder/text.txt" --out "$folder/data/x" | grep -q "there already"; }
check "an existing corpus is kept" keeps_what_is_there
makes_shards() {
    get "$folder/text.txt" --out "$folder/data/x" --vocab 300 && cd "$folder/data/x" &&
        [ -s vocab.tiktoken ] && [ -s text_train_000000.bin ] && [ -s text_val_000000.bin ]
}
check "an existing corpus is made into shards" makes_shards

splits_a_folder() {
    mkdir -p "$folder/books/deep er" && cd "$folder/books" || return 1
    for n in 11 12 13; do seq -f "book $n line %g" 1 200 >"$n.txt"; done
    printf 'no line end' >"deep er/a.md"
    printf 'ignored' >x.bin
    cd "$root" && rm -rf "$folder/data"
    get "$folder/books" --out "$folder/data/x" && cat "$folder/data/x/train.txt" "$folder/data/x/val.txt" >"$folder/all" &&
        [ "$(grep -c '^<|endoftext|>$' "$folder/all")" -eq 4 ] && [ "$(grep -c '^book' "$folder/all")" -eq 600 ] &&
        grep -q '^no line end$' "$folder/all" && ! grep -q ignored "$folder/all" &&
        [ "$(head -1 "$folder/data/x/train.txt")" = "book 11 line 1" ]
}
check "a folder becomes documents in order of names" splits_a_folder
# The commands that are printed as next, in one line each; they are run as a shell reads them.
next_commands() { get "$@" | sed -n '/^next:$/,$p' | sed 1d | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}'; }
advises_minutes() {
    rm -rf "$folder/it's here"
    next_commands "$folder/books" --out "$folder/it's here" >"$folder/next" && cat "$folder/next" && [ "$(wc -l <"$folder/next")" -eq 3 ] &&
        grep -q -e "--seconds 200 --out runs/books" "$folder/next" &&
        for option in $(grep -v '^#' scripts/recipe.txt); do grep -qF -e " $option " "$folder/next" || return 1; done &&
        sed "s|--seconds 200 --out [^ ]*|--steps 2 --out '$folder/run'|" "$folder/next" >"$folder/shortened" &&
        sh -e "$folder/shortened" </dev/null && ls -d "$folder/run/step_00000002"
}
check "the commands that come next run, and end in minutes" advises_minutes
advises_another_run() {
    mkdir -p "$folder/tree/runs/books" && cp -r scripts "$folder/tree/" && cd "$folder/tree" &&
        scripts/get_corpus.sh "$folder/books" | tail -n 1 | grep -q -e "--out runs/books_2$"
}
check "a run that is there already is not named" advises_another_run
printf 'one line only' >"$folder/short.txt"
check "a text too short to split" refused "too little text" "$folder/short.txt"
: >"$folder/empty.txt"
check "an empty file" refused "too little text" "$folder/empty.txt"
printf 'text\0more\n' >"$folder/zero.txt"
check "a file that is no text" refused "not text" "$folder/zero.txt"
mkdir -p "$folder/nothing"
check "a folder without text" refused "no .txt or .md files" "$folder/nothing"

# ---- downloads that fail, and downloads that are not what they should be

echo 'echo "curl: (6) Could not resolve host" >&2; exit 6' | stand_in curl
check "shakespeare without a network" refused "check the network" shakespeare
check "fineweb without a network" refused "check the network" fineweb
stand_in curl <<'END'
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo 'a page, not the file' >"$2"; shift; done
END
check "shakespeare changed at its source" refused "checksum is wrong" shakespeare
check "fineweb changed at its source" refused "checksum is wrong" fineweb --shards 2

# A curl whose files hold their own checksum, and a sha256sum that reads it from there: all is well.
stand_in curl <<'END'
while [ $# -gt 0 ]; do [ "$1" = -o ] && file=$2; address=$1; shift; done
case $address in
    */raw/*/fineweb_train_000002.bin) printf 'version 1\noid sha256:%064d\nsize 7\n' 2 >"$file" ;;
    */resolve/*/fineweb_train_000002.bin) printf '%064d\n' 2 >"$file" ;;
    */fineweb_train_000001.bin) echo 771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e >"$file" ;;
    */fineweb_val_000000.bin) echo 5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640 >"$file" ;;
    *) exit 22 ;;
esac
END
echo cat | stand_in sha256sum
gets_fineweb() {
    rm -rf "$folder/data"
    get fineweb --shards 2 --out "$folder/data/x" && [ "$(ls -A "$folder/data")" = x ] &&
        [ "$(ls "$folder/data/x")" = "fineweb_train_000001.bin
fineweb_train_000002.bin
fineweb_val_000000.bin" ]
}
check "fineweb, sums from here and from the index" gets_fineweb
check "fineweb without an index entry" refused "cannot download" fineweb --shards 3
rm "$folder/bin/sha256sum"

echo 'echo "E: Unable to locate package r-cran-janeaustenr"; exit 100' | stand_in apt-get
check "austen without package lists" refused "sudo apt-get update" austen
stand_in python3 <<'END'
case " $* " in *" --version "*) exit 0 ;; *" pip "*) echo "ERROR: No matching distribution found" >&2; exit 1 ;; esac
END
check "enwik8 without a network" refused "No matching distribution" enwik8
rm "$folder/bin/python3"

# ---- the reader of R's files, on files written here

cat >"$folder/write_r.py" <<'END'
import struct, sys, zlib

def string(text):
    data = text.encode()
    return struct.pack(">ii", 0x40009, len(data)) + data

def strings(values):
    return struct.pack(">ii", 16, len(values)) + b"".join(map(string, values))

def names(values, new):
    symbol = struct.pack(">i", 1) + string("names") if new else struct.pack(">i", 0x1FF)
    return struct.pack(">i", 0x402) + symbol + strings(values) + struct.pack(">i", 0xFE)

def start():
    return b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8"

novels = ["emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility"]
blocks, places = b"", b""
for novel in novels:
    lines = [novel.upper(), "", "It was a long", "  line with a £ sign.", "", "", "", "The", "end"] * 40
    contents = start() + strings(lines)
    block = struct.pack(">I", len(contents)) + zlib.compress(contents)
    places += struct.pack(">iiii", 13, 2, len(blocks), len(block))
    blocks += block
variables = struct.pack(">ii", 0x213, len(novels)) + places + names(novels, True)
index = start() + struct.pack(">ii", 0x213, 1) + variables + names(["variables"], False)
compress = zlib.compressobj(wbits=31)
open(sys.argv[1] + "/Rdata.rdx", "wb").write(compress.compress(index) + compress.flush())
open(sys.argv[1] + "/Rdata.rdb", "wb").write(blocks)
END
package=$folder/package/usr/lib/R/site-library/janeaustenr/data
mkdir -p "$package" "$folder/novels"
reads_r() {
    python3 "$folder/write_r.py" "$package" && python3 scripts/extract_austen.py "$package" "$folder/novels" &&
        [ "$(find "$folder/novels" -name '*.txt' | wc -l)" -eq 6 ] && head -n 4 "$folder/novels/emma.txt" | diff - "$folder/expected"
}
printf 'EMMA\n\nIt was a long line with a £ sign.\n\n' >"$folder/expected"
check "R's files are read, lines joined to paragraphs" reads_r
bad_r() { # a damaged file must give a message, not a Python trace
    message=$(python3 scripts/extract_austen.py "$1" "$folder/novels" 2>&1)
    [ $? -eq 1 ] && echo "$message" && [ "$(echo "$message" | wc -l)" -eq 1 ] &&
        case $message in *"cannot read the novels"*) true ;; *) false ;; esac
}
mkdir -p "$folder/damaged"
cp "$package"/* "$folder/damaged" && head -c 900 "$package/Rdata.rdb" >"$folder/damaged/Rdata.rdb"
check "a data file cut short" bad_r "$folder/damaged"
echo nonsense >"$folder/damaged/Rdata.rdx"
check "an index that is nonsense" bad_r "$folder/damaged"
check "no data file" bad_r "$folder/nothing"

# An apt-get that delivers the files written above: another edition.
mkdir -p "$folder/package/DEBIAN"
printf 'Package: r-cran-janeaustenr\nVersion: 9\nArchitecture: all\nMaintainer: x\nDescription: x\n' \
    >"$folder/package/DEBIAN/control"
if dpkg-deb -b "$folder/package" "$folder/austen.deb" >/dev/null 2>&1; then
    echo "cp '$folder/austen.deb' r-cran-janeaustenr_9_all.deb" | stand_in apt-get
    check "another edition of the novels" refused "another edition" austen
    takes_another_edition() {
        rm -rf "$folder/data"
        get austen --unverified --out "$folder/data/x" && cd "$folder/data/x" &&
            [ "$(grep -c '^<|endoftext|>$' train.txt)" -eq 4 ] && grep -q PERSUASION val.txt && ! grep -q PERSUASION train.txt
    }
    check "another edition of the novels, on request" takes_another_edition
else
    skip "another edition of the novels" "dpkg-deb cannot make a package here"
fi

# ---- enwik8 to prose

cat >"$folder/wiki.xml" <<'END'
<page><title>Redirected</title><id>1</id><text xml:space="preserve">#REDIRECT [[Elsewhere]]</text></page>
<page><title>Wikipedia:Rules</title><text xml:space="preserve">These are rules that nobody wants to read in prose. They are long enough, though, to count as an article, if they were in the main namespace, which they are not, as anybody can see from the title above them.</text></page>
END
number=0
while [ $number -lt 20 ]; do
    cat <<'END'
<page><title>Tea &amp; milk</title><text xml:space="preserve">{{Infobox|a={{nested|b}}}}
'''Tea''' is a [[drink|hot drink]] made of [[leaf|leaves]] and [[water]]&lt;ref name=&quot;x&quot;&gt;A book, page 3.&lt;/ref&gt; in a pot.
[[Image:Pot.jpg|thumb|A [[pot]] of tea.]] It is 5&amp;nbsp;minutes old, says [http://example.org the one who made it], and it is good.
{| class=&quot;x&quot;
| a table || with cells {| and an inner one |} that are not prose at all.
|}
== History ==
* a list item that is quite long but still no prose, whatever it says.
== Drinking ==
Nobody knows who drank it first, but &lt;!-- not shown --&gt; everybody knows who drank it last: the one beside the pot.
[[Category:Drinks]] [[de:Tee]]</text></page>
END
    number=$((number + 1))
done >>"$folder/wiki.xml"
cat >"$folder/tea" <<'END'
Tea & milk

Tea is a hot drink made of leaves and water in a pot.

It is 5 minutes old, says the one who made it, and it is good.

Drinking

Nobody knows who drank it first, but everybody knows who drank it last: the one beside the pot.
END
strips_wiki() {
    python3 scripts/strip_enwik.py "$folder/wiki.xml" "$folder/train" "$folder/val" && diff "$folder/tea" "$folder/val" &&
        [ "$(grep -c '^<|endoftext|>$' "$folder/train")" -eq 18 ]
}
check "wiki text is stripped to prose" strips_wiki
no_articles() { ! python3 scripts/strip_enwik.py "$folder/text.txt" "$folder/train" "$folder/val"; }
check "a file without articles" no_articles

summary
