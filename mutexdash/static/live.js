// Keeps a page up to date: asks for the page again with its ETag, puts what is new where it
// belongs, and counts times on in between. The page works without it, by plain reload.
"use strict";

(() => {
  const EVERY = 2000; // milliseconds between two questions,
  const HIDDEN = 20000; // while nobody looks,
  const SLOWEST = 10000; // and at most, when there is no answer

  // ---------------------------------------------------------------- clocks

  // The server's clock, counted on by a clock that never jumps: the viewer's may be wrong.
  let ahead = 0;
  const now = () => ahead + performance.now() / 1000;
  const setClock = (root) => {
    const stamp = root.querySelector("[data-now]")?.dataset.now;
    if (stamp) ahead = Number(stamp) - performance.now() / 1000;
  };

  // A machine that slept has lost time. The header has whole seconds, so small differences are none.
  const correctClock = (stamp) => {
    if (Math.abs(stamp - now()) > 3) ahead += stamp - now();
  };

  // As `duration` in text.py.
  const duration = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const days = Math.floor(whole / 86400);
    const hours = Math.floor(whole / 3600) % 24;
    const minutes = Math.floor(whole / 60) % 60;
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${minutes} min`;
    if (minutes) return `${minutes} min ${whole % 60} s`;
    return `${whole} s`;
  };

  const setText = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  const tick = (root) => {
    for (const node of root.querySelectorAll("[data-since]"))
      setText(node, duration(now() - Number(node.dataset.since)));
    for (const node of root.querySelectorAll("[data-until]"))
      setText(node, duration(Number(node.dataset.until) - now()));
    for (const node of root.querySelectorAll("[data-start]")) {
      const start = Number(node.dataset.start);
      const part = (now() - start) / (Number(node.dataset.end) - start);
      node.setAttribute("width", `${(Math.min(1, Math.max(0, part)) * 100).toFixed(1)}%`);
    }
  };

  // ---------------------------------------------------------------- what is new

  // Change `old` into `fresh`, touching only what differs, so that focus, selection and opened
  // details stay. Children of `data-keyed` belong together by `data-key`, others by their place.
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
    } else if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
    } else {
      morphAttributes(old, fresh);
      (old.matches("[data-keyed]") ? morphKeyed : morphChildren)(old, fresh);
    }
  };

  const morphAttributes = (old, fresh) => {
    const kept = old.localName === "details" ? "open" : "";
    for (const { name } of [...old.attributes])
      if (name !== kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };

  const morphChildren = (old, fresh) => {
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((child, i) => (i < before.length ? morph(before[i], child) : old.append(child)));
    before.slice(after.length).forEach((child) => child.remove());
  };

  const morphKeyed = (old, fresh) => {
    const after = [...fresh.children];
    const keys = new Set(after.map((child) => child.dataset.key));
    for (const child of [...old.children]) if (!keys.has(child.dataset.key)) child.remove();
    const known = new Map([...old.children].map((child) => [child.dataset.key, child]));
    let place = old.firstElementChild;
    for (const child of after) {
      const same = known.get(child.dataset.key);
      // A node that is moved loses the focus: those that are in their place already are not.
      if (same !== undefined && same === place) place = place.nextElementSibling;
      else old.insertBefore(same ?? child, place);
      if (same !== undefined) morph(same, child);
    }
  };

  const show = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const { build } = fresh.documentElement.dataset;
    if (!build) throw new Error("not the dashboard, but something in front of it");
    if (build !== document.documentElement.dataset.build) {
      location.reload(); // another version of the dashboard: its pages want its own scripts
      return;
    }
    setClock(fresh);
    tick(fresh);
    document.title = fresh.title;
    for (const region of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(region.id);
      if (other) morph(region, other);
    }
  };

  // ---------------------------------------------------------------- asking

  let etag = null;
  let failures = 0;
  let answeredAt = performance.now();
  let timer;
  let asking = null; // the question under way

  const ask = async () => {
    asking?.abort();
    const mine = (asking = new AbortController());
    const limit = setTimeout(() => mine.abort(), 10000);
    try {
      const answer = await fetch(location.href, {
        cache: "no-store",
        headers: etag ? { "If-None-Match": etag } : {},
        signal: mine.signal,
      });
      const html = answer.status === 304 ? null : await answer.text();
      if (mine !== asking) return; // the page asks for something else by now
      if (html !== null) {
        show(html);
        etag = answer.headers.get("ETag");
      }
      correctClock(Date.parse(answer.headers.get("Date")) / 1000);
      failures = 0;
      answeredAt = performance.now();
    } catch {
      if (mine !== asking) return;
      failures += 1;
    } finally {
      clearTimeout(limit);
    }
    tellWhetherLost();
    askLater();
  };

  const askLater = () => {
    clearTimeout(timer);
    const wait = document.hidden ? HIDDEN : Math.min(SLOWEST, EVERY * 2 ** failures);
    // Jitter: many pages that were opened by one alert do not stay in step.
    timer = setTimeout(ask, wait * (0.8 + 0.4 * Math.random()));
  };

  const tellWhetherLost = () => {
    const lost = failures > 1;
    document.getElementById("lost").hidden = !lost;
    document.body.classList.toggle("unanswered", lost);
    if (lost) {
      const age = (performance.now() - answeredAt) / 1000;
      setText(document.getElementById("lost-since"), duration(age));
    }
  };

  // ---------------------------------------------------------------- searching as one types

  document.addEventListener("input", (event) => {
    if (event.target.id !== "q") return;
    const url = new URL(location.href);
    url.searchParams.delete("page");
    if (event.target.value.trim()) url.searchParams.set("q", event.target.value);
    else url.searchParams.delete("q");
    history.replaceState(null, "", url);
    asking?.abort(); // both were for another list
    asking = etag = null;
    clearTimeout(timer);
    timer = setTimeout(ask, 200);
  });

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) ask();
  });

  setClock(document);
  setInterval(() => {
    tick(document);
    tellWhetherLost();
  }, 1000);
  askLater();
})();
