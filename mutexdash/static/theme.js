// Before the page is painted: the theme that was chosen here. Without one, the system's.
"use strict";

(() => {
  const order = ["auto", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem("theme");
      return order.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // no storage allowed: the switch then works for this page
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };
  const next = () => {
    const theme = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // see above
    }
    show(theme);
  };

  document.documentElement.classList.add("js");
  show(read());
  document.addEventListener("DOMContentLoaded", () => {
    show(document.documentElement.dataset.theme);
    document.getElementById("theme").addEventListener("click", next);
  });
})();
