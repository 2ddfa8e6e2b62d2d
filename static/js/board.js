/* The board of sub-agents, live: it comes whole whenever something happened in the tree. */

import { lost } from "./app.js";

const page = document.getElementById("live");
const board = document.getElementById("board");
let clock = page.dataset.clock;
let tries = 0;
let work = Promise.resolve(); // boards are put in one after the other

function connect() {
  const url = new URL(page.dataset.socket, location);
  url.protocol = url.protocol.replace("http", "ws");
  url.searchParams.set("clock", clock);
  const socket = new WebSocket(url);
  socket.onopen = () => { tries = 0; lost(false); };
  socket.onmessage = (event) => { work = work.then(() => put(JSON.parse(event.data))); };
  socket.onclose = ({ code }) => {
    if (code === 4403 || code === 4404) return; // no longer allowed to see it
    const wait = Math.min(15000, 500 * 2 ** tries++) * (0.5 + Math.random() / 2);
    if (tries > 3) lost(true);
    setTimeout(connect, wait);
  };
}

/** What the reader opened stays open, and where they are they stay. */
async function put({ board: text, log: lines, html, clock: next }) {
  const open = [...board.querySelectorAll("details[open]")].map((d) => d.id);
  await window.htmx.swap({ sourceElement: board, target: board, swap: "innerMorph", text, transition: false });
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  const log = document.getElementById("log");
  if (log.dataset.newest) await window.htmx.swap({ sourceElement: log, target: log, swap: "innerMorph", text: lines, transition: false });
  await window.htmx.swap({ sourceElement: document.body, target: document.body, swap: "none", text: html, transition: false });
  clock = next;
}

connect();
