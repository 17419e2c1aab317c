// Draws the timeline on its canvas, and knows what is drawn where.
//
// How a frame stays cheap with 500,000 events: a frame paints each visible Track into one line of pixels (`paintTrack`):
// boxes wider than a pixel one by one, and all narrower events that start in the same pixel column at once, found by
// binary search. So a frame costs about (columns x visible rows), however many events there are. Each line is then
// stretched to its row's height. Of what is narrower than a pixel, idle gaps are as faint as the share of it that they
// cover, so that the lane looks as idle as the GPU is; other events are always seen.
//
// Names come from a trace, so from strangers: they reach the page only by `textContent` and `fillText`.
import {duration, grouped, quantity} from "./elements.js";
import {clamp, gallop, lowerBound} from "./timeline_model.js";
import {COUNTER, FONT, HEADER, HEADING, LANE_PAD, ROW, ROW_GAP, STEP_BAND, fitted, paletteOf, shortened} from "./timeline_style.js";

const LEAST_LABEL = 26; // a narrower box shows no name
const HIT_SLOP = 3; // how far next to a box a click still finds it
const ARROW_HEAD = 6;
const DIM = 44; // of 255: what a search does not find
const DEEP = 3; // levels: deeper lanes of these kinds start folded, except the main thread's
const FOLDING = new Set(["python", "runtime"]);
const COLOURS = ["ground", "odd", "lane", "header", "heading", "text", "soft", "line", "grid", "accent", "halo", "range", "absent"];

