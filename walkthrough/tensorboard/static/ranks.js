// The ranks of one training side by side: which one the others wait for.
import {PARTS, bad, barsLead, choice, choices, goneText, h, link, note, partsOf, stackedBars, table, time, valueOrReason,
  wideSection} from "./elements.js";

export async function ranks(site) {
  const runs = site.runs.filter((run) => run.has_ranks);
  if (!runs.length) {
    throw new Error("no run here has traces of several ranks");
  }
  const run = runs.find(({key}) => key === site.options.run) || runs[0];
  site.watch(run);
  const form = choices(choice("Run", runs.map(({key, name}) => [key, name]), run.key, (key) => site.go("ranks", {run: key})));
  const page = h("div", {}, form, h("h1", {}, run.name));
  if (site.options.run && run.key !== site.options.run) {
    const other = site.runs.some(({key}) => key === site.options.run);
    page.append(h("p", {class: other ? "quiet" : "bad failed"}, other ? `The run ${site.options.run} has no traces of several ranks; this is another.`
      : `This cannot be shown: ${goneText(site.options.run)}; this is another.`));
  }
  const answer = await valueOrReason(page, site.ranks(run.key));
  if (!answer?.ranks) {
    return page;
  }
  page.append(...answer.problems.map(bad));
  if (!answer.ranks.length) {
    page.append(note("No trace of this run names its rank."));
    return page;
  }
  page.append(verdict(answer), h("div", {class: "grid"}, wideSection("Typical step of each rank", bars(site, run, answer)),
    wideSection("The ranks, per typical step", rows(site, run, answer),
      note(answer.no_waits ? `Waits for other ranks are not known: ${answer.no_waits}.`
        : "wait: how much longer its collectives last than those of the rank that comes to each of them last. By durations, since the "
          + "ranks' clocks differ; where groups of ranks overlap, as in tensor and data parallelism at once, it is an upper bound."))));
  return page;
}

function verdict({ranks: all, difference, advice, stragglers, first, verdict: text, first_advice: firstAdvice, no_waits: noWaits}) {
  return h("div", {class: "verdict"}, h("b", {}, `${all.length} ranks; ${difference}`),
    advice ? h("p", {}, h("b", {}, "Overlap communication"), `: ${advice}`) : null,
    h("p", {}, `rank ${first}: ${text}`),
    ...firstAdvice.map((row) => h("p", {}, `First on ${row.ranks.length < all.length ? `rank ${row.ranks.join(", ")}` : "every rank"}: `, h("b", {}, row.title),
      firstAdvice.length > 1 ? `, since ${row.why}` : "")),
    noWaits ? null : note(!stragglers.length ? "No rank holds the others up by 5 % of a step or more."
      : "A rank that others wait for shows little time in collectives; those that wait show much."));
}

// In the form of a digest, for `partsOf`.
function parts({parts: breakdown_us, parts_us}) {
  return partsOf({typical: {breakdown_us, parts_us}});
}

function bars(site, run, {ranks: all}) {
  const host = stackedBars(site, PARTS, all.map((row) => [`rank ${row.rank}`, parts(row)]), {label: "Step time of each rank by part",
    xaxis: {title: {text: "ms per step"}}, yaxis: {autorange: "reversed", type: "category"}});
  host.style.height = `${Math.min(900, 110 + 34 * all.length)}px`;
  return barsLead(site, host, "step", (at) => ({run: run.key, trace: all[at].trace}));
}

function rows(site, run, {ranks: all, stragglers}) {
  const trace = (row) => ({run: run.key, trace: row.trace});
  return table(["rank", ">step", ">compute", ">communication alone", ">overlapped", ">wait", ">DataLoader", "", "timeline"], all.map((row) => {
    const times = parts(row), beside = row === all[0] ? trace(row) : {...trace(all[0]), beside: row.trace};
    return [link(`rank ${row.rank}`, () => site.go("step", trace(row)), {label: `Step of rank ${row.rank}`}), time(row.step_us),
      time(row.has_gpu ? times.compute : times.cpu_exec), row.communicates ? time(row.exposed_us) : "–",
      row.communicates ? time(row.hidden_us) : "–", time(row.wait_us), time(times.dataloader),
      stragglers.includes(row.rank) ? h("span", {class: "tag gone"}, "the others wait for it") : "",
      link(row === all[0] ? "timeline" : `beside rank ${all[0].rank}`, () => site.go("timeline", beside), {label: `Rank ${row.rank} in the timeline`})];
  }));
}
