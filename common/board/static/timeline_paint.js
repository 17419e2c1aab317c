// Draws a frame of the timeline.
import {clamp, gallop, roundStep, tickLabel} from "./timeline_numbers.js";
import {Stage} from "./timeline_stage.js";
import {FONT, HEADER, LANE_PAD, LEAST_LABEL, ROW, ROW_GAP, STEP_BAND, brief, fitText, shortened} from "./timeline_style.js";

export class Painted extends Stage {

  /** µs in one pixel column, and the number of columns before the canvas's first: columns start at multiples of the
   * former, so that panning does not change which events share a column. */
  grid() {
    const us = (this.view.end - this.view.start) / this.columns;
    return {us, first: Math.floor(this.view.start / us)};
  }

  /** The device pixel line of a y in the lanes. */
  line(y) {
    return Math.round((HEADER + y - this.scroll.scrollTop) * this.ratio);
  }

  /** The y of a track's row; of the lane's first row where the lane is folded. */
  rowTop(track) {
    return track.lane.y + LANE_PAD + (track.lane.open ? track.level * ROW : 0);
  }

  draw() {
    if (this.empty) return;
    this.shown = true;
    this.drawGround();
    this.drawTracks();
    this.drawLabels();
    this.drawMarks();
    this.drawHeader();
    this.placeLanes();
  }

  drawGround() {
    const {context, theme, columns, canvas} = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, columns, canvas.height);
    context.fillStyle = theme.odd;
    this.eachStep((step, left, right, index) => {
      if (index % 2) context.fillRect(left, 0, Math.max(1, right - left), canvas.height);
    });
    context.fillStyle = theme.grid;
    this.ticks = this.findTicks();
    for (const {x} of this.ticks) context.fillRect(x, 0, Math.max(1, Math.round(this.ratio)), canvas.height);
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

  findTicks() {
    const {us, first} = this.grid();
    const {context, ratio, view} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    let step = roundStep(us * 80 * ratio);
    const width = context.measureText(tickLabel(view.end, step)).width;
    step = roundStep(us * Math.max(80 * ratio, width + 24 * ratio));
    const ticks = [];
    for (let k = Math.ceil(view.start / step); k * step <= view.end; k++) {
      ticks.push({x: Math.round((k * step) / us - first), text: tickLabel(k * step, step)});
    }
    return ticks;
  }

  /** Paints the rows that are in sight into `strips`, a line for each, and stretches each line to its row. */
  drawTracks() {
    const {context, strips, columns, ratio} = this;
    const seen = this.visibleTracks();
    const state = [this.view.start, this.view.end, columns, this.tall, this.scroll.scrollTop, this.changes].join();
    if (state !== this.painted) this.paintTracks(seen); // else only a mark or the hover has changed
    this.painted = state;
    context.imageSmoothingEnabled = false;
    const gap = Math.max(1, Math.round(ROW_GAP * ratio));
    seen.forEach((track, row) => {
      const y = this.line(this.rowTop(track));
      const height = this.line(this.rowTop(track) + ROW) - y - gap;
      context.drawImage(strips, 0, row, columns, 1, 0, y, columns, height);
    });
  }

  paintTracks(seen) {
    const {strips, columns} = this;
    for (const list of this.labels) list.length = 0;
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

  visibleTracks() {
    const top = this.scroll.scrollTop;
    const bottom = top + this.tall - HEADER;
    const seen = [];
    for (const lane of this.model.lanes) {
      if (lane.y > bottom || lane.y + lane.height < top) continue;
      for (let level = 0; level < lane.rows; level++) {
        const y = lane.y + LANE_PAD + level * ROW;
        if (y < bottom && y + ROW > top && lane.tracks[level].size) seen.push(lane.tracks[level]);
      }
    }
    return seen;
  }

  /** Paints one track into the pixels from `offset` on. */
  paintTrack(track, offset, {us, first}) {
    const {columns, pixels} = this;
    const {start, end, name, busy, size, lane} = track;
    // Who goes from mark to mark wants to see what is marked: that is not dimmed.
    const searching = this.searching?.marks && lane.kind !== "finding" ? null : this.searching;
    const matches = searching && track.matches;
    const {rgb} = lane.palette;
    const {shade} = this.model;
    const low = first * us;
    const high = (first + columns) * us;
    let match = 0; // where in `matches` the search for this column's begins
    let next = 0;
    const paint = (at, alpha, index) => {
      pixels[offset + at] = ((alpha << 24) | rgb[shade[name[index]]]) >>> 0;
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
        else paint(column, matches ? this.theme.dim : 100 + 155 * density, wide);
        if (end[wide] - start[wide] < us) continue;
      }
      const dim = searching && !searching.match[name[wide]];
      this.paintBox(track, wide, offset, {us, first}, dim);
      if (shownMatch >= 0) paint(column, 255, shownMatch); // the box must not hide it
    }
  }

  /** Paints an event that is wider than a pixel, and keeps its name for `drawLabels` where that may fit. */
  paintBox(track, index, offset, {us, first}, dim) {
    const {columns, pixels, theme, ratio} = this;
    const shade = this.model.shade[track.name[index]];
    const {rgb, ink} = track.lane.palette;
    const left = Math.max(0, Math.floor(track.start[index] / us) - first);
    const right = Math.floor(track.end[index] / us) - first;
    const stop = Math.min(columns, right);
    const colour = rgb[shade];
    const alpha = dim ? theme.dim : 255;
    if (stop <= left) return;
    pixels.fill(((alpha << 24) | colour) >>> 0, offset + left, offset + stop);
    // A fine line between neighbours: the box's last column is left out, or fainter where the box is narrow.
    if (right <= columns && right - left > 1) {
      pixels[offset + right - 1] = right - left > 3 ? 0 : (((alpha * 0.6) << 24) | colour) >>> 0;
    }
    if (stop - left >= LEAST_LABEL * ratio) {
      this.labels[dim ? 2 : ink[shade]].push(track, index, left, stop);
    }
  }

