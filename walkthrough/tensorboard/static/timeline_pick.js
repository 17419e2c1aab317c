// Which event of the timeline is meant: by the pointer, by a search, by an address; and what is then selected.
import {duration, grouped, quantity} from "./elements.js";
import {addressOf, atAddress, clearMatches, counterAt, markMatches, matchBeside} from "./timeline_model.js";
import {clamp, lowerBound, moment} from "./timeline_numbers.js";
import {Painted} from "./timeline_paint.js";
import {boxPanel, eventPanel, rangePanel, relatedTo} from "./timeline_panel.js";
import {arrowsOf} from "./timeline_relations.js";
import {
  HEADER, HIT_SLOP, LANE_PAD, NOTHING_SELECTED, ROW, ROW_GAP, STEP_BAND, make, shortened,
} from "./timeline_style.js";
import {boxSums, fullLabel, joined, lengthOf, partsBetween} from "./timeline_tracks.js";

const MOST_ARROWS = 40;
const LEAST_SEEN = 3; // pixels: a narrower event is zoomed to when it is selected from elsewhere

export class Picking extends Painted {

  stepAt(x, y) {
    if (y >= STEP_BAND || y < 0) return null;
    const time = this.timeAt(x);
    return this.model.steps.find((step) => step.start <= time && time < step.end) || null;
  }

  /** The event drawn at a place, or a few pixels beside it: {track, index} or null. */
  eventAt({x, y}) {
    const track = this.trackAt(y);
    if (!track) return null;
    const column = Math.floor(x * this.ratio);
    for (let off = 0; off <= HIT_SLOP * this.ratio; off++) {
      for (const at of off ? [column - off, column + off] : [column]) {
        const index = this.eventInColumn(track, at);
        if (index >= 0) return {track, index};
      }
    }
    return null;
  }

  /** The event that `paintTrack` shows in a pixel column, or -1. */
  eventInColumn(track, column) {
    const {us, first} = this.grid();
    const low = (first + column) * us;
    const from = track.firstStarting(low);
    const to = lowerBound(track.start, low + us, from, track.size);
    let before = from - 1; // the last event that starts before the column and reaches into it
    while (before >= 0 && track.reach[before] > low && track.end[before] <= low) before--;
    if (before < 0 || track.end[before] <= low) before = -1;
    if (before >= 0 && Math.floor(track.end[before] / us) - first > column) return before;
    if (from === to) return before;
    if (track.lit) {
      const match = lowerBound(track.lit, from, 0, track.lit.length);
      if (track.lit[match] < to) return track.lit[match];
    }
    return track.longest(from, to);
  }

  findHover() {
    const {x, y} = this.pointer;
    this.hover = this.eventAt(this.pointer);
    const axis = y >= STEP_BAND && y < HEADER;
    const cursor = axis ? "range" : this.boxMode ? "box" : this.hover || this.stepAt(x, y) ? "event" : "pan";
    if (this.canvas.dataset.cursor !== cursor) this.canvas.dataset.cursor = cursor;
    this.showTip();
  }

  /** What the tooltip adds where one pixel column stands for several events. */
  crowd({track, index}) {
    const {us} = this.grid();
    if (track.end[index] - track.start[index] >= us) return "";
    const low = Math.floor(track.start[index] / us) * us;
    const count = track.firstStarting(low + us) - track.firstStarting(low);
    return count > 1 ? ` · one of ${grouped(count)} events in this pixel` : "";
  }

  /** The match next to the selected event, or to the view's left edge; with `wrap` the first or last of all. */
  neighbour(direction, wrap = false) {
    const {tracks} = this.model;
    const from = wrap ? null : this.searching.at || (this.selection?.kind === "event" ? this.selection : null);
    const origin = from ? from.track.start[from.index] : direction > 0 ? -Infinity : Infinity;
    const place = from ? tracks.indexOf(from.track) : -1;
    let best = null;
    tracks.forEach((track, order) => {
      const at = matchBeside(track, direction, origin, order - place, from?.index);
      if (at < 0) return;
      const index = track.matches[at];
      const nearer = best && (track.start[index] - best.track.start[best.index]) * direction;
      if (!best || nearer < 0 || (nearer === 0 && direction < 0)) best = {track, index};
    });
    return best;
  }

  /** How many matches come no later than this one. */
  rankOf({track, index}) {
    const {tracks} = this.model;
    const place = tracks.indexOf(track);
    return tracks.reduce((sum, one, order) => {
      const after = matchBeside(one, 1, track.start[index], order - place, index);
      return sum + (after < 0 ? one.matches.length : after);
    }, 0);
  }

