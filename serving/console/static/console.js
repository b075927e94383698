// What a page can do by itself. Everything else is done by links, forms and htmx; nothing here is needed to read.
"use strict";

document.addEventListener("click", (event) => {
  const zoom = event.target.closest("[data-zoom]");
  if (zoom) larger(document.getElementById(zoom.dataset.zoom), zoom.getAttribute("aria-pressed") !== "true");
  if (event.target.closest("#theme")) otherTheme();
  // The menu closes when one goes on elsewhere.
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

const texts = kept("texts", logText);
const hover = kept("hover");
kept("grey");
kept("blur");

// Pictures that this person was shown today in this browser, and how many they want to be warned after.
const budget = document.getElementById("budget");
if (budget) {
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* then nobody is warned */ } };
  budget.value = stored("budget") || "";
  budget.addEventListener("change", () => { store("budget", budget.value); warn(); });
  const today = new Date().toDateString();
  const [day, before] = (stored("shown") || "").split("|");
  let shown = day === today ? Number(before) : 0;
  const warn = () => {
    document.getElementById("over-budget")?.remove();
    if (!Number(budget.value) || shown < Number(budget.value)) return;
    const notice = document.createElement("p");
    notice.id = "over-budget";
    notice.className = "notice";
    notice.setAttribute("role", "status");
    notice.textContent = `${shown} pictures were shown to you today; you wanted to stop at ${budget.value}. Take a break.`;
    document.getElementById("main").prepend(notice);
  };
  // Images tell of their loading only where they stand, so listen on the way there.
  document.addEventListener("load", (event) => {
    if (!event.target.matches?.("img.sharp")) return;
    shown += 1;
    store("shown", `${today}|${shown}`);
    warn();
  }, true);
  warn();
}

// A choice of this browser, which holds for all pages (theme.js reads it first).
function kept(name, then = () => {}) {
  const box = document.getElementById(name);
  if (!box) return null;
  box.checked = document.documentElement.dataset[name] === "shown";
  box.addEventListener("change", () => {
    document.documentElement.dataset[name] = box.checked ? "shown" : "";
    try { localStorage.setItem(name, box.checked ? "shown" : ""); } catch { /* then it holds for this page */ }
    then();
  });
  return box;
}

// Of somebody who finds no harm the clause is mostly that none applies; of harm one always does.
document.addEventListener("change", (event) => {
  const none = document.querySelector("#decide .no-clause input");
  if (!none || event.target.name !== "label") return;
  if (event.target.value === "HARMFUL") none.checked = false;
  else if (!document.querySelector("#decide [name=clause]:checked")) none.checked = true;
});

// Where texts are shown anyway, that a case's text was shown is logged all the same, once.
function logText() {
  if (document.documentElement.dataset.texts === "shown") document.querySelector("[data-show-text]")?.requestSubmit();
}
document.addEventListener("DOMContentLoaded", logText); // after htmx, which then sends it

// Who wants it so sees a picture by pointing at it: as by its button, with one view in the log.
document.addEventListener("pointerover", (event) => {
  const form = hover?.checked && event.target.closest(".picture")?.querySelector("form");
  if (!form || form.dataset.sent) return;
  form.dataset.sent = "yes";
  form.requestSubmit();
});

// Who comes to a case goes on from it with Tab, and not from the head of the page.
if (!location.hash && document.activeElement === document.body) {
  document.querySelector("[data-start]")?.focus({ preventScroll: true });
}

document.querySelector("[data-row][aria-current]")?.scrollIntoView({ block: "nearest" });

// What a link leads to may be folded.
function unfold() {
  const to = location.hash.length > 1 && document.getElementById(location.hash.slice(1)); // ids here are all plain
  if (!to) return;
  for (let fold = to.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  to.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

// Rows that were added to a list: whoever asked for them goes on at the first.
let above = null;
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.matches(".more")) above = event.detail.target.previousElementSibling;
});
document.addEventListener("htmx:afterSwap", () => {
  above?.nextElementSibling?.querySelector("a")?.focus();
  above = null;
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.querySelector("details.menu[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
  const zoomed = document.querySelector(".picture.zoomed");
  if (zoomed) larger(zoomed, false);
});

function larger(figure, yes) {
  figure.classList.toggle("zoomed", yes);
  const button = figure.querySelector("[data-zoom]");
  button.setAttribute("aria-pressed", String(yes));
  button.textContent = yes ? "Smaller" : "Larger";
  button.focus();
}

function otherTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* then it holds for this page */ }
}

// Where a part of a page is renewed, what was unfolded in it stays so.
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  for (const open of event.detail.target.querySelectorAll("details[open][id]")) {
    const fresh = event.detail.fragment.querySelector(`#${CSS.escape(open.id)}`);
    if (fresh) fresh.open = true;
  }
});

// A picture that is dropped or pasted anywhere on the page of a try goes where a chosen one would.
const picture = document.querySelector("#try [type=file]");
if (picture) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  for (const kind of ["drop", "paste"]) document.addEventListener(kind, (event) => {
    const files = (event.dataTransfer || event.clipboardData).files;
    if (!files.length) return; // a text, which goes into its field
    event.preventDefault();
    picture.files = files;
    picture.focus();
  });
}

// A session that is over: the answer says so (401), and the page goes to where one signs in. What else could not be had
// is said where it was asked for.
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401) return location.reload();
  const said = document.createElement("p");
  said.className = "fault small";
  said.setAttribute("role", "alert");
  said.textContent = `That could not be shown (${event.detail.xhr.status}).`;
  event.detail.target.querySelector(".fault")?.remove();
  event.detail.target.append(said);
});
