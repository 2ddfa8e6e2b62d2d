/* Keys of the run page. Not while somebody types, nor with a modifier, nor in a dialog. */

import { jump, step, toEnd, unfold } from "./tree.js";

const open = (id) => document.getElementById(id).showModal();
const live = document.getElementById("live");

function toCall(by) {
  const at = document.querySelector("#inspector a[href*='/calls/']")?.href.match(/calls\/(\d+)/);
  const last = Number(live.dataset.lastCall);
  const number = Math.min(last, Math.max(1, at ? Number(at[1]) + by : by < 0 ? last : 1));
  if (last) location.assign(`${live.dataset.calls}${number}/`);
}

const keys = {
  j: () => step(1),
  k: () => step(-1),
  h: () => unfold(false),
  l: () => unfold(true),
  g: () => open("jump-dialog"),
  G: () => toEnd(),
  "/": () => document.getElementById("find").focus(),
  "[": () => toCall(-1),
  "]": () => toCall(1),
  "?": () => open("help-dialog"),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.getElementById("jump-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = document.getElementById("jump-to");
  const error = await jump(field.value.trim());
  document.getElementById("jump-error").textContent = error;
  if (error) return;
  field.value = "";
  document.getElementById("jump-dialog").close();
});

// Enter in the search field leads from hit to hit, with Shift backwards; Escape ends the search.
let at = -1;
const find = document.getElementById("find");
find.addEventListener("input", () => (at = -1));
find.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return leave();
  const hits = document.querySelectorAll("#found a[data-s]");
  if (event.key !== "Enter" || !hits.length) return;
  event.preventDefault();
  at = (at + (event.shiftKey ? -1 : 1) + hits.length) % hits.length;
  for (const hit of hits) hit.removeAttribute("aria-current");
  hits[at].setAttribute("aria-current", "true");
  hits[at].scrollIntoView({ block: "nearest" });
  jump(hits[at].dataset.s, false);
});

// The timeline: a click leads to the call at that place.
document.getElementById("timeline").addEventListener("click", (event) => {
  const chart = event.target.closest("svg.chart");
  if (!chart) return;
  const box = chart.getBoundingClientRect();
  const calls = Number(chart.dataset.calls);
  const number = 1 + Math.round(((event.clientX - box.left) / box.width) * (calls - 1));
  location.assign(`${live.dataset.calls}${Math.min(calls, Math.max(1, number))}/`);
});

function leave() {
  find.value = "";
  find.dispatchEvent(new Event("input", { bubbles: true }));
  find.blur();
  document.querySelector("#tree .r[aria-current] a, #tree .r[aria-current]")?.focus();
}
