// A title of a table sorts it; once more: the other way round.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead th").forEach((title, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const up = title.getAttribute("aria-sort") === "descending" || (!column && !title.ariaSort);
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const order = (one, other) => column
        ? one.cells[column].dataset.value - other.cells[column].dataset.value
        : one.cells[0].textContent.localeCompare(other.cells[0].textContent);
      body.append(...[...body.rows].sort((one, other) => (up ? 1 : -1) * order(one, other)));
    });
  });
}
