// What moves on a page. Everything works without this but for two things:
//
// data-live="TOPIC TOPIC" on an element with an id: when one of these topics changes, the page is fetched again and the
//   element is put in the place of the old one. What is being typed into, or is open, stays. A page that answers a form
//   names its address in data-address on the root. With data-every="SECONDS" it is fetched again that often as well.
// data-preview="URL" data-into="ID" on a form: while a person types, the form is posted there and the answer, which is
//   HTML of ours, becomes what the element with that id holds.
//
// No markup is ever made of text here: pages come from the server, where every value is escaped, and are put in by
// DOMParser, which runs no script.
"use strict";
(() => {
  const WAIT_MS = 250;
  const AGAIN_MS = 10000;
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  const debounced = (action) => {
    let timer = 0;
    return () => { clearTimeout(timer); timer = setTimeout(action, WAIT_MS); };
  };

  // Live parts.
  const parts = () => [...document.querySelectorAll("[data-live][id]")];
  const topicsOf = (part) => part.dataset.live.split(/\s+/).filter(Boolean);
  const stale = new Set();

  const typedIn = (part) => {
    const active = document.activeElement;
    return part.contains(active) && active.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
  };

  const put = (old, fresh) => {
    const open = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
    const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...old.querySelectorAll("[id]")].filter((one) => one.scrollTop || one.scrollLeft)
      .map((one) => [one.id, one.scrollTop, one.scrollLeft]);
    const ticked = new Set([...old.querySelectorAll("input[type=checkbox]:checked[id]")].map((one) => one.id));
    for (const one of fresh.querySelectorAll("details[id]")) one.open = open.has(one.id) || one.open;
    for (const one of fresh.querySelectorAll("input[type=checkbox][id]")) one.checked = ticked.has(one.id);
    old.replaceWith(fresh);
    for (const [id, top, left] of scrolled) document.getElementById(id)?.scrollTo(left, top);
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    document.dispatchEvent(new Event("refreshed"));
  };

  let fetching = false;
  const refresh = async () => {
    if (fetching || document.hidden || !stale.size) return;
    fetching = true;
    const topics = new Set(stale);
    stale.clear();
    try {
      const answer = await fetch(document.documentElement.dataset.address || location.href, { headers: { "X-Live": "1" }, redirect: "error" });
      if (!answer.ok) return;
      const page = parse(await answer.text());
      for (const part of parts()) {
        if (!topics.has("*") && !topicsOf(part).some((topic) => topics.has(topic))) continue;
        const fresh = page.getElementById(part.id);
        if (typedIn(part)) for (const topic of topicsOf(part)) stale.add(topic);
        else if (fresh) put(part, fresh);
      }
    } catch { /* the server is away: its stream will say when it is back */ } finally { fetching = false; }
  };
  const refreshSoon = debounced(refresh);
  document.addEventListener("focusout", () => { if (stale.size) refreshSoon(); });

  let stream = null;
  const listen = () => {
    const topics = new Set(parts().flatMap(topicsOf));
    if (stream || !topics.size || document.hidden) return;
    stream = new EventSource("/events?" + [...topics].map((topic) => "topic=" + encodeURIComponent(topic)).join("&"));
    stream.addEventListener("changed", (event) => { stale.add(event.data); refreshSoon(); });
    stream.addEventListener("open", () => document.documentElement.removeAttribute("data-away"));
    stream.addEventListener("error", () => {
      document.documentElement.setAttribute("data-away", "");
      if (stream?.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
      stream = null;
      setTimeout(() => { stale.add("*"); refresh(); listen(); }, AGAIN_MS);
    });
  };
  for (const part of parts())
    if (part.dataset.every)
      setInterval(() => { topicsOf(part).forEach((topic) => stale.add(topic)); refresh(); }, 1000 * part.dataset.every);
  // Browsers allow six connections to a server: a hidden tab keeps none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stream?.close(); stream = null; } else { stale.add("*"); refresh(); listen(); }
  });
  addEventListener("pagehide", () => { stream?.close(); stream = null; });
  addEventListener("pageshow", (event) => { if (event.persisted) { stale.add("*"); refresh(); listen(); } });
  listen();

  // Previews.
  for (const form of document.querySelectorAll("form[data-preview][data-into]")) {
    let asked = 0;
    const ask = debounced(async () => {
      const mine = ++asked;
      try {
        const body = new URLSearchParams(new FormData(form));
        const answer = await fetch(form.dataset.preview, { method: "POST", body, redirect: "error" });
        const into = document.getElementById(form.dataset.into);
        if (mine === asked && into && answer.ok) into.replaceChildren(...parse(await answer.text()).body.childNodes);
      } catch { /* the server is away: saving will report it */ }
    });
    form.addEventListener("input", ask);
    form.addEventListener("change", ask);
  }
})();
