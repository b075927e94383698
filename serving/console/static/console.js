// What a page can do by itself. Everything else is done by links, forms and htmx; nothing here is needed to read.
"use strict";

document.addEventListener("click", (event) => {
  const zoom = event.target.closest("[data-zoom]");
  if (zoom) larger(document.getElementById(zoom.dataset.zoom), zoom.getAttribute("aria-pressed") !== "true");
  if (event.target.closest("#theme")) otherTheme();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
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
