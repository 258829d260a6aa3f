// Keeps a page up to date: requests the page again with its ETag, changes the parts that differ, and
// updates durations in between. Without this script the page is updated by a reload.
"use strict";

import morph, { steadily } from "./morph.js";

const EVERY = 2000; // milliseconds between two requests,
const HIDDEN = 20000; // in a hidden tab,
const SLOWEST = 10000; // and at most, while there is no answer

const find = (id) => document.getElementById(id);

// ---------------------------------------------------------------- clocks

// The server's clock, continued by a monotonic clock: the viewer's wall clock may be wrong.
let ahead = 0;
const now = () => ahead + performance.now() / 1000;
const setClock = (root) => {
  const stamp = root.querySelector("[data-now]")?.dataset.now;
  if (stamp) ahead = Number(stamp) - performance.now() / 1000;
};

// The monotonic clock stops while a machine sleeps. The header has whole seconds, so a small
// difference means nothing.
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

// As `utc` in lockclient/overview/columns_and_order.py; in the viewer's zone, unless UTC is chosen.
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
    // As `Bar` in lockclient/overview/lock_presentation.py: one half until the alert, the other half
    // after it, if the lock is known to be past its alert.
    const after = node.parentNode.classList.contains("ok") ? 0 : part(alert, end);
    node.setAttribute("width", `${(50 * (part(start, alert) + after)).toFixed(1)}%`);
  }
};

// Times, and the titles of durations: they change only with the zone.
const setZone = (root) => {
  const inUtc = wantsUtc();
  for (const node of root.querySelectorAll("[data-at]"))
    setText(node, written(Number(node.dataset.at), inUtc));
  for (const node of root.querySelectorAll("time[title]"))
    node.title = written(Number(node.dataset.since ?? node.dataset.until), inUtc) || node.title;
};
document.addEventListener("zone", () => setZone(document));

// ---------------------------------------------------------------- a new page

let newest = null; // the text of the last page received

// Each dashboard process behind one address has lanes of its own: a timeline shows those of one.
const KEPT_TO = 30000; // milliseconds for which that process may be silent
let heardAt = performance.now();

const isOfAnother = (fresh) => {
  const [mine, its] = [document, fresh].map((page) => page.getElementById("lanes")?.dataset.process);
  if (mine === its) heardAt = performance.now();
  return Boolean(mine && its) && mine !== its && performance.now() - heardAt < KEPT_TO;
};

// Returns false for an answer that is not shown.
const show = (html) => {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const { build } = fresh.documentElement.dataset;
  if (!build) throw new Error("not the dashboard, but something in front of it");
  if (build !== document.documentElement.dataset.build) {
    location.reload(); // another version of the dashboard: its pages need its own scripts
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

// When the pointer leaves the rows, they may move into their order.
let pointed = false;
document.addEventListener("pointerover", (event) => {
  const inside = Boolean(event.target.closest?.("[data-rows]"));
  if (pointed && !inside && newest !== null && !paused()) show(newest);
  pointed = inside;
});

// The time up to which the page is known to be complete: a header of each answer, also of a 304.
const setUpdated = (stamp) => {
  const node = document.querySelector("#updated [data-since]");
  if (!node || !stamp) return;
  node.dataset.since = stamp;
  node.title = written(Number(stamp), wantsUtc());
};

// ---------------------------------------------------------------- requests

let etag = null;
let failures = 0;
let answeredAt = performance.now();
let timer;
let asking = null; // the request in flight

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
    if (mine !== asking) return; // another request has replaced this one
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
    etag = null; // request the whole page next time: this one may have changed meanwhile
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
  // Jitter: an alert opens many pages at once; their requests must not stay in step.
  timer = setTimeout(ask, wait * (0.8 + 0.3 * Math.random()));
};

const tellHowOld = () => {
  const lost = failures > 1 && !paused();
  const age = duration((performance.now() - answeredAt) / 1000);
  find("lost").hidden = !lost;
  document.body.classList.toggle("unanswered", lost);
  if (lost) setText(find("lost-since"), age);
  if (paused()) setText(find("paused-since"), age);
  // Disable force-unlock while the state is unknown; the next page received enables it again.
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
    etag = null; // request the whole page: this one may have changed
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
  asking?.abort(); // both belong to another list
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
// The answer to a form can't be requested again: it stays as it is.
if (!("still" in document.documentElement.dataset)) askLater();
