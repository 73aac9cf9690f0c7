// Checks of the drawn page; scripts/test_report.sh puts them at the page's end and reads the lines they leave.
(function () {
  const lines = [];
  const check = (name, good) => lines.push((good ? "ok " : "FAIL ") + name);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const press = (selector) => document.querySelector(selector).click();

  check("the script came to its end", document.documentElement.dataset.ready === "yes");
  for (const id of ["dots", "curve-tokens", "curve-time", "positions", "longer", "scaling-time", "scaling-memory"])
    check("a drawing in " + id, all(`#${id} svg`).length === 1 && all(`#${id} svg .grid`).length > 3);
  check("ten curves", all("#curve-tokens path.line").length === 10 && all("#curve-time path.line").length === 10);
  check("bands of the seeds", all("#curve-tokens path.band").length === 10);
  check("numbers only in paths", all("path").every((path) => !/NaN|undefined|Infinity/.test(path.getAttribute("d"))));
  check("crossings are marked", all("#scaling-time .ring").length > 2);
  check("a sample of each", all("#samples article").length === 10);
  check("seeds in the first figure", all("#dots .seed").length === 30);

  press("#legend button");
  check("the legend hides a curve", all("#curve-tokens path.line").length === 9 && all('#legend [aria-pressed="false"]').length === 1);
  press("#legend button");
  check("and shows it again", all("#curve-tokens path.line").length === 10);

  const before = document.querySelector("#curve-tokens path.line").getAttribute("d");
  press('[data-set="x"][data-value="log"]');
  check("a logarithmic axis", document.querySelector("#curve-tokens path.line").getAttribute("d") !== before);
  const steep = document.querySelector("#curve-tokens path.line").getAttribute("d");
  press('[data-set="y"][data-value="linear"]');
  check("a linear axis of the loss", document.querySelector("#curve-tokens path.line").getAttribute("d") !== steep);
  press('[data-set="curve"][data-value="difference"]');
  check("the difference to softmax", all("#curve-tokens path.line").length === 10 && document.querySelector("#curve-tokens .title").textContent.includes("minus softmax"));
  press('[data-set="curve"][data-value="training"]');
  check("the training loss", document.querySelector("#curve-tokens .title").textContent.startsWith("Training"));
  check("the choice is kept", JSON.parse(Object.values(sessionStorage)[0] || "{}").curve === "training");

  const names = () => all("#results tbody th").map((cell) => cell.textContent);
  const first = names();
  press('#results button[data-column="0"]');
  check("sorted by name", names().join() === [...first].sort((a, b) => a.localeCompare(b)).join());
  const speedColumn = all("#results thead button").findIndex((button) => button.textContent === "Training tok/s");
  press(`#results button[data-column="${speedColumn}"]`);
  press(`#results button[data-column="${speedColumn}"]`);
  const speeds = all("#results tbody tr").map((row) => Number(row.cells[speedColumn].dataset.sort));
  check("sorted downwards by speed", speeds.every((speed, i) => !i || speed <= speeds[i - 1]));

  const tip = document.getElementById("tip");
  const hover = (selector, share = 0.5) => { // in the element's middle, or elsewhere across; returns what makes the pointer leave
    const area = document.querySelector(selector);
    area.scrollIntoView({ block: "center" });
    const box = area.getBoundingClientRect();
    const at = { clientX: box.left + box.width * share, clientY: box.top + box.height / 2, bubbles: true };
    area.dispatchEvent(new PointerEvent("pointermove", at));
    return () => area.dispatchEvent(new PointerEvent("pointerleave", at));
  };
  const covered = (marks) => { // how many marks the values lie on
    const box = tip.getBoundingClientRect();
    return marks.map((mark) => mark.getBoundingClientRect())
      .filter((m) => m.right > box.left && m.left < box.right && m.bottom > box.top && m.top < box.bottom).length;
  };
  for (const [figure, lines] of [["curve-tokens", 10], ["curve-time", 10], ["positions", 10], ["longer", 10], ["scaling-time", 8],
    ["scaling-memory", 8], ["dots", 3]]) {
    const leave = hover(`#${figure} rect[fill="transparent"]`);
    check("hovering shows all values of " + figure, !tip.hidden && tip.querySelectorAll("div").length === lines);
    check("which are numbers", [...tip.querySelectorAll("div")].every((line) => /\d/.test(line.lastChild.textContent) && !/NaN|undefined/.test(line.textContent)));
    leave();
    check("and they go", tip.hidden);
    for (const share of [0.02, 0.3, 0.6, 0.98]) {
      const away = hover(`#${figure} rect[fill="transparent"]`, share);
      const own = figure === "dots" ? all("#dots g.series:not(:has(line[opacity]))")[0].querySelectorAll("circle, .mark") : all(`#${figure} svg > g:not([clip-path]):not(.series) .mark`);
      check(`values of ${figure} are beside their points at ${share}`, own.length > 0 && covered([...own]) === 0);
      away();
    }
  }

  const saved = [], RealBlob = Blob; // what the buttons hand over, instead of files
  window.Blob = function (parts, options) { saved.push({ text: parts.join(""), type: options.type }); return new RealBlob(parts, options); };
  HTMLAnchorElement.prototype.click = function () { saved[saved.length - 1].name = this.download; };
  for (const button of all("figure .downloads button")) button.click();
  check("two files of every figure", saved.length === 14 && all("figure").length === 7);
  for (const { name, text } of saved.filter((each) => each.name.endsWith(".svg"))) {
    const drawing = new DOMParser().parseFromString(text, "image/svg+xml");
    check(`${name} stands alone`, drawing.documentElement.tagName === "svg" && !/ class=| style=|var\(/.test(text));
    check(`${name} has colours`, new Set([...drawing.querySelectorAll("path, circle, line")].map((node) => node.getAttribute("stroke"))).size > 4);
  }
  const numbers = Object.fromEntries(saved.filter((each) => each.name.endsWith(".csv")).map((each) => [each.name, each.text.trim().split("\n")]));
  check("the numbers of the seeds", numbers["dots.csv"].length === 31 && /^yat,1,0\.\d+$/.test(numbers["dots.csv"][1]));
  check("the numbers by position", numbers["positions.csv"].length === 31 && numbers["longer.csv"].length === 41);
  check("names with commas are quoted", numbers["positions.csv"].some((line) => line.startsWith('"slay:poly=exact,R=2",8,')));

  const onScreen = document.querySelector("#curve-tokens svg").getAttribute("viewBox");
  dispatchEvent(new Event("beforeprint"));
  check("paper has a width of its own", document.querySelector("#curve-tokens svg").getAttribute("viewBox").startsWith("0 0 460 "));
  dispatchEvent(new Event("afterprint"));
  check("and the screen's comes back", document.querySelector("#curve-tokens svg").getAttribute("viewBox") === onScreen);
  check("nothing wider than the window", document.documentElement.scrollWidth <= innerWidth);
  check("no script error: " + errors.join("; "), errors.length === 0);
  document.body.textContent = "\n" + lines.join("\n") + "\n";
})();