  drawLabels() {
    const {context, ratio, theme} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    ["#000000", "#ffffff", theme.soft].forEach((colour, list) => {
      const labels = this.labels[list];
      context.fillStyle = colour;
      for (let k = 0; k < labels.length; k += 4) {
        const [track, index, left, right] = [labels[k], labels[k + 1], labels[k + 2], labels[k + 3]];
        const text = this.cut(track.name[index], right - left - 9 * ratio);
        if (!text) continue;
        const y = this.line(this.rowTop(track) + (ROW - ROW_GAP) / 2);
        context.fillText(text, left + 4 * ratio, y + 0.5);
      }
    });
  }

  /** A name, cut to `width` device pixels; "" where not even three characters fit. Widths go in steps of 4 pixels. */
  cut(name, width) {
    const room = width < 600 * this.ratio ? Math.floor(width / 4) * 4 : Math.floor(width / 64) * 64;
    const key = name * 65536 + room;
    let text = this.texts.get(key);
    if (text === undefined) {
      const full = shortened(this.model.names[name]);
      text = this.context.measureText(full).width <= room ? full : fitText(this.context, brief(full), room);
      if (this.texts.size > 20000) this.texts.clear();
      this.texts.set(key, text);
    }
    return text;
  }

  /** Lane borders, what is hovered over or selected, and the box being drawn. */
  drawMarks() {
    const {context, theme, columns, ratio} = this;
    context.fillStyle = theme.lane;
    for (const lane of this.model.lanes) {
      context.fillRect(0, this.line(lane.y + lane.height) - 1, columns, Math.max(1, Math.round(ratio)));
    }
    if (this.hover) this.outline(this.hover, theme.text, 1);
    if (this.selection?.kind === "event") this.outline(this.selection, theme.accent, 2);
    if (this.selection?.kind === "box") this.drawBox(this.selection);
    if (this.drag?.kind === "box" && this.drag.moved) this.drawBox(this.boxOf(this.drag));
  }

  /** A frame round an event, at least 3 pixels wide so that it is seen at every zoom. */
  outline({track, index}, colour, thick) {
    if (!track.lane.open && track.level) return;
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
    const {us, first} = this.grid();
    const left = clamp(Math.round(low / us - first), -10, this.columns + 10);
    const right = clamp(Math.round(high / us - first), -10, this.columns + 10);
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

  /** Steps and time axis; drawn last, over what is scrolled under them. */
  drawHeader() {
    const {context, theme, columns, ratio} = this;
    const height = Math.round(HEADER * ratio);
    const band = Math.round(STEP_BAND * ratio);
    const hair = Math.max(1, Math.round(ratio));
    context.fillStyle = theme.header;
    context.fillRect(0, 0, columns, height);
    context.textBaseline = "middle";
    this.drawSteps(band, hair);
    context.fillStyle = theme.line;
    context.fillRect(0, height - hair, columns, hair);
    context.font = `${11 * ratio}px ${FONT}`;
    context.textAlign = "left";
    for (const {x, text} of this.ticks) {
      context.fillStyle = theme.line;
      context.fillRect(x, height - Math.round(8 * ratio), hair, Math.round(8 * ratio));
      context.fillStyle = theme.soft;
      const left = x + 4 * ratio;
      if (left + context.measureText(text).width < columns) context.fillText(text, left, height - 11 * ratio);
    }
  }

  drawSteps(band, hair) {
    const {context, theme, ratio} = this;
    context.font = `600 ${11 * ratio}px ${FONT}`;
    context.textAlign = "center";
    this.eachStep((step, left, right, index) => {
      context.fillStyle = index % 2 ? theme.lane : theme.odd;
      context.fillRect(left, 0, Math.max(1, right - left), band);
      context.fillStyle = theme.line;
      if (right - left > 6) context.fillRect(left, 0, hair, band);
      const from = Math.max(0, left);
      const room = right - from - 8 * ratio;
      if (room < 6 * ratio) return;
      const full = /^\d+$/.test(step.name) ? `step ${step.name}` : shortened(step.name);
      const text = context.measureText(full).width <= room ? full : fitText(context, shortened(step.name), room);
      context.fillStyle = theme.text;
      context.fillText(text, (from + right) / 2, band / 2 + 0.5);
    });
    context.fillStyle = theme.line;
    context.fillRect(0, band, this.columns, hair);
  }

  /** Moves the labels with the lanes; a label stays in sight while any of its lane is. */
  placeLanes() {
    const top = this.scroll.scrollTop;
    if (top === this.placedAt && this.height === this.placedHeight) return;
    [this.placedAt, this.placedHeight] = [top, this.height];
    for (const lane of this.model.lanes) {
      lane.button.style.transform = `translateY(${-top}px)`;
      lane.button.style.paddingTop = `${LANE_PAD - 1 + clamp(top - lane.y, 0, lane.height - ROW - 2 * LANE_PAD)}px`;
    }
  }
}
