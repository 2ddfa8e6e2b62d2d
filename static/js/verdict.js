/* The verdict page: c confirms, [ and ] lead to the verdicts before and after in the queue; the word
   for the whole follows the words on the criteria that decide, as the server will ask of it. */

const form = document.getElementById("review");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  // Enter on a word would press the form's first button, which is to confirm.
  if (event.key === "Enter" && event.target.form === form && event.target.matches("[type=radio]")) {
    event.preventDefault();
    form.requestSubmit(document.getElementById("store"));
  }
  if (event.target.closest("input:not([type=radio]), textarea, select")) return;
  const link = { "[": "prev", "]": "next" }[event.key];
  if (link) document.querySelector(`a[rel=${link}]`)?.click();
  if (event.key === "c") document.getElementById("confirm")?.click();
});

document.addEventListener("change", (event) => {
  if (!event.target.matches("input[data-decides]")) return;
  const words = [...document.querySelectorAll("input[data-decides]:checked")].map((i) => i.value);
  const passed = words.every((word) => word === "passed");
  const word = words.includes("failed") ? "failed" : passed ? "passed" : "unknown";
  form.querySelector(`input[name=word][value=${word}]`).checked = true;
});
