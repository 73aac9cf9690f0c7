#!/bin/sh
# Draws a run's loss curve on the terminal: scripts/curve.sh RUN [FLOOR], the floor in nats per token.
# Dots are the training loss (means over a column's steps), o the validation loss, - the floor; the scale is logarithmic.
. "$(dirname "$0")/usage.sh"
take_words 1 2 "$@"
run=$1
[ -r "$run/metrics.jsonl" ] || refuse "$run/metrics.jsonl: no such file; give a run directory"
awk -v floor="${2:-}" '
function number(key,   at) {
    at = match($0, "\"" key "\": [-0-9.e+]+")
    return at ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : ""
}
/"type": "step"/ { n++; step[n] = number("step"); loss[n] = number("loss") }
/"type": "validation"/ { v++; val_step[v] = number("step"); val[v] = number("loss") }
function row(y) { return int(log(top / y) / log(top / bottom) * (height - 1) + 0.5) }
function put(c, r, mark) { if (r >= 0 && r < height) cell[c, r] = mark }
END {
    if (n == 0) { print "curve: no steps yet"; exit }
    width = 72; height = 16
    last = step[n]; if (last < 1) last = 1
    top = -1e9; bottom = 1e9
    for (i = 1; i <= n; i++) {
        c = int((step[i] - 1) / last * width); sum[c] += loss[i]; count[c]++
    }
    for (c = 0; c < width; c++) if (count[c]) {
        mean[c] = sum[c] / count[c]
        if (mean[c] > top) top = mean[c]
        if (mean[c] < bottom) bottom = mean[c]
    }
    for (i = 1; i <= v; i++) if (val[i] < bottom) bottom = val[i]
    if (floor != "" && floor < bottom) bottom = floor + 0
    if (bottom < 1e-6) bottom = 1e-6
    if (top < bottom * 1.000001) top = bottom * 2
    if (floor != "") for (c = 0; c < width; c++) put(c, row(floor), "-")
    for (c = 0; c < width; c++) if (count[c]) put(c, row(mean[c]), ".")
    for (i = 1; i <= v; i++) put(int((val_step[i] - 1) / last * width), row(val[i]), "o")
    for (r = 0; r < height; r++) {
        y = top * exp(-log(top / bottom) * r / (height - 1))
        line = sprintf("%7.3f |", y)
        for (c = 0; c < width; c++) line = line ((c, r) in cell ? cell[c, r] : " ")
        sub(/ +$/, "", line); print line
    }
    line = "        +"; for (c = 0; c < width; c++) line = line "-"; print line
    printf "         step 1%*sstep %d    . training  o validation%s\n", width - 40, "", step[n], floor != "" ? "  - floor" : ""
}' "$run/metrics.jsonl"
