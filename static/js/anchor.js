/* How long a root anchor is while it is written: about what the server will count. */

const length = (text) => [...text].length;
const items = (text) => [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];

// The canonical JSON, but for what only the server knows of white space and quoted lines.
function measured(fields) {
  const value = (name) => fields.querySelector(`[name="${name}"]`).value;
  return length(JSON.stringify({
    completion_criteria: items(value("completion_criteria")),
    constraints: items(value("constraints")),
    objective: value("objective").trim(),
  }));
}

for (const fields of document.querySelectorAll("[data-anchor]")) {
  const most = Number(fields.dataset.anchor);
  const shown = fields.querySelector("[data-anchor-count]");
  const number = new Intl.NumberFormat(document.documentElement.lang || "en");
  const count = () => {
    const n = measured(fields);
    shown.hidden = false;
    shown.classList.toggle("over", n > most);
    shown.textContent = fields.dataset.count
      .replace("{n}", number.format(n)).replace("{most}", number.format(most));
  };
  fields.addEventListener("input", count);
  count();
}
