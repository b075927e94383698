// Before anything is drawn: what the visitor chose, else what the system says. Without this file, the system.
{
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  const root = document.documentElement;
  root.classList.add("js");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
}
