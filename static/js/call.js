/* Keys of the call page: [ and ] lead to the call before and after. */
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const rel = { "[": "prev", "]": "next" }[event.key];
  if (rel) document.querySelector(`a[rel=${rel}]`)?.click();
});
