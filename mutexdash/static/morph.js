// Changes one piece of a page into another, touching only what differs, so that focus, selection,
// scroll and opened details stay, and no row moves away under the pointer.
"use strict";

const POINTS = matchMedia("(hover: hover)"); // on a touch screen a tapped row would count as hovered for ever

// Children of `data-keyed` are matched by `data-key`, others by their place.
const morph = (old, fresh) => {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
  } else {
    morphAttributes(old, fresh);
    if (!old.matches("[data-keyed]")) morphChildren(old, fresh);
    else if (pointedAt(old)) morphInPlace(old, fresh);
    else morphKeyed(old, fresh);
  }
};

const pointedAt = (rows) => POINTS.matches && rows.matches("[data-rows]:hover");

const morphAttributes = (old, fresh) => {
  const kept = old.localName === "details" ? "open" : "";
  for (const { name } of [...old.attributes])
    if (name !== kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
};

const alike = (one, other) =>
  one.nodeName === other.nodeName && one.getAttribute?.("class") === other.getAttribute?.("class");

// By place, counted from the beginning and then, for children that are alike, from the end: a banner
// that appears above a list must not turn the list into another element.
const morphChildren = (old, fresh) => {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  const tail = [];
  let same = 0;
  while (same < Math.min(before.length, after.length) && alike(before[same], after[same])) same += 1;
  while (Math.min(before.length, after.length) > same && alike(before.at(-1), after.at(-1)))
    tail.unshift([before.pop(), after.pop()]);
  const next = tail[0]?.[0] ?? null;
  after.forEach((child, i) => (i < before.length ? morph(before[i], child) : old.insertBefore(child, next)));
  before.slice(after.length).forEach((child) => child.remove());
  for (const [node, child] of tail) morph(node, child);
};

const byKey = (parent) => new Map([...parent.children].map((child) => [child.dataset.key, child]));

const morphKeyed = (old, fresh) => {
  const after = [...fresh.children];
  const keys = new Set(after.map((child) => child.dataset.key));
  for (const child of [...old.children]) if (!keys.has(child.dataset.key)) child.remove();
  const known = byKey(old);
  let place = old.firstElementChild;
  for (const child of after) {
    const same = known.get(child.dataset.key);
    // A node that is moved loses the focus, so nodes at the right place are not moved.
    if (same !== undefined && same === place) place = place.nextElementSibling;
    else old.insertBefore(same ?? child, place);
    if (same !== undefined) morph(same, child);
  }
};

// While the pointer is on the rows, each stays at its place, grey if its lock has ended, and new
// rows come last. When the pointer has left, the page is shown once more, in its order.
const morphInPlace = (old, fresh) => {
  const coming = byKey(fresh);
  for (const child of [...old.children]) {
    const same = coming.get(child.dataset.key);
    if (same === undefined) child.className = "ended";
    else morph(child, same);
    coming.delete(child.dataset.key);
  }
  old.append(...coming.values());
};

// Returns the element that keeps its place on the screen: the row under the pointer, else the focused
// element, else the first visible row of a scrolled list.
const anchor = () => {
  const pointed = POINTS.matches && document.querySelector("[data-rows] > :hover");
  if (pointed) return pointed;
  const focused = document.activeElement;
  if (focused?.closest("main :is(tr, form)")) return focused;
  if (scrollY === 0) return null;
  const inSight = (row) => row.getBoundingClientRect().top >= 0;
  return [...document.querySelectorAll("[data-rows] > *")].find(inSight) ?? null;
};

// Calls `change`, and keeps focus and scroll.
export const steadily = (change) => {
  const kept = anchor();
  const top = kept?.getBoundingClientRect().top;
  const focused = document.activeElement;
  const row = focused?.closest("[data-rows] > *");
  const index = row ? [...row.parentNode.children].indexOf(row) : -1;
  change();
  if (focused !== document.activeElement) {
    const rows = document.querySelectorAll("[data-rows] > *");
    // If its row has gone, the row that is now at its place gets the focus.
    const next = focused.isConnected ? focused : rows[Math.min(index, rows.length - 1)]?.querySelector("a");
    next?.focus({ preventScroll: true });
  }
  if (kept?.isConnected) scrollBy(0, kept.getBoundingClientRect().top - top);
};

export default morph;
