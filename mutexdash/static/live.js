// Keeps a page up to date: asks for the page again with its ETag, puts what is new where it
// belongs, and counts times on in between. The page works without it, by plain reload.
"use strict";

import morph, { steadily } from "./morph.js";

const EVERY = 2000; // milliseconds between two questions,
const HIDDEN = 20000; // in a hidden tab,
const SLOWEST = 10000; // and at most, when there is no answer

const find = (id) => document.getElementById(id);

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

// As `duration` in lockclient/text/durations.py.
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

// As `roughly` there.
const roughly = (seconds) => duration(seconds).split(" ", 2).join(" ");
const writing = (node) => ("roughly" in node.dataset ? roughly : duration);

// As `utc` in lockclient/overview/columns_and_order.py, and the same in the viewer's own zone, unless that wants UTC.
const PARTS = {
  ...{ year: "numeric", month: "2-digit", day: "2-digit", hourCycle: "h23" },
  ...{ hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" },
};
const here = new Intl.DateTimeFormat("en", PARTS);
const there = new Intl.DateTimeFormat("en", { ...PARTS, timeZone: "UTC" });

const written = (stamp, inUtc) => {
  const at = new Date(stamp * 1000);
  if (Number.isNaN(at.getTime())) return "";
  const part = {};
  for (const { type, value } of (inUtc ? there : here).formatToParts(at)) part[type] = value;
  const time = `${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
  return `${part.year}-${part.month}-${part.day} ${time}`;
};

const wantsUtc = () => document.documentElement.dataset.zone === "utc";

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

const tick = (root) => {
  for (const node of root.querySelectorAll("[data-since]"))
    setText(node, writing(node)(now() - Number(node.dataset.since)));
  for (const node of root.querySelectorAll("[data-until]"))
    setText(node, duration(Number(node.dataset.until) - now()));
  for (const node of root.querySelectorAll("[data-start]")) {
    const { start, alert, end } = node.dataset;
    const part = (since, until) =>
      Math.min(1, Math.max(0, (now() - Number(since)) / (until - since)));
    // As `Bar` in lockclient/overview/lock_presentation.py: half of it until the alert, half after, unless
    // it is not known to be past that.
    const after = node.parentNode.classList.contains("ok") ? 0 : part(alert, end);
    node.setAttribute("width", `${(50 * (part(start, alert) + after)).toFixed(1)}%`);
  }
};

// Times as such, and those behind durations: they stay as they are once they are written.
const setZone = (root) => {
  const inUtc = wantsUtc();
  for (const node of root.querySelectorAll("[data-at]"))
    setText(node, written(Number(node.dataset.at), inUtc));
  for (const node of root.querySelectorAll("time[title]"))
    node.title = written(Number(node.dataset.since ?? node.dataset.until), inUtc) || node.title;
};
document.addEventListener("zone", () => setZone(document));

// ---------------------------------------------------------------- what is new

let newest = null; // the last page that came, as text

// Each process behind one address has seen other lanes: a timeline keeps to those of one.
const KEPT_TO = 30000; // milliseconds for which that process may be silent
let heardAt = performance.now();

const isOfAnother = (fresh) => {
  const [mine, its] = [document, fresh].map((page) => page.getElementById("lanes")?.dataset.process);
  if (mine === its) heardAt = performance.now();
  return Boolean(mine && its) && mine !== its && performance.now() - heardAt < KEPT_TO;
};

// Returns false for an answer that the page does not take.
const show = (html) => {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const { build } = fresh.documentElement.dataset;
  if (!build) throw new Error("not the dashboard, but something in front of it");
  if (build !== document.documentElement.dataset.build) {
    location.reload(); // another version of the dashboard: its pages want its own scripts
    return false;
  }
  if (isOfAnother(fresh)) return false;
  if (html !== newest) setClock(fresh);
  newest = html;
  tick(fresh);
  setZone(fresh);
  document.title = fresh.title;
  steadily(() => {
    for (const region of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(region.id);
      if (other) morph(region, other);
    }
  });
  return true;
};

// The pointer has left the rows, so that they may go into their order now.
let pointed = false;
document.addEventListener("pointerover", (event) => {
  const inside = Boolean(event.target.closest?.("[data-rows]"));
  if (pointed && !inside && newest !== null && !paused()) show(newest);
  pointed = inside;
});

// Up to when the page is proven to be complete: a header of each answer, of 304s, too.
const setUpdated = (stamp) => {
  const node = document.querySelector("#updated [data-since]");
  if (!node || !stamp) return;
  node.dataset.since = stamp;
  node.title = written(Number(stamp), wantsUtc());
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
    if (answer.status >= 500) throw new Error("There is nothing to show instead.");
    if (html === null) heardAt = performance.now();
    else if (show(html)) etag = answer.headers.get("ETag");
    setUpdated(answer.headers.get("X-Updated-At"));
    correctClock(Date.parse(answer.headers.get("Date")) / 1000);
    failures = 0;
    answeredAt = performance.now();
  } catch {
    if (mine !== asking) return;
    failures += 1;
    etag = null; // the whole page next time, whatever is done to this one until then
  } finally {
    clearTimeout(limit);
  }
  tellHowOld();
  askLater();
};

const askLater = () => {
  clearTimeout(timer);
  if (paused()) return;
  const wait = document.hidden ? HIDDEN : Math.min(SLOWEST, EVERY * 2 ** failures);
  // Jitter: many pages that were opened by one alert do not stay in step.
  timer = setTimeout(ask, wait * (0.8 + 0.3 * Math.random()));
};

const tellHowOld = () => {
  const lost = failures > 1 && !paused();
  const age = duration((performance.now() - answeredAt) / 1000);
  find("lost").hidden = !lost;
  document.body.classList.toggle("unanswered", lost);
  if (lost) setText(find("lost-since"), age);
  if (paused()) setText(find("paused-since"), age);
  // Who can't see what is, must not unlock; the next page that comes takes it back.
  const unlock = document.querySelector(".force button");
  if (unlock && (lost || paused())) unlock.disabled = true;
};

// ---------------------------------------------------------------- pausing

const paused = () => find("pause")?.getAttribute("aria-pressed") === "true";

const setPaused = (wanted) => {
  find("pause").setAttribute("aria-pressed", String(wanted));
  find("paused").hidden = !wanted;
  document.body.classList.toggle("still", wanted);
  if (wanted) {
    asking?.abort();
    asking = null;
    clearTimeout(timer);
  } else {
    etag = null; // the page as a whole, whatever was done to it
    ask();
  }
  tellHowOld();
};

find("pause")?.addEventListener("click", () => setPaused(!paused()));
find("resume").addEventListener("click", () => {
  setPaused(false);
  find("pause").focus();
});

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
  if (!document.hidden && !paused()) ask();
});

setClock(document);
tick(document);
setZone(document);
setInterval(() => {
  if (!paused()) tick(document);
  tellHowOld();
}, 1000);
// The answer to a form can't be asked for again: it stays as it is.
if (!("still" in document.documentElement.dataset)) askLater();
