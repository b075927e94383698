// Keys for everything that a page does. What has data-key is pressed, ticked or gone to by that key; rows (data-row) are
// stepped through. Without this file all of it can be done with Tab and Enter.
"use strict";

const HOME = document.querySelector(".bar .name").getAttribute("href").replace("overview", ""); // perhaps under a path
const GO = { o: "overview", d: "desk", a: "desk/agreement", t: "trials" };
const MARK = "at-row";
let going = false;

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input:not([type=radio]):not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && field) {
    field.blur();
    return;
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    const form = event.target.closest("form") || document.querySelector("[data-send]")?.form;
    if (form) { event.preventDefault(); form.requestSubmit(); }
    return;
  }
  // Others' keys stay theirs: of the browser, of whoever types, of an open dialogue.
  if (field || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  // Who dictates, or whose hand slips, turns keys of one letter off (WCAG 2.1.4).
  if (off()) return;
  if (going) {
    going = false;
    if (event.key in GO) { event.preventDefault(); location.assign(HOME + GO[event.key]); }
    return;
  }
  if (act(event.key)) event.preventDefault();
});

function act(key) {
  if (key === "?") { showKeys(); return true; }
  if (key === "g") { going = true; return true; }
  if (key === "j") return step(1);
  if (key === "k") return step(-1);
  if (key === "o" && current()) { current().querySelector("a").click(); return true; }
  const named = `[data-key~="${CSS.escape(key)}"]`;
  const own = current()?.querySelector(named);
  const target = own || [...document.querySelectorAll(named)].find(usable);
  if (!target) return false;
  if (target.matches("input[type=radio], input[type=checkbox]")) {
    target.click();
    target.focus();
  } else if (target.matches("input, textarea, select")) {
    target.focus();
    if (target.select) target.select();
  } else {
    target.click();
    // What a click unfolds, one wants to write in.
    target.closest("details[open]")?.querySelector("textarea, input:not([type=hidden])")?.focus();
  }
  return true;
}

function off() {
  try { return localStorage.getItem("keys") === "off"; } catch { return false; }
}

function usable(one) {
  return !one.disabled && one.getClientRects().length > 0;
}

function rows() {
  return [...document.querySelectorAll("[data-row]")].filter(usable);
}

// The row where one is, or was last; on the page of a case at first that of the case.
function current() {
  return document.activeElement.closest("[data-row]") || document.querySelector(`.${MARK}`)
    || document.querySelector("[data-row][aria-current]");
}

// From where one is to the row beside it: a list of a thousand rows is not gone through at each step.
function step(by) {
  const at = current();
  let next = at || (by > 0 ? rows()[0] : rows().at(-1));
  if (at) do next = beside(next, by > 0); while (next && !isRow(next));
  if (!next) {
    // Behind the last row: more of them, where there are more.
    if (by > 0) document.querySelector(".more [data-key]")?.click();
    return at !== null;
  }
  document.querySelector(`.${MARK}`)?.classList.remove(MARK);
  next.classList.add(MARK);
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a")?.focus({ preventScroll: true });
  return true;
}

// Rows that came later stand in a list of their own.
function beside(row, after) {
  return after ? row.nextElementSibling || row.parentElement.nextElementSibling?.firstElementChild
    : row.previousElementSibling || row.parentElement.previousElementSibling?.lastElementChild;
}

function isRow(one) {
  return one.matches("[data-row]") && usable(one);
}

function showKeys() {
  const dialog = document.createElement("dialog");
  dialog.className = "keys";
  dialog.setAttribute("aria-labelledby", "keys-title");
  const title = document.createElement("h2");
  title.id = "keys-title";
  title.textContent = "Keys";
  const list = document.createElement("dl");
  const told = new Map([
    ...(rows().length ? [["j  k", "next row, row before"], ["o", "open the row"]] : []),
    ...[...document.querySelectorAll("[data-key]")].filter(usable).reverse().map((one) => [one.dataset.key.replace(" ", "  "), one.dataset.does || NAMES[one.dataset.key] || one.textContent.trim()]),
    ["g d  g a  g t", "to the review queue, agreement, trials"],
    ["Ctrl Enter", "send the form"],
    ["Esc", "leave a field, close this"],
    ["?", "this list"],
  ]);
  for (const [key, does] of told) {
    const term = document.createElement("dt");
    for (const word of key.split("  ")) {
      const mark = document.createElement("kbd");
      mark.textContent = word;
      term.append(mark, " ");
    }
    const said = document.createElement("dd");
    said.textContent = does;
    list.append(term, said);
  }
  const choice = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = !off();
  box.addEventListener("change", () => {
    try { localStorage.setItem("keys", box.checked ? "on" : "off"); } catch { /* then they stay as they are */ }
  });
  choice.append(box, " Keys of one letter work");
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.append(title, list, choice, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const NAMES = { b: "show or blur the picture" };

for (const button of document.querySelectorAll("[data-keys]")) button.addEventListener("click", showKeys);
