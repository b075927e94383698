// Before anything is drawn: what the visitor chose, else what the system says. Without this file, the system.
{
  const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const root = document.documentElement;
  root.classList.add("js");
  const theme = kept("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  // Texts are blurred until somebody asks for them in this browser.
  for (const name of ["texts", "hover", "grey", "blur"]) if (kept(name) === "shown") root.dataset[name] = "shown";
}