  /** The shown lane at a y on the canvas; pinned lanes lie over the others. */
  laneAt(y) {
    if (y < HEADER) return null;
    const fixed = y < HEADER + this.pinnedHeight;
    const inside = (lane) => y >= this.top(lane) && y < this.top(lane) + lane.height;
    return this.model.lanes.find((lane) => lane.shown && lane.fixed === fixed && inside(lane)) || null;
  }

  trackAt(y) {
    const lane = this.laneAt(y);
    const level = lane ? Math.floor((y - this.top(lane) - LANE_PAD) / ROW) : -1;
    return level >= 0 && level < lane.rows ? lane.tracks[level] : null;
  }

  showTip() {
    const {tip, hover, pointer} = this;
    const lines = hover ? this.eventTip(hover) : this.counterTip(pointer);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(make("span", "", lines[0]), make("small", "", lines[1]));
    const x = pointer.x + this.labelWidth;
    const left = x + 14 + tip.offsetWidth < this.stage.clientWidth ? x + 14 : x - 10 - tip.offsetWidth;
    const down = pointer.y + 18 + tip.offsetHeight < this.tall ? pointer.y + 18 : pointer.y - 8 - tip.offsetHeight;
    tip.style.left = `${Math.max(2, left)}px`;
    tip.style.top = `${Math.max(2, down)}px`;
  }

  eventTip(hover) {
    const {name, start, duration: length, lane} = this.eventInfo(hover.track, hover.index);
    return [shortened(name), `${duration(length)} from ${moment(start)} · ${shortened(lane)}${this.crowd(hover)}`];
  }

  /** A counter's value under the pointer. */
  counterTip({x, y}) {
    const lane = this.laneAt(y);
    const index = lane?.counter ? counterAt(lane.counter, this.timeAt(x)) : -1;
    if (index < 0) return null;
    const {time, value, most} = lane.counter;
    return [`${shortened(lane.label)}: ${quantity(value[index], lane.unit)}`,
      `since ${moment(time[index])} · max. ${quantity(most, lane.unit)}`];
  }

  eventInfo(track, index) {
    return {
      kind: "event",
      name: this.model.names[track.name[index]],
      start: track.start[index],
      duration: track.end[index] - track.start[index],
      lane: track.lane.label,
      at: addressOf({track, index}),
    };
  }

  // ----------------------------------------------------------------------------------------------------- selecting

  selectEvent(track, index) {
    const chosen = {track, index};
    const relations = relatedTo(this.model, chosen);
    this.selection = {kind: "event", track, index};
    this.arrows = arrowsOf(this.model, chosen, relations, MOST_ARROWS);
    this.usePanel();
    this.showPanel(...eventPanel(this.model, chosen, relations, (event) => this.goTo(event)));
    this.request();
    this.onSelect(this.eventInfo(track, index));
  }

  /** Selects an event and brings it into sight; the view stays where the event is seen in it. */
  goTo({track, index}) {
    const {start, end} = this.goal || this.view;
    const pixels = ((track.end[index] - track.start[index]) / (end - start)) * this.width;
    if (track.start[index] < start || track.start[index] > end || pixels < LEAST_SEEN) this.reveal(track, index);
    else this.bringRow(track);
    this.selectEvent(track, index);
  }

  /** Unfolds and scrolls to a track's row. */
  bringRow(track) {
    if (!track.lane.shown || (!track.lane.open && track.level)) this.unfold(track);
    if (!track.lane.fixed) this.scrollTo(track.lane.y + LANE_PAD + track.level * ROW * Number(track.lane.open), ROW);
  }

  /** Brings an event to the middle; zooms where it would be too small to see, or wider than the view. */
  reveal(track, index) {
    this.bringRow(track);
    const {start, end} = this.goal || this.view;
    const length = track.end[index] - track.start[index];
    const pixels = (length / (end - start)) * this.width;
    let span = end - start;
    if (pixels < 16 || pixels > this.width * 0.9) span = Math.max(length, 1) * (this.width / 140);
    const middle = (track.start[index] + track.end[index]) / 2;
    this.show({start: middle - span / 2, end: middle + span / 2});
  }

  /** Selects the event at an address ("<lane id>@<start>") without moving the view; false where there is none. */
  selectAt(address) {
    const event = this.empty ? null : atAddress(this.model, address);
    if (!event) return false;
    this.bringRow(event.track);
    this.selectEvent(event.track, event.index);
    return true;
  }

