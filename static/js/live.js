/* A run's live updates. The server sends batches {after, upto, rows, goals, html}; `after` and
   `upto` are event numbers. What we have already is dropped; where something is missing we ask
   for it again; after a long absence the tree is loaded anew. Of what is below the run come the
   newest lines, {children}: after a pause we say which ones we show. */

import { age, lost, say } from "./app.js";
import { addRows, childClocks, reloadRows, reloadTree, setChildren, setGoals, write } from "./tree.js";

const page = document.getElementById("live");
const pulse = document.getElementById("pulse");
let last = Number(page.dataset.last);
let socket;
let tries = 0;
let lease = null; // until when the run's owner holds it, as last told
let asked = 0;
let gone = false;
let pass = 0; // event of a compaction whose first window has not been sent yet
let done = 0; // the newest call that is over
let written = { call: 0, stream: "", text: "" };
let work = Promise.resolve(); // batches are applied one after the other

function connect() {
  const url = new URL(page.dataset.socket, location);
  url.protocol = url.protocol.replace("http", "ws");
  url.searchParams.set("after", last);
  socket = new WebSocket(url);
  socket.onopen = () => { tries = 0; lost(false); beat(); tellLines(); };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.delta) delta(message.delta);
    else if (message.children) work = work.then(() => setChildren(message.children));
    else if ("lease" in message) { ({ lease, gone } = message); beat(); }
    else work = work.then(() => apply(message));
  };
  socket.onclose = ({ code }) => {
    if (code === 4403 || code === 4404) return; // no longer allowed to see it
    // 0.5 s, 1 s, 2 s … 15 s, each by chance up to half shorter: watchers do not come back at once.
    const wait = Math.min(15000, 500 * 2 ** tries++) * (0.5 + Math.random() / 2);
    if (tries > 3) lost(true);
    beat();
    setTimeout(connect, wait);
  };
}

/** What we show of sub-agents may be older than what the server thinks we have. */
function tellLines() {
  if (socket?.readyState !== WebSocket.OPEN) return;
  const lines = childClocks();
  if (Object.keys(lines).length) socket.send(JSON.stringify({ lines }));
}
document.getElementById("tree").addEventListener("children", tellLines);

async function apply({ after, upto, reload, rows = [], goals, html, calls, answered, passed, sent }) {
  if (upto <= last) return;
  if (reload) { last = upto; await reloadTree(); }
  else if (after > last) return void socket.send(JSON.stringify({ after: last }));
  last = upto;
  gone = false;
  if (goals) await setGoals(goals);
  addRows(rows);
  // What a compaction took shows in the first window after it: rows in view are drawn anew then.
  pass = Math.max(pass, passed ?? 0);
  if (pass && sent > pass) { pass = 0; reloadRows(); }
  if (calls) {
    page.dataset.lastCall = calls;
    done = Math.max(done, answered);
    if (written.call <= done) { written = { call: 0, stream: "", text: "" }; write(null); }
    window.htmx.trigger("#timeline", "refresh");
  }
  if (html)
    await window.htmx.swap({ sourceElement: document.body, target: document.body, swap: "none", text: html, transition: false });
  beat();
}

function delta({ call, offset, text, stream }) {
  if (call <= done) return;
  if (stream === "reasoning" && written.call === call && written.stream === "text") return;
  if (call !== written.call || stream !== written.stream) written = { call, stream, text: "" };
  if (offset > written.text.length) written.text = written.text.padEnd(offset, " "); // joined in the middle
  written.text = written.text.slice(0, offset) + text;
  write(written.text);
}

// "last event 2 s ago" | "reconnecting…" | "this run's worker is gone"
function beat() {
  const live = document.querySelector("[data-live-status]");
  if (!live) { pulse.textContent = ""; return; }
  const open = socket?.readyState === WebSocket.OPEN;
  if (open) askLease(live);
  pulse.className = !open ? "lost" : gone ? "gone" : "";
  pulse.textContent = !open ? say("reconnecting") : gone ? say("gone")
    : say("last", { age: age(document.getElementById("last-event").dateTime) });
}

/* An owner holds its lease for some seconds and renews it silently: once what we know of it has
   run out, the server is asked, and its clock decides. */
function askLease({ dataset: { leaseUntil } }) {
  if (!leaseUntil || Date.parse(lease ?? leaseUntil) > Date.now() || Date.now() < asked + 3000) return;
  asked = Date.now();
  socket.send('{"lease": true}');
}

setInterval(beat, 1000);
connect();
