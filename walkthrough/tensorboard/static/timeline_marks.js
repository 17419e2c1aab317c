// What the timeline draws over and between its lanes: headings, counters, what is not loaded, the selection, arrows.
import {duration, quantity} from "./elements.js";
import {cssColour} from "./timeline_colours.js";
import {Lanes} from "./timeline_lanes.js";
import {clamp, lowerBound} from "./timeline_numbers.js";
import {COUNTER, FONT, HEADER, HEADING, LANE_PAD, ROW, ROW_GAP, STEP_BAND} from "./timeline_style.js";

const ARROW_HEAD = 6; // in CSS pixels
const NOT_LOADED = "not loaded";

export class Marking extends Lanes {
  /** The device pixel line of a y on the canvas. */
  line(y) {
    return Math.round(y * this.ratio);
  }

  /** The device pixel column of a time, at most a little outside the canvas. */
  column(time) {
    const {us, first} = this.grid();
    return clamp(Math.floor(time / us) - first, -10, this.columns + 10);
  }

  /** Calls back for each visible step with its device pixel columns. */
  eachStep(callback) {
    const {us, first} = this.grid();
    this.model.steps.forEach((step, index) => {
      const left = Math.floor(step.start / us) - first;
      const right = Math.floor(step.end / us) - first;
      if (right > 0 && left < this.columns) callback(step, Math.max(-2, left), Math.min(this.columns, right), index);
    });
  }

  /** A band for each group, so that its lanes are seen to stand together. */
  drawHeadings(fixed) {
    if (fixed) return;
    const {context, theme, columns} = this;
    for (const group of this.groups) {
      if (!group.height) continue;
      context.fillStyle = theme.heading;
      context.fillRect(0, this.line(this.top(group)), columns, this.line(HEADING));
    }
  }

  // ------------------------------------------------------------------------------------------------------- counters

  /** Each counter as steps: in every pixel column the highest value that it has there. */
  drawCounters(fixed) {
    for (const lane of this.model.lanes) {
      if (!lane.counter || !lane.shown || lane.fixed !== fixed || !lane.open) continue;
      const top = this.top(lane) + LANE_PAD;
      const bottom = top + COUNTER - 2;
      if (top < this.tall && bottom > HEADER) this.drawCounter(lane, this.line(top), this.line(bottom));
    }
  }

  drawCounter({counter, palette}, top, bottom) {
    const {context, columns, theme, ratio} = this;
    const {time, value, most, least} = counter;
    if (!time.length || most <= least) return;
    const {us, first} = this.grid();
    const height = (bottom - top) / (most - least);
    const zero = bottom + least * height;
    const until = Math.min(columns, this.column(this.model.high));
    context.beginPath();
    let next = lowerBound(time, first * us, 0, time.length);
    let now = next ? value[next - 1] : null;
    let left = null;
    for (let column = 0; column <= until; column++) {
      let highest = now;
      while (next < time.length && time[next] < (first + column + 1) * us) {
        now = value[next++];
        highest = highest === null ? now : Math.max(highest, now);
      }
      if (highest === null) continue;
      if (left === null) context.moveTo((left = column), zero);
      const y = zero - highest * height;
      context.lineTo(column, y);
      context.lineTo(column + 1, y);
    }
    if (left === null) return;
    context.lineTo(until + 1, zero);
    context.fillStyle = cssColour(palette.rgb[2]);
    context.globalAlpha = 0.55;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = cssColour(palette.rgb[2]);
    context.lineWidth = Math.max(1, ratio);
    context.stroke();
  }

  /** Each counter's highest value, to read the curve by. */
  drawCounterNotes(fixed) {
    const {ratio, theme} = this;
    for (const lane of this.model.lanes) {
      if (!lane.counter || !lane.shown || lane.fixed !== fixed || !lane.open) continue;
      const y = this.line(this.top(lane) + LANE_PAD) + 8 * ratio;
      this.note(`max. ${quantity(lane.counter.most, lane.unit)}`, 4 * ratio, y, theme.text);
    }
  }

  /** A small text on the ground's colour. */
  note(text, x, y, colour) {
    const {context, ratio, theme} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = theme.ground;
    context.fillRect(x - 3 * ratio, y - 8 * ratio, context.measureText(text).width + 6 * ratio, 16 * ratio);
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }

