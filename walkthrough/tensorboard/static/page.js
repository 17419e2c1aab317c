// The Walkthrough tab: which page is shown, where its data comes from, light or dark.
// Names come out of strangers' traces: they reach the page as text only (see `h` in elements.js), never as HTML.
import {compare} from "./compare.js";
import {failure, h, link} from "./elements.js";
import {ladder} from "./ladder.js";
import {ranks} from "./ranks.js";
import {step} from "./step.js";
import {timeline} from "./timeline_page.js";
import {trace} from "./trace_page.js";

const PAGES = {
  ladder: ["Ladder", ladder], step: ["Step", step], compare: ["Compare", compare], ranks: ["Ranks", ranks],
  timeline: ["Timeline", timeline], trace: [null, trace], // null: no link to it
};
const POLL = 700; // ms until the server is asked again for what it is still reading
const SOON = 100; // the same for one event
const SILENT = "TensorBoard does not answer";
const REFRESH = 4000; // ms until new runs are looked for

let shown = 0; // counts what was shown: an answer for a page that was left is dropped
let known = ""; // the version of the runs as they were last answered, to detect new ones
let watched = new Map(); // the versions of the traces that the page shows, by run
let silent = false; // TensorBoard did not answer when it was last asked
let leave = []; // what to release when another page is shown

// The page and its options are in the address after "#", so that the browser's back button works.
function place() {
  const [page, query] = location.hash.slice(1).split("?");
  return {page: Object.hasOwn(PAGES, page) ? page : "ladder", options: Object.fromEntries(new URLSearchParams(query))};
}

// A reload of TensorBoard begins a new frame: the page that was open in it comes back from the session's memory.
function remember() {
  sessionStorage.setItem("walkthrough", location.hash);
}

function go(page, options = {}) {
  location.hash = address(page, options);
}

function address(page, options) {
  const given = Object.entries(options).filter(([, value]) => value !== null && value !== undefined);
  return `#${page}?${new URLSearchParams(given)}`;
}

// Changes options of the address without a redraw and without a step in the browser's history; null removes an option.
function stay(site, options) {
  const {page, options: now} = place();
  history.replaceState(history.state, "", address(page, {...now, ...options}));
  site.options = place().options;
  remember();
}

// What the server answers; throws where it does not, and with its reason where it refuses.
async function get(route) {
  let response;
  try {
    response = await fetch(route);
  } catch {
    silent = true;
    throw new Error(SILENT);
  }
  if (!response.ok) {
    const {error} = await response.json().catch(() => ({}));
    throw new Error(error || `TensorBoard answers with an error, ${response.status} ${response.statusText}`);
  }
  return response;
}

async function fetchJson(route, options = {}) {
  const response = await get(`${route}?${new URLSearchParams(options)}`);
  return response.json().catch(() => {
    throw new Error("TensorBoard's answer is damaged, or of another server");
  });
}

// What the server knows of a trace. Asks again while the server is still reading, and shows the progress if `poll` is long.
async function ask(route, options, current, poll = POLL) {
  for (;;) {
    const answer = await fetchJson(route, options);
    if (answer.state === "failed") {
      throw new Error(answer.reason);
    }
    if (answer.state !== "reading" || current !== shown) {
      return answer;
    }
    progress(poll === SOON ? "" : `reading ${answer.reading} trace${answer.reading === 1 ? "" : "s"} …`);
    await new Promise((done) => setTimeout(done, poll));
    if (current === shown) {
      progress("");
    }
  }
}

function progress(text) {
  document.getElementById("progress").textContent = text;
}

// again: the page that is open is drawn anew, where the reader is.
async function show(again = false) {
  const current = ++shown;
  const {page, options} = place();
  for (const tab of document.querySelectorAll("#tabs a")) {
    tab.ariaCurrent = tab.dataset.page === page ? "page" : null;
  }
  const view = document.getElementById("view");
  const site = {
    options, go, get,
    stay: (changed) => current === shown && stay(site, changed),
    dark: document.documentElement.classList.contains("dark"),
    runs: [],
    ladders: () => fetchJson("ladders"),
    ratio: (before, after) => fetchJson("ratio", {before, after}),
    digest: (run, trace) => ask("digest", trace ? {run, trace} : {run}, current),
    lanes: (run, trace, steps = {}) => ask("lanes", {run, ...(trace ? {trace} : {}), ...steps}, current),
    event: async (run, trace, question) =>
      (await ask("event", {run, ...(trace ? {trace} : {}), ...question}, current, SOON)).arguments,
    ranks: (run) => ask("ranks", {run}, current),
    alive: () => current === shown,
    leaving: (action) => (current === shown ? leave.push(action) : action()),
    watch: (run, trace) => current === shown && watched.set(run.key, {trace, versions: versions(run, trace)}),
  };
  watched = new Map();
  changed("");
  let content;
  try {
    const {version, runs} = await fetchJson("runs");
    site.runs = runs;
    known = version;
    offer(runs);
    content = await PAGES[page][1](site);
  } catch (error) {
    content = h("div", {}, error.form, failure(error));
  }
  if (current === shown) {
    leave.splice(0).forEach((action) => action());
    const top = again ? scrollY : 0;
    view.dataset.page = page;
    view.replaceChildren(content);
    remember();
    scrollTo(0, top);
    content.dispatchEvent(new Event("shown"));
    progress("");
  }
}

