"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const who = document.getElementById("who");
  const count = document.getElementById("count");
  const told = document.getElementById("told");
  const boxes = [...document.querySelectorAll("fieldset")];

  // Storage may be forbidden where the page lies; then choices hold for this visit.
  const place = `memecourt-ratings ${document.getElementById("main").dataset.sheet}`;
  const kept = (() => { try { return JSON.parse(localStorage.getItem(place)) || {}; } catch { return {}; } })();
  const keep = () => { try { localStorage.setItem(place, JSON.stringify(kept)); } catch { /* see above */ } };
  const chosen = (box) => box.querySelector("input:checked");
  const show = () => { count.value = `${boxes.filter(chosen).length} of ${boxes.length} answered`; };

  who.value = kept.who || "";
  who.addEventListener("input", () => { kept.who = who.value; keep(); });
  for (const box of boxes) {
    const name = box.querySelector("input").name;
    if (kept[name]) for (const input of box.querySelectorAll("input")) input.checked = input.value === kept[name];
    box.addEventListener("change", () => { kept[name] = chosen(box).value; keep(); show(); });
  }
  show();

  document.getElementById("save").addEventListener("click", () => {
    const name = who.value.trim();
    const missing = boxes.find((box) => !chosen(box));
    if (!name) { told.value = "Write a name that stands for you."; who.focus(); return; }
    if (missing) {
      told.value = "Not all questions are answered: this is the first that is not.";
      missing.scrollIntoView({ block: "center" });
      missing.querySelector("input").focus({ preventScroll: true });
      return;
    }
    const lines = boxes.map((box) => JSON.stringify({
      item: box.closest(".item").dataset.item, who: name, criterion: box.dataset.criterion, score: Number(chosen(box).value),
    }) + "\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    link.download = `ratings-${name.replace(/[^\w.-]+/g, "-")}.jsonl`;
    link.click();
    URL.revokeObjectURL(link.href);
    told.value = `${lines.length} ratings were saved to your downloads.`;
  });
})();