  // --------------------------------------------------------------------------------------------------- not loaded

  /** The columns [from, to) on both sides of what is loaded; none where all is. */
  gaps() {
    const {loaded} = this.model;
    if (!loaded) return [];
    const [left, right] = [this.column(loaded.start), this.column(loaded.end)];
    return [[0, Math.min(left, this.columns)], [Math.max(0, right), this.columns]].filter(([from, to]) => to > from);
  }

  /** Hatches the part of the trace that is not loaded, and says so: it must not look idle. */
  drawNotLoaded() {
    for (const [from, to] of this.gaps()) this.hatch(from, to, 0, this.canvas.height);
  }

  hatch(from, to, top, bottom) {
    const {context} = this;
    if (!this.hatching) this.hatching = context.createPattern(this.hatchTile(), "repeat");
    context.fillStyle = this.hatching;
    context.fillRect(from, top, to - from, bottom - top);
  }

  hatchTile() {
    const size = Math.round(8 * this.ratio);
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const context = tile.getContext("2d");
    context.strokeStyle = this.theme.hatch;
    context.lineWidth = Math.max(1, this.ratio);
    context.beginPath();
    for (const shift of [-size, 0, size]) {
      context.moveTo(shift, size);
      context.lineTo(shift + size, 0);
    }
    context.stroke();
    return tile;
  }

  drawNotLoadedNotes() {
    const {context, ratio, theme} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    const width = context.measureText(NOT_LOADED).width;
    for (const [from, to] of this.gaps()) {
      if (to - from < width + 8 * ratio) continue;
      const y = this.line(this.tall - 14);
      this.note(NOT_LOADED, (from + to - width) / 2, y, theme.text);
    }
  }

  // ----------------------------------------------------------------------------------------------------- selection

  /** Frames round what is hovered over, selected or joined to it by an arrow. */
  drawOutlines(fixed) {
    const {theme} = this;
    const frame = (event, colour, thick) => {
      if (event.track.lane.fixed === fixed) this.outline(event, colour, thick);
    };
    if (this.hover) frame(this.hover, theme.text, 1);
    for (const {from, to} of this.arrows) {
      frame(from, theme.accent, 1);
      frame(to, theme.accent, 1);
    }
    if (this.selection?.kind === "event") frame(this.selection, theme.accent, 2);
  }

  /** Over all lanes: the box, the range, the arrows, what is not loaded. */
  drawSelection() {
    const {context, selection, drag} = this;
    context.save();
    context.beginPath();
    context.rect(0, this.line(HEADER), this.columns, this.canvas.height);
    context.clip();
    this.drawNotLoadedNotes();
    if (selection?.kind === "box") this.drawBox(selection);
    if (selection?.kind === "range") this.drawRange(selection);
    if (drag?.kind === "box" && drag.moved) this.drawBox(this.boxOf(drag));
    if (drag?.kind === "range" && drag.moved) this.drawRange(this.rangeOf(drag));
    this.arrows.forEach((arrow) => this.drawArrow(arrow));
    context.restore();
  }

  /** A frame round an event, at least 3 pixels wide so that it is seen at every zoom. */
  outline({track, index}, colour, thick) {
    if (!track.lane.shown || (!track.lane.open && track.level)) return;
    const {context, ratio, columns, theme} = this;
    const {us, first} = this.grid();
    const line = Math.max(1, Math.round(thick * ratio));
    const left = Math.floor(track.start[index] / us) - first;
    const right = Math.max(left + 3 * ratio, Math.floor(track.end[index] / us) - first);
    if (right < 0 || left > columns) return;
    const x = Math.max(-2 * line, left) - line / 2;
    const width = Math.min(columns + 2 * line, right) - x + line / 2 - 1;
    const y = this.line(this.rowTop(track)) - line / 2;
    const height = this.line(this.rowTop(track) + ROW - ROW_GAP) - y + line / 2;
    context.strokeStyle = theme.halo;
    context.lineWidth = line + 2 * ratio;
    context.strokeRect(x, y, width, height);
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(x, y, width, height);
  }

