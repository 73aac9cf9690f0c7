"use strict";
// Draws the figures, sorts the table, keeps what the reader chose. Text from the data only ever becomes text nodes.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");
  const NAME_LENGTH = 15; // of a label at the end of a line
  const DASHES = ["", "7 4", "2 4", "10 3 2 3", "4 2", "12 5"];
  const MARKS = { softmax: "circle", yat: "square", "yat-spherical": "diamond", elu: "up", cosformer: "down", favor: "cross",
    slay: "circle", uniform: "square" };

  // ---- what the reader chose, kept over a refresh

  const KEY = "slay.c " + data.title;
  const state = Object.assign({ hidden: [], curve: "validation", x: "linear", y: "log", sort: null, open: [] }, load());
  function load() {
    try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch (error) { return {}; }
  }
  function save() {
    try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch (error) { /* private windows may refuse */ }
  }

  // ---- small tools

  function svg(parent, name, attributes, content) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (content !== undefined) element.textContent = content;
    parent.appendChild(element);
    return element;
  }
  function element(parent, name, className, content) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (content !== undefined) made.textContent = content;
    parent.appendChild(made);
    return made;
  }
  function accent(node, attention) {
    const pair = data.accents[attention] || ["#5a5f73", "#aab0c6"];
    node.style.setProperty("--light", pair[0]);
    node.style.setProperty("--dark", pair[1]);
  }
  function short(value) {
    const size = Math.abs(value);
    for (const [limit, suffix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= limit) return trim((value / limit).toFixed(size / limit < 10 ? 1 : 0)) + suffix;
    return trim(value.toPrecision(3));
  }
  function trim(text) { return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text; }
  function seconds(value) {
    if (value < 120) return trim(value.toPrecision(3)) + " s";
    return value < 7200 ? trim((value / 60).toFixed(1)) + " min" : trim((value / 3600).toFixed(1)) + " h";
  }

  let printing = false; // paper has its own width, whatever the window's is
  function widthOf(holder) {
    if (printing) return holder.closest(".pair") ? 460 : 940;
    return Math.max(280, holder.clientWidth);
  }

  // ---- scales

  function linear(low, high) {
    return { at: (v) => (v - low) / (high - low), back: (u) => low + u * (high - low), ticks: (n) => linearTicks(low, high, n) };
  }
  function logarithmic(low, high) {
    const a = Math.log(low), b = Math.log(high);
    return { at: (v) => (Math.log(v) - a) / (b - a), back: (u) => Math.exp(a + u * (b - a)), ticks: (n) => logTicks(low, high, n) };
  }
  function linearTicks(low, high, count) {
    const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12); k++) ticks.push(k * step);
    return ticks;
  }
  function logTicks(low, high, count) {
    for (const digits of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
        for (const digit of digits) {
          const tick = digit * Math.pow(10, power);
          if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
        }
      if (ticks.length <= count + 1) return ticks.length > 1 ? ticks : linearTicks(low, high, count);
    }
    return [low, high];
  }
  function powerTicks(low, high) { // lengths are powers of two
    const ticks = [];
    for (let power = Math.ceil(Math.log2(low) - 1e-9); power <= Math.log2(high) + 1e-9; power++) ticks.push(Math.pow(2, power));
    const every = Math.ceil(ticks.length / 7);
    return ticks.filter((_, i) => (ticks.length - 1 - i) % every === 0);
  }
  function widen(low, high, log) { // a little air, and never an empty range
    if (!(high > low)) { low *= 0.9; high = high * 1.1 || 1; }
    if (log) { const air = Math.pow(high / low, 0.03); return [low / air, high * air]; }
    const air = 0.03 * (high - low);
    return [Math.max(low - air, low >= 0 ? Math.min(low, 0) : -Infinity), high + air];
  }

  // ---- a chart of lines: series [{label, attention, variant, points: [{x, y, low, high}]}]

  function chart(holder, spec) {
    const width = widthOf(holder), height = Math.round(Math.min(360, Math.max(250, width * 0.66)));
    const named = spec.names && width >= 420;
    const longest = Math.max(0, ...spec.series.map((s) => Math.min(NAME_LENGTH, s.label.length)));
    const frame = { left: 48, right: named ? 16 + 7.6 * longest : 14, top: 26, bottom: 42 };
    const inner = { width: width - frame.left - frame.right, height: height - frame.top - frame.bottom };
    holder.textContent = "";
    keepTable(spec);
    const root = svg(holder, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title });
    const shown = spec.series.filter((s) => s.points.length && !state.hidden.includes(s.label));
    svg(root, "text", { x: 0, y: 13, class: "title" }, spec.title);
    if (!shown.length) {
      svg(root, "text", { x: frame.left, y: height / 2 }, "nothing is chosen");
      return;
    }
    const x = scale(shown.flatMap((s) => s.points.map((p) => p.x)), spec.logX, spec.fromZero);
    const y = scale(yValues(shown, spec), spec.logY);
    const px = (v) => frame.left + x.at(v) * inner.width, py = (v) => frame.top + (1 - y.at(v)) * inner.height;
    drawAxes(root, spec, frame, inner, x, y, px, py);
    const clip = "clip-" + spec.id;
    svg(svg(root, "clipPath", { id: clip }), "rect", { x: frame.left - 4, y: frame.top - 4, width: inner.width + 8, height: inner.height + 8 });
    const drawing = svg(root, "g", { "clip-path": `url(#${clip})` });
    if (spec.reference) drawReference(root, spec.reference, frame, inner, py);
    for (const s of shown) drawSeries(drawing, s, px, py, spec);
    if (named) drawNames(root, shown, frame, inner, py);
    hover(root, shown, spec, { frame, inner, x, px, py, width, height });
  }
  function scale(values, log, fromZero) {
    const positive = log ? values.filter((v) => v > 0) : values;
    let low = Math.min(...positive), high = Math.max(...positive);
    if (fromZero && !log) low = 0;
    else [low, high] = widen(low, high, log);
    if (!(high > low)) high = low + 1;
    return log ? logarithmic(low, high) : linear(low, high);
  }
  function yValues(shown, spec) { // the steep beginning would flatten everything else, and so would a line far below
    let values = [];
    for (const s of shown) {
      const last = s.points[s.points.length - 1].x;
      for (const p of s.points) if (!spec.skipStart || p.x >= 0.05 * last) values.push(p.low ?? p.y, p.high ?? p.y);
    }
    if (!values.length) values = [1, 2];
    const low = Math.min(...values), far = Math.max(...values) - low;
    return spec.reference && low - spec.reference.value < 0.6 * far ? values.concat(spec.reference.value) : values;
  }
  function drawAxes(root, spec, frame, inner, x, y, px, py) {
    const bottom = frame.top + inner.height, right = frame.left + inner.width;
    const low = x.back(0), high = x.back(1);
    for (const tick of spec.powers ? powerTicks(low, high) : x.ticks(inner.width / 70)) {
      svg(root, "line", { x1: px(tick), x2: px(tick), y1: frame.top, y2: bottom, class: "grid" });
      svg(root, "text", { x: px(tick), y: bottom + 17, "text-anchor": "middle" }, spec.xTick(tick));
    }
    for (const tick of y.ticks(inner.height / 42)) {
      svg(root, "line", { x1: frame.left, x2: right, y1: py(tick), y2: py(tick), class: "grid" });
      svg(root, "text", { x: frame.left - 7, y: py(tick) + 4, "text-anchor": "end" }, short(tick));
    }
    svg(root, "line", { x1: frame.left, x2: right, y1: bottom, y2: bottom, class: "axis" });
    svg(root, "text", { x: frame.left + inner.width / 2, y: bottom + 36, "text-anchor": "middle" }, spec.xLabel);
  }
  function drawReference(root, reference, frame, inner, py) {
    const at = py(reference.value);
    if (at < frame.top || at > frame.top + inner.height) return;
    svg(root, "line", { x1: frame.left, x2: frame.left + inner.width, y1: at, y2: at, class: "reference" });
    svg(root, "text", { x: frame.left + 6, y: at - 5 }, reference.label);
  }
  function path(points, px, py, key) {
    return points.map((p, i) => (i ? "L" : "M") + px(p.x).toFixed(1) + " " + py(p[key]).toFixed(1)).join("");
  }
  function drawable(points, spec) { return points.filter((p) => (!spec.logX || p.x > 0) && (!spec.logY || p.y > 0)); }
  function drawSeries(drawing, s, px, py, spec) {
    const group = svg(drawing, "g", { class: "series", "data-label": s.label });
    const points = drawable(s.points, spec);
    accent(group, s.attention);
    if (points.some((p) => p.high > p.low)) {
      const back = points.slice().reverse();
      svg(group, "path", { class: "band", d: path(points, px, py, "high") + path(back, px, py, "low").replace("M", "L") + "Z" });
    }
    const dash = s.attention === "uniform" ? "2 4" : DASHES[s.variant % DASHES.length];
    svg(group, "path", { class: "line", d: path(points, px, py, "y"), "stroke-dasharray": dash });
    if (points.length <= 24) for (const p of points) mark(group, s.attention, px(p.x), py(p.y), 3.4);
    if (spec.rings && spec.rings[s.label]) ring(group, points, spec.rings[s.label], px, py);
  }
  function mark(parent, attention, x, y, r) {
    const kind = MARKS[attention] || "circle", f = (v) => v.toFixed(1);
    if (kind === "circle") return svg(parent, "circle", { class: "mark", cx: f(x), cy: f(y), r });
    const corners = { square: [[-1, -1], [1, -1], [1, 1], [-1, 1]], diamond: [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
      up: [[0, -1.3], [1.2, 0.9], [-1.2, 0.9]], down: [[0, 1.3], [1.2, -0.9], [-1.2, -0.9]],
      cross: [[-1.3, -0.4], [-0.4, -0.4], [-0.4, -1.3], [0.4, -1.3], [0.4, -0.4], [1.3, -0.4], [1.3, 0.4], [0.4, 0.4], [0.4, 1.3], [-0.4, 1.3], [-0.4, 0.4], [-1.3, 0.4]] }[kind];
    return svg(parent, "path", { class: "mark", d: corners.map(([a, b], i) => (i ? "L" : "M") + f(x + a * r) + " " + f(y + b * r)).join("") + "Z" });
  }
  function ring(group, points, at, px, py) { // where a line crosses below softmax, interpolated on logarithmic axes
    for (let i = 1; i < points.length; i++) {
      const a = points[i - 1], b = points[i];
      if (at < a.x || at > b.x) continue;
      const share = Math.log(at / a.x) / Math.log(b.x / a.x);
      svg(group, "circle", { class: "ring", cx: px(at), cy: py(a.y * Math.pow(b.y / a.y, share)), r: 7 });
      return;
    }
  }
  function drawNames(root, shown, frame, inner, py) { // at the right ends, pushed apart where they would overlap
    const ends = shown.map((s) => ({ s, at: py(s.points[s.points.length - 1].y) })).sort((a, b) => a.at - b.at);
    const room = 14, top = frame.top + 4, bottom = frame.top + inner.height + 4;
    ends.forEach((e, i) => { e.at = Math.max(e.at + 4, i ? ends[i - 1].at + room : top); });
    for (let i = ends.length - 1, limit = bottom; i >= 0; i--, limit -= room) ends[i].at = Math.min(ends[i].at, limit);
    for (const e of ends) {
      const group = svg(root, "g", { class: "series", "data-label": e.s.label });
      accent(group, e.s.attention);
      const name = e.s.label.length > NAME_LENGTH ? e.s.label.slice(0, NAME_LENGTH - 1) + "…" : e.s.label;
      svg(group, "text", { x: frame.left + inner.width + 9, y: e.at, class: "end" }, name);
    }
  }

  // ---- hovering: the nearest x, and all series there

  function nearest(points, x, at) {
    return points.reduce((best, p) => Math.abs(x.at(p.x) - at) < Math.abs(x.at(best.x) - at) ? p : best);
  }
  function hover(root, shown, spec, geometry) {
    const { frame, inner, x, px, py, width, height } = geometry;
    const guide = svg(root, "line", { class: "guide", y1: frame.top, y2: frame.top + inner.height, visibility: "hidden" });
    const marks = svg(root, "g", {});
    const area = svg(root, "rect", { x: frame.left, y: frame.top, width: inner.width, height: inner.height, fill: "transparent" });
    function leave() { guide.setAttribute("visibility", "hidden"); marks.textContent = ""; tip.hidden = true; }
    function move(event) {
      const box = root.getBoundingClientRect();
      const at = ((event.clientX - box.left) * width / box.width - frame.left) / inner.width;
      const hits = shown.filter((s) => drawable(s.points, spec).length)
        .map((s) => ({ s, p: nearest(drawable(s.points, spec), x, at) })).sort((a, b) => b.p.y - a.p.y);
      if (!hits.length) return;
      const reach = nearest(hits.map((h) => h.p), x, at).x;
      guide.setAttribute("x1", px(reach)); guide.setAttribute("x2", px(reach)); guide.setAttribute("visibility", "visible");
      marks.textContent = "";
      for (const h of hits) { const g = svg(marks, "g", { class: "series" }); accent(g, h.s.attention); mark(g, h.s.attention, px(h.p.x), py(h.p.y), 4.4); }
      fillTip(spec.xTip(reach), hits.map((h) => [h.s.label, h.s.attention, spec.yTip(h.p)]));
      placeTip(event, around(hits.map((h) => [box.left + px(h.p.x) * box.width / width, box.top + py(h.p.y) * box.height / height])));
      lastTouched = Date.now();
    }
    area.addEventListener("pointermove", move);
    area.addEventListener("pointerdown", move);
    area.addEventListener("pointerleave", leave);
  }
  let lastTouched = 0;
  function fillTip(heading, lines) {
    tip.textContent = "";
    element(tip, "strong", "", heading);
    for (const [label, attention, value] of lines) {
      const line = element(tip, "div"), name = element(line, "span");
      accent(element(name, "i", "dot"), attention);
      name.appendChild(document.createTextNode(label));
      element(line, "span", "", value);
    }
  }
  function around(points) { // the window's rectangle that the points need, with their marks
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]), air = 10;
    return { left: Math.min(...xs) - air, right: Math.max(...xs) + air, top: Math.min(...ys) - air, bottom: Math.max(...ys) + air };
  }
  function placeTip(event, points) { // beside the points, else below or above them, wherever there is room
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), free = { x: innerWidth - box.width - 8, y: innerHeight - box.height - 8 };
    const right = Math.max(event.clientX + 16, points.right), left = Math.min(event.clientX - 16, points.left) - box.width;
    const below = Math.max(event.clientY + 16, points.bottom), above = Math.min(event.clientY - 16, points.top) - box.height;
    const beside = right <= free.x ? right : left >= 8 ? left : null;
    tip.style.left = (beside ?? Math.min(Math.max(8, event.clientX - box.width / 2), Math.max(8, free.x))) + "px";
    tip.style.top = (beside !== null ? Math.min(Math.max(8, event.clientY - box.height / 2), Math.max(8, free.y))
      : below <= free.y || above < 8 ? below : above) + "px";
  }

  // ---- files of the figures: the drawing as it is seen, and its numbers

  const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "visibility",
    "font-size", "font-weight", "font-family"];
  const tables = {}; // {figure: [[heading, ...], [value, ...], ...]}
  function svgText(figure) { // the styles go into the elements, since the page's are not there
    const drawn = figure.querySelector(".plot svg"), copy = drawn.cloneNode(true);
    const originals = [drawn, ...drawn.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
    originals.forEach((node, i) => {
      const style = getComputedStyle(node);
      for (const name of DRAWN) if (!["defs", "clipPath"].includes(node.tagName)) copies[i].setAttribute(name, style.getPropertyValue(name));
      for (const name of ["class", "style"]) copies[i].removeAttribute(name);
    });
    const [, , width, height] = drawn.getAttribute("viewBox").split(" ");
    for (const [name, value] of [["xmlns", SVG], ["width", width], ["height", height]]) copy.setAttribute(name, value);
    const paper = svg(copy, "rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
    copy.insertBefore(paper, copy.firstChild);
    return new XMLSerializer().serializeToString(copy);
  }
  function csvText(rows) {
    const cell = (value) => /[",\n]/.test(String(value)) ? '"' + String(value).replace(/"/g, '""') + '"' : String(value ?? "");
    return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }
  function saveAs(name, type, content) {
    const link = element(document.body, "a"), address = URL.createObjectURL(new Blob([content], { type }));
    link.href = address;
    link.download = name;
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
  function downloads() {
    for (const figure of document.querySelectorAll("figure")) {
      const bar = element(figure, "div", "downloads");
      for (const [kind, type, content] of [["SVG", "image/svg+xml", () => svgText(figure)], ["CSV", "text/csv", () => csvText(tables[figure.id])]]) {
        const button = element(bar, "button", "", kind);
        button.type = "button";
        button.title = `This figure as ${kind}`;
        button.addEventListener("click", () => saveAs(`${figure.id}.${kind.toLowerCase()}`, type, content()));
      }
    }
  }
  function keepTable(spec) {
    const bands = spec.series.some((s) => s.points.some((p) => p.low !== undefined));
    tables[spec.id] = [["attention", spec.xLabel, spec.title, ...(bands ? ["lowest seed", "highest seed"] : [])],
      ...spec.series.flatMap((s) => s.points.map((p) => [s.label, p.x, p.y, ...(bands ? [p.low, p.high] : [])]))];
  }

  // ---- the figures

  const unit = data.metric === "bits_per_byte" ? "bits per byte" : "nats per token";
  function lossChart(id, title, xLabel, column, xTick, xTip) {
    const curve = data.series.some((s) => s[state.curve].length) ? state.curve : "validation";
    const series = data.series.map((s) => ({ label: s.label, attention: s.attention, variant: s.variant,
      points: s[curve].map((p) => ({ x: p[column], y: p[2], low: p[3], high: p[4] })) }));
    const which = { validation: "Validation loss", training: "Training loss", difference: "Loss minus softmax's" }[curve];
    chart(document.querySelector("#" + id + " .plot"), { id, title: `${which}, ${unit}, ${title}`, series, xLabel, xTick, xTip,
      logX: state.x === "log", logY: state.y === "log" && curve !== "difference", fromZero: true, skipStart: curve === "training", names: true,
      reference: data.floor && curve !== "difference" ? { value: data.floor, label: "entropy of the text" } : null,
      yTip: (p) => p.y.toFixed(4) + (p.high > p.low ? `  (${p.low.toFixed(4)} to ${p.high.toFixed(4)})` : "") });
  }
  function positionChart(id, title) { // a bucket is drawn at its middle
    const holder = document.querySelector("#" + id + " .plot");
    if (!holder) return;
    const series = data.series.map((s) => ({ label: s.label, attention: s.attention, variant: s.variant,
      points: s[id].map((p) => ({ x: (p[0] + p[1] + 1) / 2, y: p[2], low: p[3], high: p[4], from: p[0], to: p[1] })) }));
    const bucket = (x) => series.flatMap((s) => s.points).find((p) => p.x === x);
    chart(holder, { id, title: `${title}, ${unit}`, series, xLabel: "position in the row", xTick: (v) => short2(v), logX: true, powers: true,
      names: true, xTip: (x) => `positions ${bucket(x).from} to ${bucket(x).to}`,
      yTip: (p) => p.y.toFixed(4) + (p.high > p.low ? `  (${p.low.toFixed(4)} to ${p.high.toFixed(4)})` : "") });
  }
  function scalingSeries(value) {
    const labels = [...new Set(data.scaling.map((row) => row.attention))], seen = {};
    return labels.map((label) => {
      const attention = label.split(":")[0];
      seen[attention] = attention in seen ? seen[attention] + 1 : 0;
      const points = data.scaling.filter((row) => row.attention === label).map((row) => ({ x: row.T, y: value(row) }))
        .filter((p) => p.y > 0).sort((a, b) => a.x - b.x);
      return { label, attention, variant: seen[attention], points };
    });
  }
  function scalingChart(id, title, value, yUnit, rings) {
    const holder = document.querySelector("#" + id + " .plot");
    if (!holder) return;
    chart(holder, { id, title, series: scalingSeries(value), xLabel: "length of the sequence, tokens", xTick: (v) => short2(v),
      xTip: (v) => "T = " + Math.round(v), logX: true, logY: true, powers: true, names: true, rings, yTip: (p) => trim(p.y.toPrecision(3)) + " " + yUnit });
  }
  function short2(value) { return value >= 1024 ? value / 1024 + "K" : String(value); }

  function dots() { // final losses, one line each
    const holder = document.querySelector("#dots .plot"), rows = data.rows.filter((row) => row.mean !== null);
    if (!holder || !rows.length) return;
    const width = widthOf(holder), line = 26, phone = width < 560;
    const longest = Math.max(...rows.map((row) => row.label.length));
    const frame = { left: Math.min(phone ? 120 : 190, 14 + 7.4 * longest), right: phone ? 16 : 130, top: 30, bottom: 40 };
    const inner = width - frame.left - frame.right, height = frame.top + line * rows.length + frame.bottom, bottom = height - frame.bottom;
    const values = rows.flatMap((row) => [...row.values, row.mean - (row.error || 0), row.mean + (row.error || 0)]);
    const [low, high] = spread(values), x = linear(low, high), px = (v) => frame.left + x.at(v) * inner;
    holder.textContent = "";
    tables.dots = [["attention", "seed", `validation loss, ${unit}`], ...rows.flatMap((row) => row.values.map((v, i) => [row.label, row.seeds[i], v]))];
    const root = svg(holder, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "final validation loss" });
    for (const tick of x.ticks(inner / 80)) {
      svg(root, "line", { x1: px(tick), x2: px(tick), y1: frame.top, y2: bottom, class: "grid" });
      svg(root, "text", { x: px(tick), y: bottom + 17, "text-anchor": "middle" }, short(tick));
    }
    svg(root, "text", { x: frame.left + inner / 2, y: bottom + 35, "text-anchor": "middle" }, `validation loss, ${unit}; lower is better`);
    const guides = ["softmax", "uniform"].map((name) => rows.find((row) => row.label === name)).filter(Boolean);
    for (const row of guides) guideLine(root, row, guides, px, frame.top, bottom);
    rows.forEach((row, i) => dotRow(root, row, frame.top + line * (i + 0.5), { px, frame, width, phone }));
  }
  function spread(values) {
    const low = Math.min(...values), high = Math.max(...values), air = 0.06 * (high - low) || 0.05 * high || 1;
    return [low - air, high + air];
  }
  function guideLine(root, row, guides, px, top, bottom) {
    const near = guides.find((other) => other !== row && Math.abs(px(other.mean) - px(row.mean)) < 64);
    const anchor = !near ? "middle" : near.mean > row.mean ? "end" : "start"; // names side by side, not on each other
    const group = svg(root, "g", { class: "series" });
    accent(group, row.attention);
    svg(group, "line", { x1: px(row.mean), x2: px(row.mean), y1: top - 6, y2: bottom, "stroke-dasharray": row.attention === "uniform" ? "2 4" : "", opacity: 0.55 });
    svg(group, "text", { x: px(row.mean), y: top - 12, class: "end", "text-anchor": anchor }, row.label);
  }
  function dotRow(root, row, y, place) {
    const { px, frame, width, phone } = place, group = svg(root, "g", { class: "series" });
    const limit = phone ? 15 : 25, name = row.label.length > limit ? row.label.slice(0, limit - 1) + "…" : row.label;
    accent(group, row.attention);
    svg(root, "text", { x: 0, y: y + 4, class: "name" }, name);
    if (row.error !== null) svg(group, "line", { x1: px(row.mean - row.error), x2: px(row.mean + row.error), y1: y, y2: y, class: "whisker" });
    for (const value of row.values) svg(group, "circle", { class: "seed", cx: px(value), cy: y, r: 3 });
    mark(group, row.attention, px(row.mean), y, 5);
    const error = row.error === null ? "" : " ± " + row.error.toFixed(4);
    if (!phone) svg(root, "text", { x: width, y: y + 4, "text-anchor": "end" }, row.mean.toFixed(4) + error);
    const hit = svg(root, "rect", { x: 0, y: y - 13, width, height: 26, fill: "transparent" });
    const show = (event) => {
      const box = root.getBoundingClientRect(), size = box.width / width;
      fillTip(row.label, row.values.map((v, i) => ["seed " + row.seeds[i], row.attention, v.toFixed(6)]));
      placeTip(event, around([row.mean, ...row.values].map((v) => [box.left + px(v) * size, box.top + y * size])));
    };
    hit.addEventListener("pointermove", show);
    hit.addEventListener("pointerdown", show);
    hit.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // ---- legend, controls, table

  function legend() {
    const holder = document.getElementById("legend");
    if (!holder) return;
    for (const s of data.series) {
      const button = element(holder, "button");
      button.type = "button";
      const key = svg(button, "svg", { width: 22, height: 10, class: "series", "aria-hidden": "true" });
      accent(key, s.attention);
      svg(key, "line", { x1: 0, x2: 22, y1: 5, y2: 5, class: "line", "stroke-dasharray": s.attention === "uniform" ? "2 4" : DASHES[s.variant % DASHES.length] });
      mark(key, s.attention, 11, 5, 3.2);
      button.appendChild(document.createTextNode(s.label));
      button.dataset.label = s.label;
      button.addEventListener("click", () => toggle(s.label));
      button.addEventListener("pointerenter", () => dim(s.label));
      button.addEventListener("pointerleave", () => dim(null));
    }
  }
  function toggle(label) {
    state.hidden = state.hidden.includes(label) ? state.hidden.filter((l) => l !== label) : [...state.hidden, label];
    draw();
  }
  function dim(label) {
    for (const group of document.querySelectorAll("g[data-label]"))
      group.classList.toggle("dimmed", label !== null && !state.hidden.includes(label) && group.dataset.label !== label);
  }
  function controls() {
    for (const button of document.querySelectorAll("[data-set]"))
      button.addEventListener("click", () => { state[button.dataset.set] = button.dataset.value; draw(); });
    if (!data.series.some((s) => s.training.length))
      for (const button of document.querySelectorAll('[data-set="curve"]')) button.parentNode.hidden = true;
    if (!data.series.some((s) => s.difference.length)) document.querySelector('[data-value="difference"]')?.remove();
    for (const details of document.querySelectorAll("details[data-key]")) {
      details.open = state.open.includes(details.dataset.key);
      details.addEventListener("toggle", () => {
        state.open = state.open.filter((key) => key !== details.dataset.key).concat(details.open ? [details.dataset.key] : []);
        save();
      });
    }
  }
  function press() {
    for (const button of document.querySelectorAll("[data-set]"))
      button.setAttribute("aria-pressed", String(state[button.dataset.set] === button.dataset.value));
    for (const button of document.querySelectorAll("#legend button"))
      button.setAttribute("aria-pressed", String(!state.hidden.includes(button.dataset.label)));
  }
  function compareCells(a, b) {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // unknown comes last
    const x = Number(a), y = Number(b);
    return a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y) ? x - y : a.localeCompare(b);
  }
  function sortTable() {
    const table = document.getElementById("results");
    if (!table || !state.sort) return;
    const { column, down } = state.sort, body = table.tBodies[0];
    const key = (row) => row.cells[column] && row.cells[column].dataset.sort;
    [...body.rows].sort((a, b) => {
      const known = key(a) !== undefined && key(b) !== undefined;
      return compareCells(key(a), key(b)) * (down && known ? -1 : 1);
    }).forEach((row) => body.appendChild(row));
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      if (i === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  }
  function sortable() {
    for (const button of document.querySelectorAll("#results thead button"))
      button.addEventListener("click", () => {
        const column = Number(button.dataset.column);
        state.sort = { column, down: Boolean(state.sort && state.sort.column === column && !state.sort.down) };
        sortTable();
        save();
      });
  }

  // ---- all together

  function draw() {
    press();
    dots();
    if (document.getElementById("curve-tokens")) {
      lossChart("curve-tokens", "by tokens", "training tokens", 0, short, (v) => short(v) + " tokens");
      if (data.time_is) lossChart("curve-time", "by time", data.time_is, 1, seconds, seconds);
    }
    positionChart("positions", "Loss by position");
    positionChart("longer", "Loss beyond the training length");
    scalingChart("scaling-time", "Time, ms", (row) => row.forward_ms + (row.backward_ms || 0), "ms", data.crossings);
    scalingChart("scaling-memory", "Peak memory, MB", (row) => row.peak_mb, "MB", null);
    save();
  }
  function refresh() { // not while somebody reads a value
    if (Date.now() - lastTouched < 3000 || document.hidden) return void setTimeout(refresh, 1000);
    state.scroll = scrollY;
    save();
    location.reload();
  }
  legend();
  controls();
  downloads();
  sortable();
  sortTable();
  draw();
  if (data.refresh && state.scroll) scrollTo(0, state.scroll);
  if (data.refresh) setTimeout(refresh, 1000 * data.refresh);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; draw(); });
  document.documentElement.dataset.ready = "yes";
})();
