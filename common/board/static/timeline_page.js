// The traced steps as lanes.
import {chosenRun, h, note, time, valueOrReason} from "./elements.js";

export async function timeline(site) {
  const {run, trace, form} = chosenRun(site, "timeline");
  const unread = h("div", {}, form);
  const [{Timeline}, data] = await Promise.all([import("./timeline.js"), valueOrReason(unread, site.lanes(run.key, trace))]);
  if (!data?.lanes) {
    return unread;
  }
  const container = h("div", {class: "timeline"});
  const count = h("span", {class: "quiet", role: "status"});
  const page = h("div", {}, form, container);
  let drawn = null;
  const search = h("input", {type: "search", placeholder: "find an event", "aria-label": "Find events by name"});
  const find = () => {
    const {count: hits, us} = drawn.search(search.value);
    const result = hits ? `${hits} event${hits === 1 ? "" : "s"}, ${time(us)}` : "nothing found";
    count.textContent = search.value ? result : "";
  };
  const next = (direction) => {
    const match = drawn.next(direction);
    count.textContent = match ? `${match.at} of ${match.of}` : count.textContent;
  };
  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      next(event.shiftKey ? -1 : 1);
    }
  });
  form.append(search, h("button", {type: "button", onclick: () => next(-1)}, "previous"),
    h("button", {type: "button", onclick: () => next(1)}, "next"),
    count,
    h("button", {class: "link", type: "button", onclick: () => site.go("step", {run: run.key})}, "the numbers of this run"));
  if (data.left_out) {
    page.append(note(`${data.left_out} more events are left out: there are too many to show.`));
  }
  page.addEventListener("shown", () => {
    drawn = new Timeline(container, data, {dark: site.dark});
    site.leaving(() => drawn.destroy());
    if (site.options.find) {
      search.value = site.options.find;
      search.focus(); // Enter goes from one to the next
      find();
    }
  });
  return page;
}
