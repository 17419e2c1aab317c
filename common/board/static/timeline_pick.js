// Which event of the timeline is meant: by the pointer, by a box, by a search.
import {clamp, duration, grouped, lowerBound, moment} from "./timeline_numbers.js";
import {Painted} from "./timeline_paint.js";
import {boxPanel, eventPanel} from "./timeline_panel.js";
import {HEADER, HIT_SLOP, LANE_PAD, ROW, ROW_GAP, STEP_BAND, NOTHING_SELECTED, make, shortened} from "./timeline_style.js";
import {boxSums, matchBeside, matchesOf} from "./timeline_tracks.js";

export class Picking extends Painted {

  /** The canvas x and y of a pointer event, in CSS pixels. */
  place(event) {
    const frame = this.canvas.getBoundingClientRect();
    return {x: event.clientX - frame.left, y: event.clientY - frame.top};
  }

  timeAt(x) {
    const {us, first} = this.grid();
    return (first + x * this.ratio) * us;
  }

  trackAt(y) {
    const at = y - HEADER + this.scroll.scrollTop;
    if (y < HEADER) return null;
    const lane = this.model.lanes.find((one) => at >= one.y && at < one.y + one.height);
    const level = lane ? Math.floor((at - lane.y - LANE_PAD) / ROW) : -1;
    return lane && level >= 0 && level < lane.rows ? lane.tracks[level] : null;
  }

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
    if (track.matches) {
      const match = lowerBound(track.matches, from, 0, track.matches.length);
      if (track.matches[match] < to) return track.matches[match];
    }
    return track.longest(from, to);
  }

  findHover() {
    const {x, y} = this.pointer;
    this.hover = this.eventAt(this.pointer);
    const cursor = this.boxMode ? "box" : this.hover || this.stepAt(x, y) ? "event" : "pan";
    if (this.canvas.dataset.cursor !== cursor) this.canvas.dataset.cursor = cursor;
    this.showTip();
  }

  showTip() {
    const {tip, hover, pointer} = this;
    tip.hidden = !hover;
    if (!hover) return;
    const {name, start, duration: length, lane} = this.eventInfo(hover.track, hover.index);
    tip.replaceChildren(make("span", "", shortened(name)), make("small", "",
      `${duration(length)} from ${moment(start)} · ${shortened(lane)}${this.crowd(hover)}`));
    const x = pointer.x + this.labelWidth;
    const left = x + 14 + tip.offsetWidth < this.stage.clientWidth ? x + 14 : x - 10 - tip.offsetWidth;
    const down = pointer.y + 18 + tip.offsetHeight < this.tall ? pointer.y + 18 : pointer.y - 8 - tip.offsetHeight;
    tip.style.left = `${Math.max(2, left)}px`;
    tip.style.top = `${Math.max(2, down)}px`;
  }

  /** What the tooltip adds where one pixel column stands for several events. */
  crowd({track, index}) {
    const {us} = this.grid();
    if (track.end[index] - track.start[index] >= us) return "";
    const low = Math.floor(track.start[index] / us) * us;
    const count = track.firstStarting(low + us) - track.firstStarting(low);
    return count > 1 ? ` · one of ${grouped(count)} events in this pixel` : "";
  }

  eventInfo(track, index) {
    return {
      kind: "event",
      name: this.model.names[track.name[index]],
      start: track.start[index],
      duration: track.end[index] - track.start[index],
      lane: track.lane.label,
    };
  }

  /** A CPU event's duration without the events nested in it; null on other lanes, whose levels may be overlaps. */
  ownTime({lane, level, start, end}, index) {
    if (lane.kind !== "cpu") return null;
    const below = lane.tracks[level + 1];
    if (!below) return end[index] - start[index];
    const from = below.firstStarting(start[index]);
    const to = lowerBound(below.start, end[index], from, below.size);
    return Math.max(0, end[index] - start[index] - (below.busy[to] - below.busy[from]));
  }

  selectEvent(track, index) {
    this.selection = {kind: "event", track, index};
    const info = this.eventInfo(track, index);
    this.showPanel(...eventPanel(info, track.name[index], this.ownTime(track, index), this.model));
    this.request();
    this.onSelect(info);
  }

  /** The tracks and times that a drag from one corner to the other covers. */
  boxOf({from, to}) {
    const times = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    const [top, bottom] = [from.at, to.y - HEADER + this.scroll.scrollTop].sort((a, b) => a - b);
    const tracks = [];
    for (const lane of this.model.lanes) {
      for (let level = 0; level < lane.rows; level++) {
        const y = lane.y + LANE_PAD + level * ROW;
        if (y < bottom && y + ROW - ROW_GAP > top) tracks.push(lane.tracks[level]);
      }
    }
    return {kind: "box", tracks, low: times[0], high: times[1]};
  }

  selectBox(box) {
    if (!box.tracks.length || !(box.high > box.low)) return;
    this.selection = box;
    const lanes = [...new Set(box.tracks.map((track) => track.lane.label))];
    const info = {kind: "box", start: box.low, end: box.high, lanes,
      ...boxSums(this.model, box.tracks, box.low, box.high)};
    this.showPanel(...boxPanel(info));
    this.request();
    this.onSelect(info);
  }

  showPanel(...children) {
    this.panel.replaceChildren(...children);
    this.panel.scrollTop = 0;
  }

  clearSelection() {
    if (!this.selection) return;
    this.selection = null;
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.request();
    this.onSelect({kind: "none"});
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

  /** Marks the events whose name contains `text`, and dims the others; "" clears. Returns their {count, us}. */
  search(text) {
    const wanted = String(text ?? "").toLowerCase();
    if (!wanted) {
      this.searching = null;
      for (const track of this.model.tracks) track.matches = null;
      this.changes++;
      this.request();
      return {count: 0, us: 0};
    }
    const match = Uint8Array.from(this.model.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    let [count, us] = [0, 0];
    for (let name = 0; name < match.length; name++) {
      if (!match[name]) continue;
      count += this.model.count[name];
      us += this.model.us[name];
    }
    for (const track of this.model.tracks) track.matches = matchesOf(track, match);
    const marks = count > 0 && this.model.tracks.every(({lane, matches}) => lane.kind === "finding" || !matches.length);
    this.searching = {match, count, us, marks, at: null};
    this.changes++;
    this.request();
    return {count, us};
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
