// Checks of the drawn page; scripts/test_report.sh puts them at the page's end and reads the lines they leave.
(function () {
  const lines = [];
  const check = (name, good) => lines.push((good ? "ok " : "FAIL ") + name);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const press = (selector) => document.querySelector(selector).click();

  check("the script came to its end", document.documentElement.dataset.ready === "yes");
  for (const id of ["dots", "curve-tokens", "curve-time", "scaling-time", "scaling-memory"])
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
  press('#results button[data-column="9"]');
  press('#results button[data-column="9"]');
  const speeds = all("#results tbody tr").map((row) => Number(row.cells[9].dataset.sort));
  check("sorted downwards by speed", speeds.every((speed, i) => !i || speed <= speeds[i - 1]));

  const tip = document.getElementById("tip");
  const hover = (selector) => { // the middle of the element; returns what makes the pointer leave
    const area = document.querySelector(selector), box = area.getBoundingClientRect();
    const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
    area.dispatchEvent(new PointerEvent("pointermove", at));
    return () => area.dispatchEvent(new PointerEvent("pointerleave", at));
  };
  for (const [figure, lines] of [["curve-tokens", 10], ["curve-time", 10], ["scaling-time", 8], ["scaling-memory", 8], ["dots", 3]]) {
    const leave = hover(`#${figure} rect[fill="transparent"]`);
    check("hovering shows all values of " + figure, !tip.hidden && tip.querySelectorAll("div").length === lines);
    check("which are numbers", [...tip.querySelectorAll("div")].every((line) => /\d/.test(line.lastChild.textContent) && !/NaN|undefined/.test(line.textContent)));
    leave();
    check("and they go", tip.hidden);
  }

  const onScreen = document.querySelector("#curve-tokens svg").getAttribute("viewBox");
  dispatchEvent(new Event("beforeprint"));
  check("paper has a width of its own", document.querySelector("#curve-tokens svg").getAttribute("viewBox").startsWith("0 0 460 "));
  dispatchEvent(new Event("afterprint"));
  check("and the screen's comes back", document.querySelector("#curve-tokens svg").getAttribute("viewBox") === onScreen);
  check("nothing wider than the window", document.documentElement.scrollWidth <= innerWidth);
  check("no script error: " + errors.join("; "), errors.length === 0);
  document.body.textContent = "\n" + lines.join("\n") + "\n";
})();
