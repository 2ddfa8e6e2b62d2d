/* The run page's tree: folding goals, lists of rows, what is selected, jumping, finding. */

import { say } from "./app.js";
import { Rows } from "./rows.js";

const tree = document.getElementById("tree");
const lists = new Map(); // "before", "after" (rows of no goal) or a goal's id → Rows
const folds = new Map(); // goal id → open? as the reader left it
let selected = tree.dataset.selected || "";
let unseen = 0;

// Where the reader looks -----------------------------------------------------------------------

const scrolls = () => getComputedStyle(tree).overflowY !== "visible";
const view = () =>
  scrolls() ? tree.getBoundingClientRect() : { top: 0, bottom: innerHeight, height: innerHeight };
const scroller = () => (scrolls() ? tree : document.scrollingElement);

function draw(now = true) {
  const { top, bottom, height } = view();
  const margin = height / 2;
  let whole = true;
  for (const list of lists.values()) {
    const box = list.element.getBoundingClientRect();
    if (!list.element.offsetParent) { list.show(0, 0, false); continue; }
    whole = list.show(top - margin - box.top, bottom + margin - box.top, now) && whole;
  }
  return whole;
}

let pause;
let drawn = 0;
document.addEventListener("scroll", () => {
  clearTimeout(pause);
  pause = setTimeout(draw, 60);
  // A wheel that never rests would leave the view blank: load at once four times a second.
  if (performance.now() - drawn > 250) { drawn = performance.now(); draw(true); }
  if (atEnd()) seen();
}, { capture: true, passive: true });
addEventListener("resize", () => { for (const list of lists.values()) list.resize(); draw(); });

// Lists ------------------------------------------------------------------------------------------

function collect() {
  for (const [goal, list] of lists) if (!list.element.isConnected) lists.delete(goal);
  for (const element of tree.querySelectorAll(".rows")) {
    const known = lists.get(element.dataset.list);
    if (known?.element === element) known.follow();
    else lists.set(element.dataset.list, new Rows(element, loaded));
  }
  placeWriting();
  draw();
}

function loaded(list, page) {
  refresh(page);
  mark(page);
  if (wanted) arrive();
}

/** The list that shows row `row` of a goal. Rows of no goal stand before and after the goals. */
function listOf(goal, row) {
  if (goal) return lists.get(goal);
  const after = lists.get("after");
  return after && row >= after.first ? after : lists.get("before");
}

// Folding -----------------------------------------------------------------------------------------

export function fold(button, open, remember = true) {
  const body = document.getElementById(button.getAttribute("aria-controls"));
  open ??= button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(open));
  if (remember) folds.set(button.dataset.goal, open);
  body.hidden = !open;
  if (open && body.dataset.children) { // goals below a folded one come when it is opened
    const url = body.dataset.children;
    delete body.dataset.children;
    return fetchInto(body.querySelector(".goals"), url).then(collect);
  }
  draw();
  return Promise.resolve();
}

async function fetchInto(target, url) {
  const answer = await fetch(url, { headers: { "HX-Request": "true" } });
  if (!answer.ok) return;
  await window.htmx.swap({ sourceElement: target, target, swap: "innerHTML", text: await answer.text() });
  refresh(target);
}

function refold() {
  for (const button of tree.querySelectorAll("button[data-goal]"))
    if (folds.has(button.dataset.goal)) fold(button, folds.get(button.dataset.goal));
}

// Selection --------------------------------------------------------------------------------------

const rowOf = (id) => tree.querySelector(`.r[data-s="${CSS.escape(String(id))}"]`);

function mark(root = tree) {
  for (const row of root.querySelectorAll(".r[aria-current]"))
    if (row.dataset.s !== selected) row.removeAttribute("aria-current");
  if (!selected) return;
  const row = root.querySelector(`.r[data-s="${CSS.escape(selected)}"]`);
  row?.setAttribute("aria-current", "true");
}

export function select(row, { focus = true } = {}) {
  selected = row.dataset.s;
  mark();
  if (focus) row.focus({ preventScroll: true });
  reveal(row);
  history.replaceState(history.state, "", row.href);
  inspect(row.href);
}

export function inspect(url) {
  const inspector = document.getElementById("inspector");
  inspector.classList.add("shown");
  window.htmx.ajax("GET", url, { source: inspector, target: inspector, swap: "innerHTML" });
}

function reveal(row) {
  const box = row.getBoundingClientRect();
  const { top, bottom } = view();
  const pad = 48;
  if (box.top < top + pad) scroller().scrollTop -= top + pad - box.top;
  else if (box.bottom > bottom - pad) scroller().scrollTop += box.bottom - bottom + pad;
}

/** The next (1) or previous (-1) row or goal from where the reader is. */
export function step(by) {
  const items = [...tree.querySelectorAll(".r, button[data-goal]")].filter((e) => e.offsetParent);
  const here = items.findIndex((e) => e === document.activeElement || (e.dataset.s && e.dataset.s === selected && !items.includes(document.activeElement)));
  const next = items[here < 0 ? (by > 0 ? 0 : items.length - 1) : here + by];
  if (!next) return;
  if (next.dataset.s) select(next);
  else { next.focus({ preventScroll: true }); reveal(next); }
}