  /** The tracks and times that a drag from one corner to the other covers. */
  boxOf({from, to, top}) {
    const times = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    const pinned = from.y < HEADER + this.pinnedHeight;
    const begun = pinned ? Math.max(from.y, HEADER) : from.y + top - this.scroll.scrollTop;
    const [upper, lower] = [begun, to.y].sort((a, b) => a - b);
    const tracks = [];
    for (const lane of this.model.lanes) {
      const under = lane.fixed ? HEADER : HEADER + this.pinnedHeight;
      for (let level = 0; lane.shown && level < lane.rows; level++) {
        const y = this.top(lane) + LANE_PAD + level * ROW;
        const seen = begun < under || y + ROW > under || !this.pinnedHeight;
        if (seen && y < lower && y + ROW - ROW_GAP > upper) tracks.push(lane.tracks[level]);
      }
    }
    return {kind: "box", tracks, low: times[0], high: times[1]};
  }

  selectBox(box) {
    if (!box.tracks.length || !(box.high > box.low)) return;
    this.selection = box;
    this.arrows = [];
    const lanes = [...new Set(box.tracks.map((track) => track.lane.label))];
    const info = {kind: "box", start: box.low, end: box.high, lanes,
      ...boxSums(this.model, box.tracks, box.low, box.high)};
    this.usePanel();
    this.showPanel(...boxPanel(info));
    this.request();
    this.onSelect(info);
  }

  /** The range that a drag on the time axis measures. */
  rangeOf({from, to}) {
    const [low, high] = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    return {kind: "range", low, high};
  }

  selectRange({low, high}) {
    if (!(high > low)) return;
    this.selection = {kind: "range", low, high};
    this.arrows = [];
    const lanes = this.groups.flatMap((group) => group.lanes).filter(({tracks}) => tracks.length);
    const busy = lanes.map((lane) => ({
      label: fullLabel(lane),
      us: lengthOf(lane.tracks.reduce((union, track) => joined(union, partsBetween(track, low, high)), [])),
    }));
    const info = {kind: "range", start: low, end: high, busy: busy.filter(({us}) => us > 0)};
    this.usePanel();
    this.showPanel(...rangePanel(info));
    this.request();
    this.onSelect(info);
  }

  /** The times of the selection: [low, high], or null. */
  selectedTimes() {
    const {selection} = this;
    if (!selection) return null;
    if (selection.kind !== "event") return [selection.low, selection.high];
    return [selection.track.start[selection.index], selection.track.end[selection.index]];
  }

  measureSelection() {
    const times = this.selectedTimes();
    if (times) this.selectRange({low: times[0], high: times[1]});
  }

  zoomToSelection() {
    const times = this.selectedTimes();
    if (times) this.show(this.around({start: times[0], end: times[1]}, 0.1));
  }

  clearSelection() {
    if (!this.selection) return;
    this.selection = null;
    this.arrows = [];
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.request();
    this.onSelect({kind: "none"});
  }

  /** Gives the panel its height at the first selection: then the lanes have less room. */
  usePanel() {
    if (!this.panel.classList.contains("wtl-unused")) return;
    this.panel.classList.remove("wtl-unused");
    this.resize();
    if (this.selection.kind === "event") this.bringRow(this.selection.track);
  }

  /** Fills the panel; the focus stays in it where it was in what is replaced. */
  showPanel(...children) {
    const focused = this.panel.contains(document.activeElement);
    this.panel.replaceChildren(...children);
    this.panel.scrollTop = 0;
    if (focused) this.panel.focus({preventScroll: true});
  }

  // -------------------------------------------------------------------------------------------------------- search

  /** Finds the events whose name contains `text`, or matches it as a regular expression, and that last at least `least`
   * µs; dims the others. Without both it clears. Returns {count, us}, and `error` where the expression is invalid. */
  search(text, {regex = false, least = 0} = {}) {
    const wanted = String(text ?? "");
    this.searching = null;
    clearMatches(this.model);
    this.changes++;
    this.request();
    if (!wanted && !least) return {count: 0, us: 0};
    let matches = (name) => name.toLowerCase().includes(wanted.toLowerCase());
    if (regex) {
      try {
        const expression = new RegExp(wanted, "i");
        matches = (name) => expression.test(name);
      } catch {
        return {count: 0, us: 0, error: "this is not a regular expression"};
      }
    }
    const match = Uint8Array.from(this.model.names, (name) => Number(matches(name)));
    this.searching = {...markMatches(this.model, match, least), at: null};
    return {count: this.searching.count, us: this.searching.us};
  }

  /** Selects and centres the next match (+1) or the one before (-1), in the order of time, round the end. Returns what
   * onSelect gets, and `at` and `of`: that this is match 3 (`at`) of 20 (`of`). Without matches: null. */
  next(direction = 1) {
    if (!this.searching?.count) return null;
    const match = this.neighbour(direction < 0 ? -1 : 1) || this.neighbour(direction < 0 ? -1 : 1, true);
    this.searching.at = match;
    this.reveal(match.track, match.index);
    this.selectEvent(match.track, match.index);
    return {...this.eventInfo(match.track, match.index), at: this.rankOf(match), of: this.searching.count};
  }
}