// A page that only some log folders have something for.
function offer(runs) {
  document.querySelector("#tabs a[data-page=ranks]").hidden = !runs.some((run) => run.has_ranks);
}

function versions(run, trace) {
  return trace ? run.versions[run.traces.indexOf(trace)] : run.versions.join();
}

// What the reader should know of the page that is open, with a button to draw it anew; "" for nothing.
function changed(text) {
  const line = document.getElementById("changed");
  if (text === line.dataset.text) {
    return;
  }
  line.dataset.text = text;
  line.hidden = !text;
  line.replaceChildren(text, " ", h("button", {type: "button", onclick: () => show(true)}, "reload this page"));
}

// New runs appear without a reload: the ladder is redrawn when the list of runs has changed, and any page that has failed;
// that also when TensorBoard answers again.
// The others only show a message, because a redraw would lose what the reader is doing there.
async function refresh() {
  if (document.hidden || refresh.asking) {
    return;
  }
  const current = shown, wasSilent = silent;
  refresh.asking = true;
  try {
    const {version, runs} = await fetchJson("runs", {known}); // null: as before
    silent = false;
    if (current !== shown) {
      return;
    }
    if (document.getElementById("progress").textContent === SILENT) {
      progress("");
    }
    const failed = document.querySelector("#view .failed");
    if ((failed && (runs || wasSilent)) || (runs && place().page === "ladder")) {
      show(true);
    } else if (runs) {
      known = version;
      offer(runs);
      changed(difference(runs));
    }
  } catch {
    progress(SILENT);
  } finally {
    refresh.asking = false;
  }
}

// What has happened to the runs that the page shows, else to the others.
function difference(runs) {
  for (const [key, {trace, versions: before}] of watched) {
    const run = runs.find((candidate) => candidate.key === key);
    if (!run || !run.traces.length) {
      return `The run ${key} is gone.`;
    }
    if (versions(run, trace) !== before) {
      return `There is new data in ${run.name}.`;
    }
  }
  return "The list of runs has changed.";
}

// The body of TensorBoard's page around this one; null where there is none, or where it is another site's.
function outerBody() {
  try {
    return window.parent === window ? null : window.parent.document.body;
  } catch {
    return null;
  }
}

// TensorBoard marks its own body in the dark; where the page stands alone the system's setting counts.
function followTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)"), outer = outerBody(), {classList} = document.documentElement;
  const isDark = () => (outer ? outer.classList.contains("dark-mode") : system.matches);
  const apply = () => classList.contains("dark") !== isDark() && [classList.toggle("dark"), show()];
  classList.toggle("dark", isDark());
  if (outer) {
    new MutationObserver(apply).observe(outer, {attributes: true, attributeFilter: ["class"]});
  }
  system.addEventListener("change", apply);
}

// A link to a page; from a page of one run to another, the run stays chosen.
function tab(page, title) {
  const open = (event) => {
    const {options} = place(), run = options.run ?? options.after;
    event.preventDefault();
    go(page, {run});
  };
  return h("a", {href: `#${page}`, "data-page": page, onclick: open}, title);
}

// A link to the page that is open, at its place.
function copyLink() {
  const copied = h("span", {id: "copied", role: "status"});
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      copied.textContent = "copied";
    } catch {
      copied.textContent = location.href; // to be copied by hand
    }
  };
  addEventListener("hashchange", () => copied.replaceChildren());
  const button = link("copy link", copy);
  button.id = "link";
  button.title = "The address of this page at this place";
  return [button, copied];
}

document.getElementById("tabs").append(...Object.entries(PAGES).filter(([, [title]]) => title).map(([page, [title]]) => tab(page, title)));
document.querySelector("header").append(...copyLink());
document.getElementById("view").addEventListener("again", () => show(true));
if (!location.hash && sessionStorage.getItem("walkthrough")) {
  history.replaceState(null, "", sessionStorage.getItem("walkthrough"));
}
addEventListener("hashchange", () => show());
followTheme();
addEventListener("load", () => show()); // by then plotly is there
setInterval(refresh, REFRESH);
