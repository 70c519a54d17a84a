// What moves on a page. Everything works without this but for two things:
//
// data-live="TOPIC TOPIC" on an element with an id: when one of these topics changes, the page is fetched again and the
//   element is put in the place of the old one. What is in use waits; what is open, scrolled, ticked or has the focus
//   stays so. A page that answers a form names its address in data-address on the root. With data-every="SECONDS" it is
//   fetched again that often as well.
// data-preview="URL" data-into="ID" on a form: while a person types, the form is posted there and the answer, which is
//   HTML of ours, becomes what the element with that id holds. Whoever leaves with something typed is asked, unless by
//   sending the form or by what has data-undo. data-unsaved: what it shows from the beginning is not saved.
//
// No markup is ever made of text here: pages come from the server, where every value is escaped, and are put in by
// DOMParser, which runs no script.
"use strict";
(() => {
  const WAIT_MS = 250;
  const AGAIN_MS = 10000;
  const REST = 3;  // times as long as the last fetch took is waited before the next: a server makes large pages for many
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  // Live parts.
  const parts = () => [...document.querySelectorAll("[data-live][id]")];
  const topicsOf = (part) => part.dataset.live.split(/\s+/).filter(Boolean);
  const stale = new Set();

  // Typed into, or a text of it is selected to be copied.
  const inUse = (part) => {
    const active = document.activeElement, chosen = getSelection();
    return part.contains(active) && active.matches("input:not([type=checkbox]):not([type=radio]), textarea, select")
      || !chosen.isCollapsed && part.contains(chosen.anchorNode);
  };

  // What is what in two versions of a part: by its id, its label, or the words that stand in it.
  const nameOf = (one) => one.id || one.getAttribute("aria-label") || (one.querySelector("summary") ?? one).textContent;
  const scrolling = (part) => [part, ...part.querySelectorAll("[id], [aria-label]")];
  const atEnd = (one) => one.scrollTop > 0 && one.scrollTop + one.clientHeight >= one.scrollHeight - 4;
  const alike = (part, other) => [...part.querySelectorAll(other.localName)].filter((one) => nameOf(one) === nameOf(other));

  const put = (old, fresh) => {
    const open = new Map([...old.querySelectorAll("details")].map((one) => [nameOf(one), one.open]));
    const scrolled = new Map(scrolling(old).filter((one) => one.scrollTop || one.scrollLeft)
      .map((one) => [nameOf(one), [one.scrollLeft, atEnd(one) ? Number.MAX_SAFE_INTEGER : one.scrollTop]]));
    const ticked = new Set([...old.querySelectorAll("input:checked[id]")].map((one) => one.id));
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const place = active ? alike(old, active).indexOf(active) : -1;
    for (const one of fresh.querySelectorAll("details")) one.open = open.get(nameOf(one)) ?? one.open;
    for (const one of fresh.querySelectorAll("input[type=checkbox][id]")) one.checked = ticked.has(one.id);
    for (const one of fresh.querySelectorAll("input[type=radio][id]")) if (ticked.has(one.id)) one.checked = true;
    old.replaceWith(fresh);
    for (const one of scrolling(fresh)) if (scrolled.has(nameOf(one))) one.scrollTo(...scrolled.get(nameOf(one)));
    if (active) (active === old ? fresh : alike(fresh, active)[place])?.focus({ preventScroll: true });
    document.dispatchEvent(new Event("refreshed"));
  };

  let seen = document.documentElement.dataset.seen;  // the last change that what is shown knows of
  let timer = 0, fetching = false, again = false, pause = WAIT_MS;
  const refreshSoon = () => { timer ||= setTimeout(refresh, pause); };  // however often things change
  const refresh = async () => {
    clearTimeout(timer);
    timer = 0;
    if (document.hidden || !stale.size) return;
    if (fetching) { again = true; return; }
    fetching = true;
    const topics = new Set(stale), began = performance.now();
    stale.clear();
    try {
      const address = document.documentElement.dataset.address || location.href;
      const answer = await fetch(address, { headers: { "X-Live": "1" }, redirect: "error" });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const page = parse(await answer.text());
      for (const part of parts()) {
        if (!topics.has("*") && !topicsOf(part).some((topic) => topics.has(topic))) continue;
        const fresh = page.getElementById(part.id);
        if (inUse(part)) for (const topic of topicsOf(part)) stale.add(topic);
        else if (fresh) put(part, fresh);
      }
      seen = page.documentElement.dataset.seen ?? seen;  // a part of a page does not tell
    } catch {  // shown when the server's stream is back, or with the next change
      for (const topic of topics) stale.add(topic);
    } finally {
      fetching = false;
      pause = Math.min(AGAIN_MS, Math.max(WAIT_MS, REST * (performance.now() - began)));
      if (again) { again = false; refreshSoon(); }
    }
  };
  document.addEventListener("focusout", () => { if (stale.size) refreshSoon(); });
  document.addEventListener("selectionchange", () => { if (stale.size && getSelection().isCollapsed) refreshSoon(); });

  let stream = null;
  const listen = () => {
    const topics = new Set(parts().flatMap(topicsOf));
    if (stream || !topics.size || document.hidden) return;
    const asked = [["since", seen], ...[...topics].map((topic) => ["topic", topic])];
    stream = new EventSource("/events?" + new URLSearchParams(asked));
    stream.addEventListener("changed", (event) => { stale.add(event.data); refreshSoon(); });
    stream.addEventListener("open", () => {
      document.documentElement.removeAttribute("data-away");
      if (stale.size) refreshSoon();
    });
    stream.addEventListener("error", () => {
      document.documentElement.setAttribute("data-away", "");
      if (stream?.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
      stream = null;
      setTimeout(listen, AGAIN_MS);
    });
  };
  const leave = () => { stream?.close(); stream = null; };
  for (const part of parts())
    if (part.dataset.every)
      setInterval(() => { topicsOf(part).forEach((topic) => stale.add(topic)); refresh(); }, 1000 * part.dataset.every);
  // Browsers allow six connections to a server: a hidden tab keeps none. What it misses is told when it listens again.
  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else listen(); });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  listen();

  // The form with a preview. Its fields may stand elsewhere on the page, with a place of their own for it.
  const form = document.querySelector("form[data-preview]");
  let asked = 0, typing = 0, sent = false;
  const preview = async (into) => {
    const mine = ++asked;
    try {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.dataset.preview, { method: "POST", body, redirect: "error" });
      const place = document.getElementById(into);
      if (mine === asked && place && answer.ok) place.replaceChildren(...parse(await answer.text()).body.childNodes);
    } catch { /* the server is away: saving will report it */ }
  };
  const previewSoon = (event) => {
    if (!form || event.target.form !== form) return;
    clearTimeout(typing);
    typing = setTimeout(preview, WAIT_MS, event.target.dataset.into ?? form.dataset.into);
  };
  document.addEventListener("input", previewSoon);
  document.addEventListener("change", previewSoon);

  // What was typed and is not saved is left only on purpose: the browser asks.
  const differs = (one) => one.options ? [...one.options].some((option) => option.selected !== option.defaultSelected)
    : one.value !== (one.defaultValue ?? one.value);  // a button has none
  const typed = () => form && ("unsaved" in form.dataset || [...form.elements].some(differs));
  document.addEventListener("submit", (event) => { sent = event.target === form; });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-undo]")) sent = true; });
  addEventListener("pageshow", () => { sent = false; });
  addEventListener("beforeunload", (event) => { if (!sent && typed()) event.preventDefault(); });
})();
