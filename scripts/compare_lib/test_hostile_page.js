// Checks of a page whose every name is an attack; see test_page.js.
(function () {
  const lines = [];
  const check = (name, good) => lines.push((good ? "ok " : "FAIL ") + name);
  check("the script came to its end", document.documentElement.dataset.ready === "yes");
  check("nothing of the names ran", document.documentElement.dataset.hacked === undefined);
  check("no element came from a name", document.querySelectorAll("img, #left-out b").length === 0);
  check("the name is there as text", document.querySelector("h1").textContent.includes("</scr" + "ipt><scr" + "ipt>"));
  check("no script error: " + errors.join("; "), errors.length === 0);
  document.body.textContent = "\n" + lines.join("\n") + "\n";
})();
