// Everything here is an addition: without it, the pages read as they are, but for search.
"use strict";
const root = document.body.dataset.root;
const $ = (query, from = document) => [...from.querySelectorAll(query)];

// Mathematics: the pages hold MathML with its TeX; KaTeX sets it more finely.
if (window.katex) {
  for (const span of $("span.math")) {
    const tex = span.querySelector("annotation");
    if (!tex) continue;
    const displayMode = span.classList.contains("display");
    katex.render(tex.textContent, span, { displayMode, throwOnError: false });
  }
}

// Copy buttons.
for (const pre of $("pre.code")) {
  const code = pre.querySelector("code").textContent;
  const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
  button.setAttribute("aria-label", "Copy this code");
  button.onclick = async () => {
    await navigator.clipboard.writeText(code);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  pre.append(button);
}

// A click on a line's left edge puts the line into the address.
document.addEventListener("click", (event) => {
  const line = event.target.closest("pre.code code > span[id]");
  if (line && event.clientX < line.getBoundingClientRect().left + 2 && !String(getSelection())) location.hash = line.id;
});

// What scrolls sideways can be reached from the keyboard.
const reachable = () => {
  for (const box of $("pre, .table, .math.display")) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", box.dataset.label || (box.matches(".out") ? "Output" : box.matches("pre") ? "Code" : "Equation"));
    }
  }
};
reachable();
addEventListener("resize", reachable);
document.fonts?.ready.then(reachable); // formulas grow when their fonts have come

// Headings on the right: open when there is room, the current one marked.
const toc = document.querySelector(".toc details");
if (toc) {
  const wide = matchMedia("(min-width: 84rem)");
  const fit = () => (toc.open = wide.matches);
  wide.addEventListener("change", fit);
  fit();
  const links = new Map($("a", toc).map((a) => [a.hash.slice(1), a]));
  const heads = $("main :is(h2, h3)[id]").filter((h) => links.has(h.id));
  const mark = () => {
    const above = heads.filter((h) => h.getBoundingClientRect().top < 140);
    for (const a of links.values()) a.classList.remove("here");
    if (above.length) links.get(above.at(-1).id).classList.add("here");
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(() => { mark(); waiting = false; });
    waiting = true;
  }, { passive: true });
  mark();
}

// An address inside folded text opens it; printing opens all.
const unfold = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => $("main details").forEach((box) => (box.open = true)));
const nav = document.getElementById("book-nav");
nav.addEventListener("click", (event) => event.target.closest("a") && nav.matches(":popover-open") && nav.hidePopover());
nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });

// Light, dark, or what the system says.
const themes = { auto: "Auto", light: "Light", dark: "Dark" };
const button = document.getElementById("theme");
const show = (theme) => {
  document.documentElement.dataset.theme = theme;
  button.textContent = themes[theme];
  button.setAttribute("aria-label", `Colours: ${themes[theme].toLowerCase()}`);
};
button.hidden = false;
show(document.documentElement.dataset.theme in themes ? document.documentElement.dataset.theme : "auto");
button.onclick = () => {
  const names = Object.keys(themes);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  show(next);
  try { localStorage.setItem("theme", next); } catch { /* private window */ }
};

// Search: the index is a script, so that it also loads from a folder without a server.
const dialog = document.getElementById("search");
const field = document.getElementById("search-text");
const results = document.getElementById("search-results");
const count = document.getElementById("search-count");
const open = document.getElementById("search-open");
const words = (text) => text.toLowerCase().split(/[^\p{L}\p{N}_.]+/u).map((w) => w.replace(/^\.+|\.+$/g, "")).filter(Boolean)
  .flatMap((w) => (/[_.]/.test(w) && !/^\d/.test(w) ? [w, ...w.split(/[_.]+/).filter((p) => p.length > 2)] : [w]));
const script = (name) => new Promise((done, fail) => {
  document.head.append(Object.assign(document.createElement("script"), { src: `${root}assets/${name}`, onload: done, onerror: fail }));
});
let engine;
const load = () => (engine ??= Promise.all([script("minisearch.min.js"), script("search-index.js")]).then(() => {
  const search = new MiniSearch({ fields: ["title", "names", "text"], storeFields: ["title", "place", "url", "text"], tokenize: words, processTerm: (t) => t });
  search.addAll(window.bookIndex.map((row, id) => ({ id, title: row[0], place: row[1], url: row[2], names: row[3], text: row[4] })));
  return search;
}));
const snippet = (text, terms) => {
  const low = text.toLowerCase();
  const at = Math.max(0, Math.min(...terms.map((t) => low.indexOf(t)).filter((i) => i >= 0), 1e9));
  const start = at > 1e8 ? 0 : Math.max(0, at - 60);
  const piece = (start ? "… " : "") + text.slice(start, start + 170) + (start + 170 < text.length ? " …" : "");
  const small = document.createElement("small");
  let rest = piece;
  while (rest) {
    const hits = terms.map((t) => [rest.toLowerCase().indexOf(t), t]).filter(([i]) => i >= 0).sort((a, b) => a[0] - b[0] || b[1].length - a[1].length);
    if (!hits.length) break;
    const [i, term] = hits[0];
    small.append(rest.slice(0, i), Object.assign(document.createElement("mark"), { textContent: rest.slice(i, i + term.length) }));
    rest = rest.slice(i + term.length);
  }
  small.append(rest);
  return small;
};
const look = async () => {
  const query = field.value.trim();
  const search = await load();
  if (query !== field.value.trim()) return;
  const options = { prefix: (t) => t.length > 2, fuzzy: (t) => (t.length > 5 && !/[\d_]/.test(t) ? 0.15 : false), boost: { title: 4, names: 3 }, combineWith: "AND" };
  let found = query ? search.search(query, options) : [];
  if (!found.length && query) found = search.search(query, { ...options, combineWith: "OR" });
  count.textContent = query ? `${found.length} ${found.length === 1 ? "place" : "places"}` : "";
  results.replaceChildren(...found.slice(0, 25).map((hit) => {
    const a = Object.assign(document.createElement("a"), { href: root + hit.url });
    a.append(Object.assign(document.createElement("b"), { textContent: hit.title }), ` ${hit.place === hit.title ? "" : hit.place}`, snippet(hit.text, hit.terms));
    const li = document.createElement("li");
    li.append(a);
    return li;
  }));
};
open.hidden = false;
open.onclick = () => { dialog.showModal(); field.select(); load(); };
field.addEventListener("input", look);
dialog.querySelector("form").addEventListener("submit", (event) => {
  if (event.submitter && event.submitter.matches("button") && document.activeElement === event.submitter) return;
  event.preventDefault();
  results.querySelector("a")?.click();
});
results.addEventListener("click", (event) => event.target.closest("a") && dialog.close());
dialog.addEventListener("keydown", (event) => {
  const links = [field, ...$("a", results)];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const at = links.indexOf(document.activeElement);
  if (step && at >= 0) { event.preventDefault(); links[Math.min(Math.max(at + step, 0), links.length - 1)].focus(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !dialog.open && !event.target.closest("input, textarea, select")) { event.preventDefault(); open.click(); }
});