  /** A selected box: from the first to the last of its rows. */
  drawBox({tracks, low, high}) {
    const {context, theme, ratio} = this;
    const [left, right] = [this.column(low), this.column(high)];
    const rows = tracks.map((track) => this.rowTop(track));
    if (!rows.length || right < 0 || left > this.columns) return;
    const top = this.line(rows.reduce((a, b) => Math.min(a, b)) - 2);
    const bottom = this.line(rows.reduce((a, b) => Math.max(a, b)) + ROW);
    context.fillStyle = theme.box;
    context.fillRect(left, top, right - left, bottom - top);
    context.strokeStyle = theme.accent;
    context.lineWidth = Math.max(1, Math.round(1.5 * ratio));
    context.strokeRect(left, top, right - left, bottom - top);
  }

  /** A measured range: from top to bottom. */
  drawRange({low, high}) {
    const {context, theme, ratio, canvas} = this;
    const [left, right] = [this.column(low), this.column(high)];
    context.fillStyle = theme.box;
    context.fillRect(left, 0, right - left, canvas.height);
    context.fillStyle = theme.accent;
    for (const x of [left, right]) context.fillRect(x, 0, Math.max(1, Math.round(1.5 * ratio)), canvas.height);
  }

  /** In the axis: the range's length between two arrows' heads. */
  drawMeasure({low, high}) {
    const {context, theme, ratio} = this;
    const [left, right] = [this.column(low), this.column(high)];
    const [top, bottom] = [this.line(STEP_BAND) + 1, this.line(HEADER) - 1];
    context.fillStyle = theme.header;
    context.fillRect(left, top, right - left, bottom - top);
    context.fillStyle = theme.box;
    context.fillRect(left, top, right - left, bottom - top);
    const text = duration(high - low);
    context.font = `600 ${11 * ratio}px ${FONT}`;
    const width = context.measureText(text).width;
    const x = clamp((left + right - width) / 2, 2 * ratio, this.columns - width - 2 * ratio);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = theme.header;
    context.fillRect(x - 3 * ratio, top, width + 6 * ratio, bottom - top);
    context.fillStyle = theme.accent;
    for (const edge of [left, right]) context.fillRect(edge, top, Math.max(1, Math.round(1.5 * ratio)), bottom - top);
    context.fillText(text, x, (top + bottom) / 2);
  }

  // -------------------------------------------------------------------------------------------------------- arrows

  /** Where an arrow begins or ends: {x, y, seen}. Out of sight, at the nearest edge. */
  anchor({track, index}) {
    const {us, first} = this.grid();
    const x = track.start[index] / us - first;
    const y = (this.rowTop(track) + (ROW - ROW_GAP) / 2) * this.ratio;
    const above = this.line(track.lane.fixed ? HEADER : HEADER + this.pinnedHeight);
    const near = {x: clamp(x, 0, this.columns), y: clamp(y, above, this.canvas.height)};
    return {...near, side: Math.sign(x - near.x), end: Math.sign(y - near.y)};
  }

  /** A curve from a call to its work on the device. */
  drawArrow({from, to}) {
    const {context, theme, ratio} = this;
    const [a, b] = [this.anchor(from), this.anchor(to)];
    if ((a.side && a.side === b.side) || (a.end && a.end === b.end)) return; // both out of sight on one side
    const bend = Math.max(24 * ratio, Math.abs(b.x - a.x) * 0.4);
    const curve = new Path2D();
    curve.moveTo(a.x, a.y);
    curve.bezierCurveTo(a.x + bend, a.y, b.x - bend, b.y, b.x, b.y);
    const head = new Path2D();
    if (!b.side && !b.end) {
      head.moveTo(b.x, b.y);
      head.lineTo(b.x - ARROW_HEAD * ratio, b.y - ARROW_HEAD * 0.6 * ratio);
      head.lineTo(b.x - ARROW_HEAD * ratio, b.y + ARROW_HEAD * 0.6 * ratio);
      head.closePath();
    }
    for (const [colour, width] of [[theme.halo, 4], [theme.accent, 1.6]]) {
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = width * ratio;
      context.stroke(curve);
      context.stroke(head);
      context.fill(head);
    }
  }
}
