/* The list of runs, live: rows that changed take their old place, new runs come on top of the
   first, unfiltered page. */

const page = document.getElementById("live");
let tries = 0;

function connect() {
  const url = new URL(page.dataset.socket, location);
  url.protocol = url.protocol.replace("http", "ws");
  url.searchParams.set("lang", document.documentElement.lang);
  const socket = new WebSocket(url);
  socket.onopen = () => {
    if (tries) window.htmx.ajax("GET", location.href, { target: "#runs", swap: "innerHTML" }); // what happened meanwhile
    tries = 0;
  };
  socket.onmessage = (event) => JSON.parse(event.data).rows.forEach(put);
  socket.onclose = ({ code }) => {
    if (code === 4403) return;
    setTimeout(connect, Math.min(15000, 500 * 2 ** tries++) * (0.5 + Math.random() / 2));
  };
}

function put({ id, html }) {
  const body = document.getElementById("run-rows");
  if (!body) return void window.htmx.ajax("GET", location.href, { target: "#runs", swap: "innerHTML" });
  const holder = document.createElement("template");
  holder.innerHTML = html; // our own server's, escaped there
  const old = document.getElementById(`run-${id}`);
  const focused = old?.contains(document.activeElement);
  if (old) old.replaceWith(holder.content);
  else if (body.dataset.first) body.prepend(holder.content);
  if (focused) document.querySelector(`#run-${id} a`).focus();
}

connect();
