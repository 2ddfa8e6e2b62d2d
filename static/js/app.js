/* What every page has: theme, menus, dialogs, ages that tick, upload progress, failed requests. */

const strings = document.getElementById("strings")?.dataset ?? {};
export const say = (key, values = {}) =>
  (strings[key] ?? "").replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

// Theme ---------------------------------------------------------------------------------------

function markTheme() {
  const chosen = document.documentElement.dataset.theme ?? "auto";
  for (const b of document.querySelectorAll("[data-set-theme]"))
    b.setAttribute("aria-pressed", String(b.dataset.setTheme === chosen));
}

function setTheme(theme) {
  try {
    if (theme === "auto") localStorage.removeItem("theme");
    else localStorage.setItem("theme", theme);
  } catch { /* storage is off: it holds for this page */ }
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  markTheme();
}

// Clicks: theme, dialogs, menus, copy -----------------------------------------------------------

document.addEventListener("click", (event) => {
  const on = (selector) => event.target.closest(selector);
  let button;
  if ((button = on("[data-set-theme]"))) setTheme(button.dataset.setTheme);
  else if ((button = on("[data-open]"))) document.getElementById(button.dataset.open)?.showModal();
  else if ((button = on("[data-dialog]"))) ask(button.dataset.dialog);
  else if ((button = on("[data-close]"))) button.closest("dialog")?.close();
  else if ((button = on("[data-copy]"))) copy(button);
  for (const menu of document.querySelectorAll("details.menu[open]"))
    if (!menu.contains(event.target) || button?.matches("[data-dialog]")) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  await navigator.clipboard.writeText(source.textContent.trim());
  const label = button.textContent;
  button.textContent = say("copied");
  setTimeout(() => (button.textContent = label), 1500);
}

// Ages: <time data-age="ISO"> reads "5 s ago" and goes on doing so ------------------------------------

export function age(iso) {
  const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(iso)) / 1000));
  if (seconds >= 30 * 86400) return iso.slice(0, 10);
  for (const [size, key] of [[86400, "ageD"], [3600, "ageH"], [60, "ageM"]])
    if (seconds >= size) return say(key, { n: Math.floor(seconds / size) });
  return say("ageS", { n: seconds });
}

function tick() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const text = age(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
  }
}

// Uploads: a form with data-upload shows how far it is -----------------------------------------------

function upload(form) {
  const bar = form.querySelector("progress");
  const request = new XMLHttpRequest();
  request.open("POST", form.action);
  request.setRequestHeader("HX-Request", "true");
  request.upload.onprogress = (e) => {
    bar.hidden = false;
    if (e.lengthComputable) bar.value = e.loaded / e.total;
    if (e.loaded === e.total) bar.removeAttribute("value");
  };
  const done = (html) => {
    bar.hidden = true;
    const target = document.querySelector(form.dataset.upload);
    if (html) window.htmx.swap({ sourceElement: form, target, swap: "innerHTML", text: html });
    else lost(true);
  };
  request.onload = () => done(request.responseText);
  request.onerror = () => done("");
  request.send(new FormData(form));
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-upload]")) return;
  event.preventDefault();
  upload(event.target);
});

for (const kind of ["dragover", "dragleave", "drop"])
  document.addEventListener(kind, (event) => {
    const zone = event.target.closest?.("[data-drop]");
    if (!zone) return;
    event.preventDefault();
    zone.classList.toggle("over", kind === "dragover");
    if (kind !== "drop" || !event.dataTransfer.files.length) return;
    zone.querySelector("input[type=file]").files = event.dataTransfer.files;
    zone.closest("form").requestSubmit();
  });

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-drop] input[type=file]") && event.target.files.length)
    event.target.form.requestSubmit();
});

// Requests that never arrived --------------------------------------------------------------------------

export function lost(isLost) {
  const banner = document.getElementById("lost");
  if (banner) banner.hidden = !isLost;
}
document.addEventListener("htmx:error", () => lost(true));
document.addEventListener("htmx:after:request", () => lost(false));

/** Who was signed out meanwhile is led to the sign-in page, not shown it in a corner. */
export function signedOut(response) {
  const out = response?.redirected && new URL(response.url).pathname.startsWith("/sign-in/");
  if (out) location.reload();
  return Boolean(out);
}
document.addEventListener("htmx:before:swap", (event) => {
  if (signedOut(event.detail.ctx?.response?.raw)) event.preventDefault();
});

// Dialogs of acts: what an act would mean is fetched, then asked for ------------------------------------

async function ask(url) {
  const dialog = document.getElementById("act-dialog");
  const body = dialog.querySelector("#act");
  const title = document.createElement("h2");
  title.id = "act-title";
  title.textContent = dialog.dataset.loading;
  body.replaceChildren(title);
  dialog.showModal();
  await window.htmx.ajax("GET", url, { source: body, target: body, swap: "innerHTML" });
  (body.querySelector("[data-first]") ?? body.querySelector("button"))?.focus();
}

// A dialog whose form was sent and answered well closes; what was refused is said in it.
document.addEventListener("htmx:after:request", (event) => {
  const form = event.target.matches?.("dialog form[hx-post]") && event.target;
  const { ctx } = event.detail;
  if (!form || !ctx?.response) return;
  if (ctx.response.status >= 400) {
    ctx.target = form.querySelector("[data-said]") ?? ctx.target;
  } else if (ctx.response.status < 300) {
    form.reset();
    form.closest("dialog").close();
  }
});

// Choosing a provider shows the fields that it has ----------------------------------------------------
document.addEventListener("change", (event) => {
  if (event.target.matches("[name=provider]")) showProvider();
});
function showProvider() {
  const chosen = document.querySelector("[name=provider]:checked")?.value;
  if (chosen)
    for (const part of document.querySelectorAll("[data-provider]"))
      part.hidden = !part.dataset.provider.split(" ").includes(chosen);
}

document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
markTheme();
showProvider();
tick();
setInterval(tick, 1000);
