// Sets the chosen theme and time zone before the page is painted.
"use strict";

(() => {
  // Each switch: the element that shows the choice, and the choices. The first is the default: the
  // system's theme, the viewer's own zone.
  const switches = {
    theme: { label: "Theme", order: ["auto", "light", "dark"] },
    zone: { label: "Times", order: ["local", "utc"] },
  };
  const chosen = document.documentElement.dataset;
  const read = (key) => {
    const { order } = switches[key];
    try {
      const kept = localStorage.getItem(key);
      return order.includes(kept) ? kept : order[0];
    } catch {
      return order[0]; // storage is not allowed: the switch works for this page only
    }
  };
  const show = (key, value) => {
    chosen[key] = value;
    const button = document.getElementById(key);
    if (button) button.textContent = `${switches[key].label}: ${value === "utc" ? "UTC" : value}`;
  };
  const next = (key) => {
    const { order } = switches[key];
    const value = order[(order.indexOf(chosen[key]) + 1) % order.length];
    try {
      localStorage.setItem(key, value);
    } catch {
      // see above
    }
    show(key, value);
    document.dispatchEvent(new Event(key));
  };

  document.documentElement.classList.add("js");
  for (const key of Object.keys(switches)) show(key, read(key));
  document.addEventListener("DOMContentLoaded", () => {
    for (const key of Object.keys(switches)) {
      show(key, chosen[key]);
      document.getElementById(key).addEventListener("click", () => next(key));
    }
  });
})();