export class Drawing {
  /** `stage` holds the canvas and the lanes' labels, and scrolls them. */
  constructor(stage, canvas, model, dark) {
    Object.assign(this, {stage, canvas, model});
    this.view = {start: 0, end: 1}; // µs at the canvas's left and right edges
    this.context = canvas.getContext("2d", {alpha: false});
    this.strips = document.createElement("canvas"); // one line of pixels for each visible row
    this.stripsContext = this.strips.getContext("2d", {willReadFrequently: true}); // kept in main memory
    const style = getComputedStyle(stage);
    this.theme = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--wtl-${name}`)]));
    this.changes = 0; // counts what changes the rows' pixels, besides the view
    this.names = [[], [], []]; // [track, index, left, right] of names to draw: in black, in white, in the dim colour
    this.texts = new Map(); // names cut to a width
    const groups = new Map();
    for (const lane of model.lanes) {
      lane.palette = paletteOf(lane.kind, dark);
      lane.open = !FOLDING.has(lane.kind) || lane.tracks.length <= DEEP || lane.group.includes("main thread");
      if (!groups.has(lane.group)) groups.set(lane.group, {name: lane.group, lanes: [], open: true});
      groups.get(lane.group).lanes.push(lane);
    }
    this.groups = [...groups.values()];
  }

  /** Gives the canvas a size in CSS pixels; the caller draws. */
  resize(width, tall) {
    const ratio = window.devicePixelRatio || 1;
    const [columns, lines] = [width, tall].map((length) => Math.max(1, Math.round(length * ratio)));
    Object.assign(this, {width, tall, ratio, columns, hair: Math.max(1, Math.round(ratio))});
    Object.assign(this.canvas, {width: columns, height: lines});
    Object.assign(this.canvas.style, {width: `${width}px`, height: `${tall}px`});
    this.texts.clear();
  }

  /** Sets each lane's place, below the header. */
  layout() {
    let y = 0;
    for (const group of this.groups) {
      group.y = y;
      y += HEADING;
      for (const lane of group.lanes) {
        lane.y = y;
        lane.shown = group.open;
        lane.rows = !lane.shown || lane.counter ? 0 : lane.open ? lane.tracks.length : 1;
        lane.height = !lane.shown ? 0 : 2 * LANE_PAD + (lane.counter && lane.open ? COUNTER : Math.max(1, lane.rows) * ROW);
        y += lane.height;
      }
    }
    this.changes++;
  }

  // ------------------------------------------------------------------------------------------------- what is where

  /** µs in one pixel column, and the number of columns before the canvas's first: columns start at multiples of the
   * former, so that panning does not change which events share a column. */
  grid() {
    const us = (this.view.end - this.view.start) / this.columns;
    return {us, first: Math.floor(this.view.start / us)};
  }

  timeAt(x) {
    const {us, first} = this.grid();
    return (first + x * this.ratio) * us;
  }

  /** The device pixel column of a time, at most a little outside the canvas. */
  column(time) {
    const {us, first} = this.grid();
    return clamp(Math.floor(time / us) - first, -10, this.columns + 10);
  }

  /** The device pixel line of a y on the canvas. */
  line(y) {
    return Math.round(y * this.ratio);
  }

  /** The y on the canvas of a lane or of a group's heading. */
  top(item) {
    return HEADER + item.y - this.stage.scrollTop;
  }

  /** The y of a track's row; of the lane's first row where the lane is folded, of its group's heading where that is. */
  rowTop({lane, level}) {
    return this.top(lane) + (lane.shown ? LANE_PAD + (lane.open ? level * ROW : 0) : LANE_PAD - ROW);
  }

  laneAt(y) {
    const inside = (lane) => lane.shown && y >= this.top(lane) && y < this.top(lane) + lane.height;
    return y < HEADER ? null : this.model.lanes.find(inside) || null;
  }

  stepAt({x, y}) {
    const time = this.timeAt(x);
    return (y < STEP_BAND && this.model.steps.find(({start, end}) => start <= time && time < end)) || null;
  }

  /** The event drawn at a place, or a few pixels next to it; null where there is none. */
  eventAt({x, y}) {
    const lane = this.laneAt(y);
    const level = lane ? Math.floor((y - this.top(lane) - LANE_PAD) / ROW) : -1;
    if (level < 0 || level >= lane.rows || !lane.tracks[level].size) return null;
    const track = lane.tracks[level];
    const column = Math.floor(x * this.ratio);
    for (let off = 0; off <= HIT_SLOP * this.ratio; off++) {
      for (const at of [column - off, column + off]) {
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
    const to = lowerBound(track.start, low + us, from);
    let before = from - 1; // the last event that starts before the column and reaches into it
    while (before >= 0 && track.reach[before] > low && track.end[before] <= low) before--;
    if (before < 0 || track.end[before] <= low) before = -1;
    if (before >= 0 && Math.floor(track.end[before] / us) - first > column) return before;
    if (from === to) return before;
    const match = track.matches?.[lowerBound(track.matches, from)];
    return match < to ? match : track.longest(from, to);
  }

  isLoaded({start, end}) {
    const {loaded} = this.model;
    return !loaded || (start >= loaded.start - 0.002 && end <= loaded.end + 0.002);
  }

  // ---------------------------------------------------------------------------------------------------- one frame

  /** marks: {hover, selected: events or null, arrows: [{from, to}], range: {low, high} or null}. */
  draw({hover, selected, arrows, range}) {
    const {view, columns, tall, changes, theme} = this;
    const seen = this.visibleTracks();
    const state = [view.start, view.end, columns, tall, this.stage.scrollTop, changes].join();
    if (state !== this.painted) this.paintTracks(seen); // else only a mark or the hover has changed
    this.painted = state;
    this.drawGround();
    for (const lane of this.model.lanes) if (lane.counter && lane.shown && lane.open) this.drawCounter(lane);
    this.drawTracks(seen);
    this.drawNames();
    for (const lane of this.model.lanes) {
      if (lane.shown) this.fill(theme.lane, 0, this.line(this.top(lane) + lane.height) - 1, columns, this.hair);
    }
    this.drawNotLoaded();
    if (hover) this.drawOutline(hover, theme.text, 1);
    for (const event of arrows.flatMap(({from, to}) => [from, to])) this.drawOutline(event, theme.accent, 1);
    if (selected) this.drawOutline(selected, theme.accent, 2);
    if (range) this.drawRange(range);
    arrows.forEach((arrow) => this.drawArrow(arrow));
    this.drawHeader(); // last, over what is scrolled under it
    if (range) this.drawMeasure(range);
  }

  fill(colour, left, top, width, height) {
    this.context.fillStyle = colour;
    this.context.fillRect(left, top, width, height);
  }

  /** Sets the font; returns the width of a text in it. */
  measure(text = "", weight = 400) {
    this.context.font = `${weight} ${11 * this.ratio}px ${FONT}`;
    this.context.textAlign = "left";
    this.context.textBaseline = "middle";
    return this.context.measureText(text).width;
  }

  /** A small text on a ground of its own. */
  note(text, x, y, colour = this.theme.text, ground = this.theme.ground, weight = 400) {
    const {ratio} = this;
    const width = this.measure(text, weight);
    this.fill(ground, x - 3 * ratio, y - 8 * ratio, width + 6 * ratio, 16 * ratio);
    this.context.fillStyle = colour;
    this.context.fillText(text, x, y);
  }

  /** Calls back for each visible step with its device pixel columns. */
  eachStep(callback) {
    const {us, first} = this.grid();
    for (const step of this.model.steps) {
      const left = Math.floor(step.start / us) - first;
      const right = Math.floor(step.end / us) - first;
      if (right > 0 && left < this.columns) callback(step, Math.max(-2, left), Math.min(this.columns, right));
    }
  }

  drawGround() {
    const {theme, columns, canvas: {height}} = this;
    this.fill(theme.ground, 0, 0, columns, height);
    this.eachStep((step, left, right) => step.index % 2 && this.fill(theme.odd, left, 0, Math.max(1, right - left), height));
    this.ticks = this.findTicks();
    for (const {x} of this.ticks) this.fill(theme.grid, x, 0, this.hair, height);
    for (const group of this.groups) this.fill(theme.heading, 0, this.line(this.top(group)), columns, this.line(HEADING));
  }

  findTicks() {
    const {us, first} = this.grid();
    const {ratio, view} = this;
    const wide = this.measure(tickLabel(view.end, roundStep(us * 80 * ratio)));
    const step = roundStep(us * Math.max(80 * ratio, wide + 24 * ratio));
    const ticks = [];
    for (let k = Math.ceil(view.start / step); k * step <= view.end; k++) {
      ticks.push({x: Math.round((k * step) / us - first), text: tickLabel(k * step, step)});
    }
    return ticks;
  }

  /** The tracks that are in sight. */
  visibleTracks() {
    return this.model.lanes.flatMap((lane) => lane.tracks.slice(0, lane.rows).filter((track) => {
      const y = this.rowTop(track);
      return track.size && y < this.tall && y + ROW > HEADER;
    }));
  }

  /** Paints the tracks into `strips`, a line of pixels for each. */
  paintTracks(seen) {
    const {strips, columns} = this;
    for (const list of this.names) list.length = 0;
    if (!seen.length) return;
    if (strips.width !== columns || strips.height < seen.length) {
      strips.width = columns;
      strips.height = Math.max(seen.length, strips.height);
      this.image = this.stripsContext.createImageData(columns, strips.height);
      this.pixels = new Uint32Array(this.image.data.buffer); // 0xAABBGGRR on every machine a browser runs on
    }
    this.pixels.fill(0, 0, columns * seen.length);
    const grid = this.grid();
    seen.forEach((track, row) => this.paintTrack(track, row * columns, grid));
    this.stripsContext.putImageData(this.image, 0, 0, 0, 0, columns, seen.length);
  }

  /** Paints one track into the pixels from `offset` on. */
  paintTrack(track, offset, {us, first}) {
    const {columns, pixels} = this;
    const {start, end, name, busy, size, matches, lane: {kind, shade, palette}} = track;
    const low = first * us;
    const high = (first + columns) * us;
    let match = 0; // where in `matches` the search for this column's begins
    let next = 0;
    const paint = (at, alpha, index) => {
      pixels[offset + at] = ((alpha << 24) | palette.pixels[shade[name[index]]]) >>> 0;
    };
    for (let i = track.firstReaching(low); i < size && start[i] < high; i = next) {
      next = i + 1;
      const column = Math.floor(start[i] / us) - first;
      let wide = i; // the event to be drawn as a box
      let shownMatch = -1; // the match to be seen in this column
      if (end[i] - start[i] < us) {
        if (column < 0) continue;
        next = Math.max(next, gallop(start, (first + column + 1) * us, i, size));
        wide = track.longest(i, next);
        if (matches) {
          match = gallop(matches, i, match, matches.length);
          if (match < matches.length && matches[match] < next) shownMatch = matches[match];
        }
        const density = Math.min(1, (busy[next] - busy[i]) / us);
        if (shownMatch >= 0) paint(column, 255, shownMatch);
        else paint(column, matches ? DIM : kind === "idle" ? 255 * density : 100 + 155 * density, wide);
        if (end[wide] - start[wide] < us) continue;
      }
      const dim = matches && matches[lowerBound(matches, wide)] !== wide;
      this.paintBox(track, wide, offset, {us, first}, dim);
      if (shownMatch >= 0) paint(column, 255, shownMatch); // the box must not hide it
    }
  }

  /** Paints an event that is wider than a pixel, and keeps its name for `drawNames` where that may fit. */
  paintBox(track, index, offset, {us, first}, dim) {
    const {columns, pixels, ratio} = this;
    const {palette, shade: shades} = track.lane;
    const shade = shades[track.name[index]];
    const left = Math.max(0, Math.floor(track.start[index] / us) - first);
    const right = Math.floor(track.end[index] / us) - first;
    const stop = Math.min(columns, right);
    const alpha = dim ? DIM : 255;
    if (stop <= left) return;
    pixels.fill(((alpha << 24) | palette.pixels[shade]) >>> 0, offset + left, offset + stop);
    // A fine line between neighbours: the box's last column is left out, or fainter where the box is narrow.
    if (right <= columns && right - left > 1) {
      pixels[offset + right - 1] = right - left > 3 ? 0 : (((alpha * 0.6) << 24) | palette.pixels[shade]) >>> 0;
    }
    if (stop - left >= LEAST_LABEL * ratio) this.names[dim ? 2 : Number(palette.ink[shade])].push([track, index, left, stop]);
  }

  /** Stretches each track's line of pixels to its row. */
  drawTracks(seen) {
    const {context, strips, columns, ratio} = this;
    context.imageSmoothingEnabled = false;
    const gap = Math.max(1, Math.round(ROW_GAP * ratio));
    seen.forEach((track, row) => {
      const y = this.line(this.rowTop(track));
      context.drawImage(strips, 0, row, columns, 1, 0, y, columns, this.line(this.rowTop(track) + ROW) - y - gap);
    });
  }

  drawNames() {
    const {context, ratio} = this;
    this.measure();
    ["#000000", "#ffffff", this.theme.soft].forEach((colour, list) => {
      context.fillStyle = colour;
      for (const [track, index, left, right] of this.names[list]) {
        const y = this.line(this.rowTop(track) + (ROW - ROW_GAP) / 2);
        context.fillText(this.cut(track.name[index], right - left - 9 * ratio), left + 4 * ratio, y + 0.5);
      }
    });
  }

  /** A name, cut to `width` device pixels. Widths go in steps of 4 pixels, so that few texts are measured. */
  cut(name, width) {
    const step = width < 600 * this.ratio ? 4 : 64;
    const room = Math.floor(width / step) * step;
    const key = name * 65536 + room;
    if (this.texts.size > 20000) this.texts.clear();
    if (!this.texts.has(key)) this.texts.set(key, fitted(this.context, this.model.names[name], room));
    return this.texts.get(key);
  }

  /** A counter as steps: in every pixel column the highest value that it has there; and its highest of all. */
  drawCounter(lane) {
    const {context, columns, ratio} = this;
    const {time, value, most, least} = lane.counter;
    const [top, bottom] = [LANE_PAD, LANE_PAD + COUNTER - 2].map((y) => this.line(this.top(lane) + y));
    if (!time.length || most <= least || top > this.canvas.height || bottom < 0) return;
    const {us, first} = this.grid();
    const height = (bottom - top) / (most - least);
    const zero = bottom + least * height;
    const until = Math.min(columns, this.column(this.model.high));
    context.beginPath();
    let next = lowerBound(time, first * us);
    let now = next ? value[next - 1] : null;
    let begun = false;
    for (let column = 0; column <= until; column++) {
      let highest = now;
      while (next < time.length && time[next] < (first + column + 1) * us) {
        now = value[next++];
        highest = highest === null ? now : Math.max(highest, now);
      }
      if (highest === null) continue;
      if (!begun) context.moveTo(column, zero);
      begun = true;
      context.lineTo(column, zero - highest * height);
      context.lineTo(column + 1, zero - highest * height);
    }
    context.lineTo(until + 1, zero);
    context.fillStyle = context.strokeStyle = lane.palette.css[2];
    context.globalAlpha = 0.55;
    if (begun) context.fill();
    context.globalAlpha = 1;
    context.lineWidth = Math.max(1, ratio);
    if (begun) context.stroke();
    this.note(`max. ${quantity(most, lane.unit)}`, 4 * ratio, top + 8 * ratio);
  }

  /** Marks the parts of the trace that are not loaded: they must not look idle. */
  drawNotLoaded() {
    const {loaded} = this.model;
    const {columns, theme, ratio} = this;
    if (!loaded) return;
    for (const [from, to] of [[0, this.column(loaded.start)], [this.column(loaded.end), columns]]) {
      if (to <= from) continue;
      this.fill(theme.absent, from, 0, to - from, this.canvas.height);
      const width = this.measure("not loaded");
      if (to - from > width + 8 * ratio) this.note("not loaded", (from + to - width) / 2, this.line(this.tall - 14));
    }
  }

  // ------------------------------------------------------------------------------------------------------- marks

  /** A frame round an event, at least 3 pixels wide so that it is seen at every zoom. */
  drawOutline({track, index}, colour, thick) {
    if (!track.lane.shown || (!track.lane.open && track.level)) return;
    const {context, ratio, theme} = this;
    const line = Math.max(1, Math.round(thick * ratio));
    const left = this.column(track.start[index]) - line / 2;
    const width = Math.max(3 * ratio, this.column(track.end[index]) - left - 1);
    const y = this.line(this.rowTop(track)) - line / 2;
    const height = this.line(this.rowTop(track) + ROW - ROW_GAP) - y + line / 2;
    for (const [stroke, lineWidth] of [[theme.halo, line + 2 * ratio], [colour, line]]) {
      Object.assign(context, {strokeStyle: stroke, lineWidth});
      context.strokeRect(left, y, width, height);
    }
  }

  /** A measured range: from top to bottom. */
  drawRange({low, high}) {
    const [left, right] = [this.column(low), this.column(high)];
    this.fill(this.theme.range, left, 0, right - left, this.canvas.height);
    for (const x of [left, right]) this.fill(this.theme.accent, x, 0, Math.round(1.5 * this.ratio), this.canvas.height);
  }

  /** In the axis: the range's length. */
  drawMeasure({low, high}) {
    const {theme, ratio} = this;
    const [left, right] = [this.column(low), this.column(high)];
    const [top, height] = [this.line(STEP_BAND) + 1, this.line(HEADER - STEP_BAND) - 2];
    for (const colour of [theme.header, theme.range]) this.fill(colour, left, top, right - left, height);
    for (const edge of [left, right]) this.fill(theme.accent, edge, top, Math.round(1.5 * ratio), height);
    const width = this.measure(duration(high - low), 600);
    const x = clamp((left + right - width) / 2, 2 * ratio, this.columns - width - 2 * ratio);
    this.note(duration(high - low), x, top + height / 2, theme.accent, theme.header, 600);
  }

  /** A curve from a call to its work on the device. */
  drawArrow(arrow) {
    const {context, theme, ratio} = this;
    const [from, to] = [arrow.from, arrow.to].map(({track, index}) => (
      {x: this.column(track.start[index]), y: (this.rowTop(track) + (ROW - ROW_GAP) / 2) * ratio}));
    const bend = Math.max(24 * ratio, Math.abs(to.x - from.x) * 0.4);
    const [curve, head] = [new Path2D(), new Path2D()];
    curve.moveTo(from.x, from.y);
    curve.bezierCurveTo(from.x + bend, from.y, to.x - bend, to.y, to.x, to.y);
    head.moveTo(to.x, to.y);
    head.lineTo(to.x - ARROW_HEAD * ratio, to.y - ARROW_HEAD * 0.6 * ratio);
    head.lineTo(to.x - ARROW_HEAD * ratio, to.y + ARROW_HEAD * 0.6 * ratio);
    head.closePath();
    for (const [colour, width] of [[theme.halo, 4], [theme.accent, 1.6]]) {
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = width * ratio;
      context.stroke(curve);
      context.stroke(head);
      context.fill(head);
    }
  }

  /** Steps and time axis. */
  drawHeader() {
    const {context, theme, columns, ratio, hair} = this;
    const [height, band] = [this.line(HEADER), this.line(STEP_BAND)];
    this.fill(theme.header, 0, 0, columns, height);
    this.eachStep((step, left, right) => {
      this.fill(step.index % 2 ? theme.lane : theme.odd, left, 0, Math.max(1, right - left), band);
      if (!this.isLoaded(step)) this.fill(theme.absent, left, 0, right - left, band);
      if (right - left > 6) this.fill(theme.line, left, 0, hair, band);
      const from = Math.max(0, left);
      const room = right - from - 8 * ratio;
      if (room < 6 * ratio) return;
      const full = /^\d+$/.test(step.name) ? `step ${step.name}` : step.name;
      const text = this.measure(full, 600) <= room ? shortened(full) : fitted(context, step.name, room);
      context.fillStyle = theme.text;
      context.textAlign = "center";
      context.fillText(text, (from + right) / 2, band / 2 + 0.5);
    });
    for (const y of [band, height - hair]) this.fill(theme.line, 0, y, columns, hair);
    this.measure();
    for (const {x, text} of this.ticks) {
      this.fill(theme.line, x, height - Math.round(8 * ratio), hair, Math.round(8 * ratio));
      context.fillStyle = theme.soft;
      if (x + 4 * ratio + context.measureText(text).width < columns) context.fillText(text, x + 4 * ratio, height - 11 * ratio);
    }
  }
}

/** The least of 1, 2, 5 x 10^n that is at least `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999999);
}

/** What the axis says at `us`, where its ticks are `step` µs apart. */
function tickLabel(us, step) {
  const [size, unit] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${grouped(us / size, decimals).replace(/^-(0(\.0+)?)$/, "$1")} ${unit}`;
}