/** Fold (false) or unfold (true) what the reader is at. */
export function unfold(open) {
  const at = document.activeElement;
  if (at?.matches("button[data-goal]")) return fold(at, open);
  const row = at?.closest(".r") ?? (selected && rowOf(selected));
  if (!row) return;
  if (row.dataset.opens) return expand(row, open);
  if (!open) row.closest(".goal")?.querySelector("button[data-goal]")?.focus();
}

/** Rows that hang on a row (a summary's originals, a branch, a sub-agent) open below it. */
export function expand(row, open) {
  const below = row.nextElementSibling?.matches(".open-rows") ? row.nextElementSibling : null;
  if (below && open !== true) { below.remove(); row.setAttribute("aria-expanded", "false"); }
  if (below || open === false) return;
  const box = document.createElement("div");
  box.className = `open-rows ${row.dataset.kind ?? ""}`;
  row.after(box);
  row.setAttribute("aria-expanded", "true");
  fetchInto(box, row.dataset.opens);
}

// Sub-agents ---------------------------------------------------------------------------------------

const children = new Map(); // id → {clock, html}: the newest line of each that we were told

/** Newer lines of sub-agents: [{id, clock, html}], wherever they stand. */
export function setChildren(lines) {
  for (const line of lines) children.set(line.id, line);
  refresh(tree);
}

/** The clock of every line that is shown, by its sub-agent's id. */
export function childClocks() {
  const clocks = {};
  for (const line of tree.querySelectorAll("[data-child]")) clocks[line.dataset.child] = Number(line.dataset.clock);
  return clocks;
}

/** Replace the lines below `root` that are older than what we were told. */
function refresh(root) {
  const lines = root.querySelectorAll("[data-child]");
  // What was fetched may be older than what the server takes us to show: live.js tells it.
  if (lines.length && root !== tree) tree.dispatchEvent(new Event("children"));
  for (const old of lines) {
    const newer = children.get(old.dataset.child);
    if (!newer || newer.clock <= Number(old.dataset.clock)) continue;
    const holder = document.createElement("template");
    holder.innerHTML = newer.html; // our own server's, escaped there
    const line = holder.content.firstElementChild;
    if (line.dataset.opens && old.getAttribute("aria-expanded") === "true") line.setAttribute("aria-expanded", "true");
    const focused = old === document.activeElement;
    old.replaceWith(line);
    const opened = line.nextElementSibling?.matches(".open-rows") ? line.nextElementSibling : null;
    if (opened && !line.dataset.opens) opened.remove();
    else if (opened) follow(opened, line.dataset.opens);
    if (focused) line.focus({ preventScroll: true });
  }
}

const following = new WeakSet();

/** Opened rows of a sub-agent that works are fetched anew, once a second at most, unless the
    reader is in them, opened something there or has paged. What they look at stays in place. */
function follow(box, url) {
  if (following.has(box)) return;
  following.add(box);
  setTimeout(async () => {
    following.delete(box);
    if (!box.isConnected || box.contains(document.activeElement) || box.querySelector(".open-rows, [data-more]")) return;
    const anchor = firstInView();
    const before = anchor?.getBoundingClientRect().top;
    await fetchInto(box, url);
    keep(anchor, before);
  }, 1000);
}

tree.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-goal]");
  if (button) return void fold(button);
  const more = event.target.closest("[data-more]");
  if (more) return void fetchInto(more.closest(".open-rows, .goals"), more.dataset.more);
  const link = event.target.closest("a[data-jump]");
  if (link) { event.preventDefault(); return void jump(link.dataset.jump); }
  pick(event);
});

