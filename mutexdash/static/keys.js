// Input by hand: keys, copying a place in the code, typing a lock's name to confirm.
"use strict";

const ROWS = "[data-rows] th a";

const typing = (node) => node.matches?.("input, textarea, select, [contenteditable]");

const step = (by) => {
  const links = [...document.querySelectorAll(ROWS)];
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement?.closest("tr")?.querySelector("th a"));
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  links[Math.min(links.length - 1, Math.max(0, next))].focus();
  return true;
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.getElementById("q");
  const inSearch = search !== null && event.target === search;
  if (event.key === "Escape" && inSearch) search.blur();
  else if (event.key === "ArrowDown" && (inSearch || !typing(event.target))) {
    if (step(1)) event.preventDefault();
  } else if (event.key === "ArrowUp" && !typing(event.target)) {
    if (document.activeElement.matches(ROWS) && step(-1)) event.preventDefault();
  } else if (event.key === "/" && search !== null && !typing(event.target)) {
    search.focus();
    search.select();
    event.preventDefault();
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.(".copy");
  if (!button) return;
  const place = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(place.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(place); // the clipboard is not allowed, for example over plain HTTP
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

// A click on a row opens it, except on a link or a button, or while text is selected.
document.addEventListener("click", (event) => {
  const row = event.target.closest?.("[data-rows] tr");
  if (!row || event.button || event.target.closest("a, button, summary, details, input")) return;
  if (String(getSelection())) return;
  const link = row.querySelector("th a");
  if (event.ctrlKey || event.metaKey) window.open(link.href, "_blank", "noopener");
  else link.click();
});

// The server compares, too: this only warns before the form is sent.
const check = (form) => {
  const typed = form.elements.namedItem("name");
  // A name with invisible characters is shown with escapes, and may be typed with them.
  const names = [form.dataset.name, document.querySelector("h1 .text").textContent];
  const same = names.includes(typed.value);
  typed.setCustomValidity(same || !typed.value ? "" : "This is not the lock's name.");
};

document.addEventListener("input", (event) => {
  if (event.target.form?.matches(".force")) check(event.target.form);
});
