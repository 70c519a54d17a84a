// Comforts of the pages of groups, runs and nodes. Everything works without this.
//
// data-all="all|none|idle" in a form with data-choose: ticks boxes without loading the page. data-count: how many are.
// data-copy="ID": copies the text of that element. data-submit: sends the form when the choice changes.
// data-filter="ID": hides the rows of that table in which a word is missing, while a person types.
"use strict";
(() => {
  for (const one of document.querySelectorAll("[data-copy], button[data-all]")) one.hidden = false;

  const boxes = (form) => [...form.querySelectorAll("input[type=checkbox][name=node]")];
  const count = (form) => {
    const place = form.querySelector("[data-count]");
    if (place) place.textContent = `${boxes(form).filter((one) => one.checked).length} chosen`;
  };
  for (const form of document.querySelectorAll("form[data-choose]")) {
    count(form);
    form.addEventListener("change", () => count(form));
  }

  document.addEventListener("click", async (event) => {
    const all = event.target.closest("[data-all]");
    if (all) {
      event.preventDefault();
      const form = all.closest("form");
      for (const one of boxes(form)) one.checked = all.dataset.all === "all" || (all.dataset.all === "idle" && one.hasAttribute("data-idle"));
      count(form);
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const from = document.getElementById(copy.dataset.copy);
      const word = copy.textContent;
      try { await navigator.clipboard.writeText(from.textContent); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(from); copy.textContent = "Selected: press Ctrl-C"; }
      setTimeout(() => { copy.textContent = word; }, 2000);
    }
  });

  for (const one of document.querySelectorAll("[data-submit]"))
    one.addEventListener("change", () => {
      const file = one.name === "rank" && one.form.elements.file;
      if (file) file.disabled = true;
      one.form.submit();
    });

  const filter = (input) => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll(`#${CSS.escape(input.dataset.filter)} tbody tr`)) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  };
  for (const input of document.querySelectorAll("[data-filter]"))
    input.addEventListener("input", () => filter(input));
  document.addEventListener("refreshed", () => document.querySelectorAll("[data-filter]").forEach(filter));

  for (const log of document.querySelectorAll("pre.log:not(.stack)")) {
    const here = log.querySelector(".here");
    if (here) here.scrollIntoView({ block: "center" });
    else if (!location.search.includes("after=")) log.scrollTop = log.scrollHeight;
  }
})();
