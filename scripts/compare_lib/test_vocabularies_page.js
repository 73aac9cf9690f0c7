// Checks of a page of runs with different vocabularies; see test_page.js.
(function () {
  const lines = [];
  const check = (name, good) => lines.push((good ? "ok " : "FAIL ") + name);
  const all = (selector) => [...document.querySelectorAll(selector)];
  check("the script came to its end", document.documentElement.dataset.ready === "yes");
  check("it is said", all(".notes li").some((note) => note.textContent.includes("different vocabularies")));
  check("the curves are in bits per byte", all("#curves .title").every((title) => title.textContent.includes("bits per byte")));
  check("both are drawn", all("#curve-tokens path.line").length === 2);
  check("no loss per token to choose", document.querySelector('[data-set="curve"]').parentNode.hidden);
  check("none in the table", !all("#results thead button").some((head) => /loss|Perplexity/.test(head.textContent)));
  check("no script error: " + errors.join("; "), errors.length === 0);
  document.body.textContent = "\n" + lines.join("\n") + "\n";
})();
