#!/bin/sh
# Tests of scripts/report as its user meets it, then of the page in a browser: every part is drawn, no script error, sorting,
# legend, hovering and refreshing work, hostile names stay text. The browser's part needs Chromium (Debian: chromium) and is
# skipped without it; its pictures stay in build/report. Last line: `N passed, N failed`, `, N skipped`.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
export PYTHONDONTWRITEBYTECODE=1
passed=0 failed=0
. scripts/checks.sh
report() { scripts/report "$@" >"$work/out" 2>"$work/err" </dev/null; }
made_up() { (cd scripts && python3 -c "from compare_lib import made_up_runs as made_up; $1" "$work"); }

# ---- the program
made_up "import sys; made_up.write_comparison(sys.argv[1] + '/cmp')"
report "$work/cmp" -o "$work/cmp.html"
check_equal "a comparison: exit code" $? 0
check_contains "a comparison: what was written" "10 attentions, 30 runs" "$work/out"
report "$work/cmp/softmax_seed1" "$work/cmp/elu_seed1" "$work/nothing" -o "$work/runs.html" --no-samples --title "Two <runs>"
check_equal "runs: exit code" $? 0
check_contains "what is left out is named" "left out: $work/nothing: no such directory" "$work/err"
check_contains "and stands on the page" "/nothing: no such directory" "$work/runs.html"
check_contains "the title is text" "<h1>Two &lt;runs&gt;</h1>" "$work/runs.html"
report "$work/nothing" -o "$work/no.html"
check_equal "nothing to show: exit code" $? 1
check_contains "nothing to show: message" "no run is left to show" "$work/err"
report "$work/cmp" -o "$work/no/such/folder.html"
check_equal "a page that cannot be written: exit code" $? 1
report "$work/cmp" --scaling "$work/cmp.html" -o "$work/no.html"
check_contains "a scaling file of something else" "expected rows of attention" "$work/err"

# ---- watching: a page while a run goes on, a last one when it is over
sed '/"step": 300,/,$d' "$work/cmp/elu_seed1/metrics.jsonl" >"$work/half"
mkdir "$work/live" && cp "$work/half" "$work/live/metrics.jsonl"
scripts/report --watch "$work/live" -o "$work/live.html" --every 1 --no-samples >"$work/out" 2>"$work/err" </dev/null &
watching=$!
tries=0
until [ -s "$work/live.html" ] || [ $tries -ge 200 ]; do sleep 0.05; tries=$((tries + 1)); done
check_contains "watching: the page refreshes itself" '"refresh": 1' "$work/live.html"
check_contains "watching: it says that it is not the end" "Still training" "$work/live.html"
cp "$work/cmp/elu_seed1/metrics.jsonl" "$work/live/metrics.jsonl"
wait $watching
check_equal "watching ends with the run" $? 0
check_contains "watching: the last page stays" '"refresh": null' "$work/live.html"

# ---- in a browser
browser=""
for candidate in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $candidate || true)
done
shots=${BUILD:-build}/report
open_page() { # options, address; as root there is no sandbox to be had
    timeout 60 "$browser" --headless=new --disable-gpu --hide-scrollbars --virtual-time-budget=3000 \
        --user-data-dir="$work/profile" $([ "$(id -u)" != 0 ] || echo --no-sandbox) "$@" 2>"$work/browser"
}
instrument() { # page, checks: errors are collected from the start, checks run at the end
    awk -v checks="scripts/compare_lib/$2" '
        /<meta charset/ { print; print "<script>window.errors = []; addEventListener(\"error\", (e) => errors.push(e.message));" \
            "addEventListener(\"securitypolicyviolation\", (e) => errors.push(\"policy: \" + e.violatedDirective));</script>"; next }
        /^<\/body>/ { print "<script>"; while ((getline line <checks) > 0) print line; print "</script>" }
        { print }' "$1"
}
judge() { # name, page: the lines that the checks left in it
    open_page --dump-dom "file://$2" | sed -n 's/^\(ok\|FAIL\) /\1 /p' >"$work/checks"
    [ -s "$work/checks" ] || fail "$1: the checks did not run" "$(tail -n 3 "$work/browser")"
    while read -r verdict what; do
        if [ "$verdict" = ok ]; then pass; else fail "$1: $what"; fi
    done <"$work/checks"
}
if [ -n "$browser" ]; then
    mkdir -p "$shots"
    instrument "$work/cmp.html" test_page.js >"$work/checked.html"
    judge "page" "$work/checked.html"
    made_up "import sys; sys.path.insert(0, 'compare_lib'); import test_compare; test = test_compare.Pages(); test.setUp(); \
open(sys.argv[1] + '/hostile.html', 'w').write(test.hostile_page())"
    instrument "$work/hostile.html" test_hostile_page.js >"$work/hostile_checked.html"
    judge "hostile names" "$work/hostile_checked.html"
    made_up "import sys; made_up.write_other_vocabulary(sys.argv[1] + '/other', 'elu', 1, 0.8)"
    report "$work/cmp/softmax_seed1" "$work/other" -o "$work/vocabularies.html" --no-samples
    instrument "$work/vocabularies.html" test_vocabularies_page.js >"$work/vocabularies_checked.html"
    judge "vocabularies" "$work/vocabularies_checked.html"
    echo "<body style='margin:0'><iframe src='cmp.html' style='border:0;width:390px;height:6400px'></iframe>" >"$work/phone.html"
    open_page --window-size=1200,4000 --screenshot="$shots/light.png" "file://$work/cmp.html"
    open_page --window-size=1200,4000 --blink-settings=preferredColorScheme=0 --screenshot="$shots/dark.png" "file://$work/cmp.html"
    open_page --window-size=500,6400 --screenshot="$shots/phone.png" "file://$work/phone.html"
    open_page --no-pdf-header-footer --print-to-pdf="$shots/print.pdf" "file://$work/cmp.html"
    for shot in light.png dark.png phone.png print.pdf; do
        if [ -s "$shots/$shot" ]; then pass; else fail "no picture $shots/$shot"; fi
    done
else
    skip "the page in a browser" "there is no chromium (Debian: apt-get install chromium)"
fi

summary
