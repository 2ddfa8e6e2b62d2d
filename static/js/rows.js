/* One windowed list of rows: a spacer of the full height, pages of 50 rows placed in it, those
   far from the view taken out again. Rows have a fixed height; a page that is taller (something
   in it was opened) is measured and moves the ones below it. */

import { signedOut } from "./app.js";

export const PAGE = 50;

/** The rows of a page that count: not those that hang on them or were opened below them. */
const OWN = ":scope > .r:not(.hung)";

export class Rows {
  constructor(element, onLoad) {
    this.element = element;
    this.onLoad = onLoad;
    this.first = Number(element.dataset.first); // of this list among the rows of its goal
    this.total = Number(element.dataset.total);
    this.pages = new Map(); // number → {element, request, rows}
    this.taller = new Map(); // number → height in pixels beyond that of its rows
    this.sizes = new ResizeObserver((entries) => this.measure(entries));
    this.resize();
  }

  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row"));
  }

  resize() {
    let extra = 0;
    for (const more of this.taller.values()) extra += more;
    this.height = this.rowHeight;
    this.element.style.height = `${this.total * this.height + extra}px`;
    for (const [number, page] of this.pages) page.element.style.top = `${this.top(number)}px`;
  }

  /** Where page `number` begins, in pixels below the list's top. */
  top(number) {
    let top = number * PAGE * this.height;
    for (const [n, more] of this.taller) if (n < number) top += more;
    return top;
  }

  /** Take over what the element says now: the server drew its goal anew. */
  follow() {
    const first = Number(this.element.dataset.first);
    if (first !== this.first) {
      this.first = first;
      for (const number of [...this.pages.keys()]) this.drop(number);
      this.taller.clear();
    }
    this.setTotal(Number(this.element.dataset.total));
    this.resize();
  }

  setTotal(total) {
    if (total === this.total) return;
    this.total = total;
    const last = Math.max(0, Math.ceil(total / PAGE) - 1);
    for (const number of [...this.pages.keys()]) if (number > last) this.drop(number);
    this.resize();
  }

  /** Load what lies between two offsets (pixels below the list's top), drop the rest. */
  show(from, to, now) {
    if (this.height !== this.rowHeight) this.resize();
    const pages = Math.ceil(this.total / PAGE);
    const wanted = new Set();
    if (to > 0 && from < this.element.offsetHeight) {
      let number = Math.max(0, Math.floor(from / (PAGE * this.height)) - (this.taller.size ? 1 : 0));
      for (; number < pages && this.top(number) < to; number++)
        if (this.top(number + 1) > from) wanted.add(number);
    }
    for (const number of [...this.pages.keys()]) if (!wanted.has(number)) this.drop(number);
    if (now) for (const number of wanted) if (!this.pages.has(number)) this.load(number);
    return [...wanted].every((n) => this.pages.get(n)?.rows);
  }

  drop(number) {
    const page = this.pages.get(number);
    page.request?.abort();
    this.sizes.unobserve(page.element);
    page.element.remove();
    this.pages.delete(number);
  }

  async load(number) {
    let page = this.pages.get(number);
    if (!page) {
      page = { element: document.createElement("div"), rows: 0 };
      page.element.className = "page loading";
      page.element.dataset.page = number;
      page.element.style.top = `${this.top(number)}px`;
      page.element.style.height = `${Math.min(PAGE, this.total - number * PAGE) * this.height}px`;
      this.pages.set(number, page);
      const after = [...this.element.children].find((e) => Number(e.dataset.page) > number);
      this.element.insertBefore(page.element, after ?? null);
    }
    page.request?.abort();
    page.request = new AbortController();
    const { signal } = page.request;
    try {
      const url = `${this.element.dataset.url}&start=${this.first + number * PAGE}&count=${Math.min(PAGE, this.total - number * PAGE)}`;
      const answer = await fetch(url, { signal, headers: { "HX-Request": "true" } });
      if (signedOut(answer)) return;
      if (!answer.ok) throw new Error(answer.status);
      const html = await answer.text();
      if (signal.aborted) return;
      page.element.className = "page";
      page.element.style.height = "";
      page.element.innerHTML = html; // our own server's, escaped there
      page.rows = page.element.querySelectorAll(OWN).length;
      page.request = null;
      this.sizes.observe(page.element);
      this.onLoad(this, page.element);
    } catch (error) {
      if (error.name !== "AbortError") { this.drop(number); window.htmx.trigger(document.body, "htmx:error", { error }); }
    }
  }

  measure(entries) {
    let changed = false;
    for (const { target } of entries) {
      const number = Number(target.dataset.page);
      const page = this.pages.get(number);
      if (!page?.rows) continue;
      const more = Math.round(target.offsetHeight - page.rows * this.height);
      if (Math.abs(more - (this.taller.get(number) ?? 0)) < 2) continue;
      if (more > 1) this.taller.set(number, more);
      else this.taller.delete(number);
      changed = true;
    }
    if (changed) this.resize();
  }

  /** Put a row where it belongs if its page is here; true if the reader's window now has it. */
  put(index, html) {
    const page = this.pages.get(Math.floor(index / PAGE));
    if (!page) return false;
    if (!page.rows) { this.load(Math.floor(index / PAGE)); return true; }
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const rows = [...page.element.querySelectorAll(OWN)];
    const at = index % PAGE;
    if (at < rows.length) {
      const focused = rows[at] === document.activeElement;
      const opened = this.takeBelow(rows[at]);
      const row = holder.content.firstElementChild;
      for (const [child, box] of opened) {
        const line = holder.content.querySelector(`[data-child="${child}"]`);
        line?.setAttribute("aria-expanded", "true");
        line?.after(box);
      }
      rows[at].replaceWith(holder.content);
      if (focused) row.focus({ preventScroll: true });
    }
    else if (at === rows.length) page.element.append(holder.content);
    else { this.load(Math.floor(index / PAGE)); return true; }
    page.rows = page.element.querySelectorAll(OWN).length;
    this.onLoad(this, page.element);
    return true;
  }

  /** Take off what hangs on a row; what the reader opened of sub-agents, by their ids. */
  takeBelow(row) {
    const opened = new Map();
    for (let next; (next = row.nextElementSibling)?.matches(".hung, .open-rows"); next.remove()) {
      if (next.dataset.child && next.nextElementSibling?.matches(".open-rows")) opened.set(next.dataset.child, next.nextElementSibling);
    }
    return opened;
  }

  reload() {
    for (const number of this.pages.keys()) this.load(number);
  }

  /** Offset of row `index` below the list's top, in pixels. */
  offset(index) {
    const page = Math.floor(index / PAGE);
    return this.top(page) + (index - page * PAGE) * this.height;
  }
}
