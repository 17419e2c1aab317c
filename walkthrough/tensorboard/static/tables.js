// Tables of many rows: sorted by a press on a column's header, filtered by a text, more rows on demand.
import {h} from "./elements.js";

const FIRST = 30; // rows, until all are asked for
const FEW = 10; // rows that need no filter

// columns: [{title, value(row): what it is sorted by, cell(row): what is shown, number, name}]. text(row): what the filter
// looks in. sort: the title of the column that it is sorted by at first, if that is not the order of the rows.
export function bigTable({label, columns, rows, text, sort = null}) {
  const chosen = {title: sort, descending: true, query: "", all: false};
  const body = h("tbody"), count = h("span", {class: "quiet", role: "status"});
  const more = h("button", {class: "link", type: "button", onclick: () => { chosen.all = true; draw(); }});
  const heads = columns.map((column) => h("th", {class: column.number ? "number" : "", scope: "col"}, column.value
    ? h("button", {class: "sort", type: "button", onclick: () => order(column)}, column.title) : column.title));

  function order(column) {
    const again = chosen.title === column.title;
    chosen.descending = again ? !chosen.descending : Boolean(column.number);
    chosen.title = column.title;
    draw();
  }

  function sorted(shown) {
    const column = columns.find(({title, value}) => value && title === chosen.title);
    if (!column) {
      return shown;
    }
    const known = (row) => column.value(row) !== null && column.value(row) !== undefined;
    const compare = (one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(String(other), undefined, {numeric: true}));
    const direction = chosen.descending ? -1 : 1;
    return [...shown.filter(known).sort((one, other) => direction * compare(column.value(one), column.value(other))),
      ...shown.filter((row) => !known(row))];
  }

  function draw() {
    const query = chosen.query.toLowerCase();
    const shown = sorted(query ? rows.filter((row) => text(row).toLowerCase().includes(query)) : rows);
    const visible = chosen.all ? shown : shown.slice(0, FIRST);
    body.replaceChildren(...visible.map((row) => h("tr", {class: row.class}, ...columns.map((column) =>
      h("td", {class: column.name ? "name" : column.number ? "number" : ""}, column.cell(row) ?? "–")))));
    columns.forEach((column, at) => {
      const by = column.value && column.title === chosen.title;
      heads[at].setAttribute("aria-sort", by ? (chosen.descending ? "descending" : "ascending") : "none");
    });
    count.textContent = query ? `${shown.length} of ${rows.length}` : "";
    more.textContent = `show all ${shown.length}`;
    more.hidden = visible.length === shown.length;
  }

  draw();
  const filter = h("input", {type: "search", placeholder: "filter by name", "aria-label": `Filter ${label}`,
    oninput: ({target}) => { chosen.query = target.value; draw(); }});
  return h("div", {class: "big"}, rows.length > FEW ? h("p", {class: "filter"}, filter, " ", count) : null,
    h("div", {class: "scroll"}, h("table", {"aria-label": label}, h("thead", {}, h("tr", {}, ...heads)), body)), more);
}

// A column with a link to where the events of a row's name are in the timeline.
export function timelineColumn(site, place) {
  return {title: "", cell: (row) => {
    const options = place(row);
    return options && h("button", {class: "link", type: "button", "aria-label": `Show ${row.name} in the timeline`,
      onclick: () => site.go("timeline", options)}, "timeline");
  }};
}
