#!/bin/sh
# Follows docs/attentions.md, "Adding one", to the letter, in a copy of the tree: runs its commands and looks for what
# they are said to print, makes its changes, finds the code that it quotes. Last line: `N passed, N failed`.
#   scripts/test_new_attention.sh
. "$(dirname "$0")/usage.sh"
take_words 0 0 "$@"
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0
export OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
. scripts/checks.sh
command -v python3 >/dev/null || { skip "adding an attention" "there is no python3"; summary; exit; }
gpu=$(dev/cuda_on_cpu/headers.sh --find)

# What is built is copied with its times, so that only what the new mechanisms change is built again.
build=${BUILD:-build}
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD
git ls-files --cached --others --exclude-standard >"$work/all" 2>/dev/null ||
    { skip "adding an attention" "this is no git repository"; summary; exit; }
find "$build" -type f | grep -v "^$build/cuda_on_cpu/" >>"$work/all"
find "$build/cuda_on_cpu/fast" -type f >>"$work/all" 2>/dev/null
while read -r path; do [ ! -f "$path" ] || echo "$path"; done <"$work/all" >"$work/list"
mkdir "$work/tree" && tar cf - -T "$work/list" | (cd "$work/tree" && tar xf -) || exit 1
[ "$build" = build ] || mv "$work/tree/$build" "$work/tree/build"
cd "$work/tree" || exit 1

# The page as files: 01.console, 02.c, ...
mkdir "$work/page"
awk -v to="$work/page" '
    /^## / { inside = $0 == "## Adding one" }
    inside && /^```/ { if (file) { close(file); file = ""; next }
                       file = sprintf("%s/%02d.%s", to, ++n, substr($0, 4)); next }
    file { print >file }' docs/attentions.md
check_equal "blocks of the page" "$(find "$work/page" -type f | wc -l | awk '{ print ($1 >= 15) }')" 1

needs_what_is_missing() { # command
    case $1 in *cuda_on_cpu*) [ -z "$gpu" ] ;; *) false ;; esac
}
run_console() { # block: after each `$ command` the lines that its output has to contain
    command=""
    while IFS= read -r line; do
        case $line in
        '$ '*)
            command=${line#??}
            needs_what_is_missing "$command" && skip "$command" "$(dev/cuda_on_cpu/headers.sh --why)" && continue
            sh -c "$command" >"$work/out" 2>&1 </dev/null && pass && continue
            # The registry's test fails where the page shows a failure.
            grep -q '^failed: ' "$1" || fail "$command" "$(tail -n 20 "$work/out")"
            ;;
        ?*) needs_what_is_missing "$command" || check_contains "$command" "$line" "$work/out" ;;
        esac
    done <"$1"
}
quoted() { # block: whether one of the new files has its lines
    python3 - "$1" attention/*.c attention/*.cu <<'END'
import sys
wanted = open(sys.argv[1]).read()
sys.exit(0 if any(wanted in open(path).read() for path in sys.argv[2:]) else 1)
END
}
change() { # block: hunks of lines to be found and replaced; line numbers are not needed, every hunk fits one place
    python3 - "$1" <<'END'
import sys
lines = open(sys.argv[1]).read().splitlines(keepends=True)
path = lines[1].split("/", 1)[1].strip()
text, hunks = open(path).read(), "".join(lines[2:]).split("@@\n")[1:]
for hunk in hunks:
    lines = hunk.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
    if text.count(old) != 1:
        sys.exit(f"{path}: {text.count(old)} places with\n{old}")
    text = text.replace(old, new)
open(path, "w").write(text)
END
}
for block in "$work"/page/*; do
    case $block in
    *.console) run_console "$block" ;;
    *.diff) message=$(change "$block" 2>&1) && pass || fail "the change in ${block##*/}" "$message" ;;
    *) quoted "$block" && pass || fail "no file has the lines of ${block##*/}" "$(cat "$block")" ;;
    esac
done
summary
