"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // The switch between light and dark. Storage may be forbidden where the page lies; then it holds for this visit.
  const remembered = { get: () => { try { return localStorage.getItem("memecourt-theme"); } catch { return null; } },
                       set: (theme) => { try { localStorage.setItem("memecourt-theme", theme); } catch { /* see above */ } } };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = document.getElementById("theme");
  const named = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const wanted = remembered.get();
  if (wanted === "light" || wanted === "dark") root.dataset.theme = wanted;
  named();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remembered.set(root.dataset.theme);
    named();
  });

  // Filters: each section of memes has its own.
  for (const filters of document.querySelectorAll(".filters")) {
    const entries = [...filters.closest("section").querySelectorAll(".entry")];
    const told = filters.querySelector("output");
    const apply = () => {
      const wanted = [...filters.querySelectorAll("select:not([data-sort])")].map((select) => select.value);
      let shown = 0;
      for (const entry of entries) {
        const fits = entry.dataset.filters.split(" ").some((keys) =>
          keys.split(":").every((key, place) => !wanted[place] || key === wanted[place]));
        entry.hidden = !fits;
        shown += fits;
      }
      told.value = shown === entries.length ? "" : `${shown} of ${entries.length} shown`;
    };
    const sort = filters.querySelector("[data-sort]");
    const keys = {
      up: (one, other) => (one.dataset.score ?? 2) - (other.dataset.score ?? 2),
      down: (one, other) => (other.dataset.score ?? -1) - (one.dataset.score ?? -1),
      name: (one, other) => one.querySelector("h3").textContent.localeCompare(other.querySelector("h3").textContent),
    };
    sort?.addEventListener("change", () => filters.closest("section").append(...(sort.value ? entries.toSorted(keys[sort.value]) : entries)));
    filters.addEventListener("change", apply);
    apply();  // a browser may bring a choice back with the page
  }

  // Keys.
  const help = document.getElementById("help");
  document.getElementById("help-open").addEventListener("click", () => help.showModal());
  let current = null;
  document.addEventListener("focusin", (event) => { current = event.target.closest(".entry") || current; });
  const step = (by) => {
    const entries = [...document.querySelectorAll(".entry:not([hidden])")];
    if (!entries.length) return;
    const at = entries.indexOf(current);
    const next = at < 0 ? (by > 0 ? 0 : entries.length - 1) : Math.min(entries.length - 1, Math.max(0, at + by));
    current = entries[next];
    current.focus({ preventScroll: true });
    current.scrollIntoView({ block: "start" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input:not(.reveal), textarea")) return;
    if (help.open) return;  // Escape closes it by itself
    switch (event.key) {
      case "j": step(1); break;
      case "k": step(-1); break;
      case "b": if (current) { const box = current.querySelector(".reveal"); box.checked = !box.checked; } break;
      case "o": for (const record of current ? current.querySelectorAll(".record") : []) record.open = !record.open; break;
      case "?": help.showModal(); break;
      default: return;
    }
    event.preventDefault();
  });
})();