function pick(event) {
  const row = event.target.closest(".r[data-s], .r[data-opens]");
  if (!row || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (!row.dataset.s) { row.focus(); expand(row); }
  else if (tree.contains(row)) {
    select(row);
    if (row.dataset.opens) expand(row);
  } else jump(row.dataset.s);
}
document.getElementById("found")?.addEventListener("click", pick);
document.getElementById("inspector").addEventListener("click", (event) => {
  if (event.target.closest(".close")) {
    document.getElementById("inspector").classList.remove("shown");
    if (selected) rowOf(selected)?.focus({ preventScroll: true });
  } else if (event.target.closest("a[data-s]")) {
    event.preventDefault();
    jump(event.target.closest("a[data-s]").dataset.s);
  }
});

// Jumping -----------------------------------------------------------------------------------------

let wanted = null; // {sequence, goal, row}: on the way there

/** Go to a message and show it; an error's sentence where there is none. ``focus`` false: the
    reader stays in the field that they are in. */
export async function jump(sequence, focus = true) {
  const url = new URL(tree.dataset.where, location);
  url.searchParams.set("sequence", sequence);
  const answer = await fetch(url);
  if (!answer.ok) return say("noMessage", { n: sequence });
  await go({ ...(await answer.json()), focus });
  return "";
}

async function go(place) {
  inspect(place.url);
  selected = String(place.sequence);
  history.replaceState(history.state, "", place.url);
  mark();
  if (place.row === null) return; // not on the main path: the inspector has it
  for (const goal of place.open) {
    const button = tree.querySelector(`button[data-goal="${CSS.escape(goal)}"]`);
    if (button && button.getAttribute("aria-expanded") !== "true") await fold(button, true);
  }
  const list = listOf(place.goal, place.row);
  if (!list) return;
  wanted = place;
  const box = list.element.getBoundingClientRect();
  const { top, height } = view();
  scroller().scrollTop += box.top + list.offset(place.row - list.first) - top - height / 3;
  draw();
  arrive();
}

function arrive() {
  const row = rowOf(wanted.sequence);
  if (!row) return;
  const { focus = true } = wanted;
  wanted = null;
  mark();
  row.classList.add("flash");
  if (focus) row.focus({ preventScroll: true });
}

// Live: called by live.js -----------------------------------------------------------------------

const newRows = document.getElementById("new-rows");

function atEnd() {
  const end = document.getElementById("live-end");
  if (!end?.offsetParent) return false;
  return end.getBoundingClientRect().top <= view().bottom + 8;
}

function seen() {
  unseen = 0;
  newRows.hidden = true;
}

export function toEnd() {
  const end = document.getElementById("live-end");
  for (let goal = end?.closest(".goal"); goal; goal = goal.parentElement.closest(".goal"))
    fold(goal.querySelector("button[data-goal]"), true, false);
  if (end) scroller().scrollTop += end.getBoundingClientRect().bottom - view().bottom + 12;
  seen();
  draw();
}
newRows.addEventListener("click", toEnd);
document.getElementById("to-end")?.addEventListener("click", toEnd);

/** The writing row stands at the end of the current goal's rows. */
function placeWriting() {
  const writing = document.getElementById("writing");
  const end = document.getElementById("live-end");
  if (writing && end && writing.previousElementSibling !== end.previousElementSibling) end.before(writing);
}

/** New or changed rows: [{goal, row, total, html}]. What the reader looks at stays in place. */
export function addRows(rows) {
  if (!rows.length) return;
  const follow = atEnd();
  const anchor = follow ? null : firstInView();
  const before = anchor?.getBoundingClientRect().top;
  for (const { goal, row, total, html } of rows) {
    const list = listOf(goal, row);
    if (!list) continue;
    const own = total - list.first;
    if (own > list.total) { unseen += own - list.total; list.setTotal(own); }
    if (list.element.offsetParent) list.put(row - list.first, html);
  }
  keep(anchor, before);
  if (follow) toEnd();
  else if (unseen) {
    newRows.hidden = false;
    newRows.firstElementChild.textContent = say("new", { n: unseen });
  }
  draw();
}

function firstInView() {
  const { top } = view();
  for (const e of tree.querySelectorAll(".r, .goal-head"))
    if (e.offsetParent && e.getBoundingClientRect().top >= top) return e;
  return null;
}

/** A goal that is over folds by itself, but not while somebody reads in it. */
function keepOpen() {
  const { top, bottom } = view();
  for (const button of tree.querySelectorAll("button[aria-expanded=true]")) {
    const box = button.closest(".goal").getBoundingClientRect();
    if (box.top < bottom && box.bottom > top) folds.set(button.dataset.goal, true);
  }
}

function keep(anchor, before) {
  if (!anchor?.isConnected) return;
  const moved = anchor.getBoundingClientRect().top - before;
  if (Math.abs(moved) > 0.5) scroller().scrollTop += moved;
}

/** The structure of the goals changed: take it over, leave rows and folds as they are. */
export async function setGoals(html) {
  const follow = atEnd();
  const anchor = follow ? null : firstInView();
  const before = anchor?.getBoundingClientRect().top;
  if (!follow) keepOpen();
  await window.htmx.swap({ sourceElement: tree, target: document.getElementById("goals"), swap: "innerMorph", text: html });
  refold();
  collect();
  keep(anchor, before);
  if (follow) toEnd();
}

/** After a long absence: everything anew, from the server. */
export async function reloadTree() {
  const answer = await fetch(tree.dataset.tree, { headers: { "HX-Request": "true" } });
  if (!answer.ok) return;
  await setGoals(await answer.text());
  reloadRows();
}

/** The rows in view, as they are now. */
export function reloadRows() {
  for (const list of lists.values()) list.reload();
}

/** The answer being written: replaces, appends to, or (null) ends the writing row. */
export function write(text) {
  const writing = document.getElementById("writing");
  if (!writing) return;
  const follow = atEnd();
  writing.hidden = text === null;
  writing.querySelector("bdi").textContent = text ? text.slice(-400) : "";
  if (follow && text !== null) toEnd();
}

collect();
if (tree.dataset.place) go(JSON.parse(tree.dataset.place));
else if (tree.dataset.live === "1") toEnd();
