// Draws a frame of the timeline: its ground, its lanes, what is selected, its header.
import {gallop, holds, roundStep, tickLabel} from "./timeline_numbers.js";
import {Marking} from "./timeline_marks.js";
import {
  FONT, HEADER, LANE_PAD, LEAST_LABEL, ROW, ROW_GAP, STEP_BAND, brief, fitText, shortened,
} from "./timeline_style.js";

export class Painted extends Marking {
  draw() {
    if (this.empty) return;
    this.shown = true;
    const seen = this.visibleTracks();
    const {scrollTop} = this.scroll;
    const state = [this.view.start, this.view.end, this.columns, this.tall, scrollTop, this.changes].join();
    if (state !== this.painted) this.paintTracks(seen); // else only a mark or the hover has changed
    this.painted = state;
    const under = HEADER + this.pinnedHeight; // where the scrolling lanes begin
    this.drawLayer(seen, false, under, this.tall - under);
    if (this.pinnedHeight) this.drawLayer(seen, true, HEADER, this.pinnedHeight);
    this.drawSelection();
    this.drawHeader();
    this.placeLanes();
  }

  /** Draws the pinned lanes, or the others, into `height` pixels from `top` on. */
  drawLayer(seen, fixed, top, height) {
    const {context, columns, theme, ratio} = this;
    context.save();
    context.beginPath();
    context.rect(0, this.line(top), columns, this.line(top + height) - this.line(top));
    context.clip();
    this.drawGround();
    this.drawHeadings(fixed);
    this.drawCounters(fixed);
    this.drawTracks(seen, fixed);
    this.drawLabels(fixed);
    context.fillStyle = theme.lane;
    for (const lane of this.model.lanes) {
      if (!lane.shown || lane.fixed !== fixed) continue;
      context.fillRect(0, this.line(this.top(lane) + lane.height) - 1, columns, Math.max(1, Math.round(ratio)));
    }
    this.drawNotLoaded();
    this.drawCounterNotes(fixed);
    this.drawOutlines(fixed);
    if (fixed) {
      context.fillStyle = theme.soft;
      context.fillRect(0, this.line(top + height) - Math.round(2 * ratio), columns, Math.round(2 * ratio));
    }
    context.restore();
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

  /** The tracks that are in sight; those of pinned lanes come first. */
  visibleTracks() {
    const seen = [];
    for (const lane of this.model.lanes) {
      if (!lane.shown) continue;
      const above = lane.fixed ? HEADER : HEADER + this.pinnedHeight;
      const top = this.top(lane);
      if (top > this.tall || top + lane.height < above) continue;
      for (let level = 0; level < lane.rows; level++) {
        const y = top + LANE_PAD + level * ROW;
        if (y < this.tall && y + ROW > above && lane.tracks[level].size) seen.push(lane.tracks[level]);
      }
    }
    return seen;
  }

  /** Stretches each track's line of pixels to its row. */
  drawTracks(seen, fixed) {
    const {context, strips, columns, ratio} = this;
    context.imageSmoothingEnabled = false;
    const gap = Math.max(1, Math.round(ROW_GAP * ratio));
    seen.forEach((track, row) => {
      if (track.lane.fixed !== fixed) return;
      const y = this.line(this.rowTop(track));
      const height = this.line(this.rowTop(track) + ROW) - y - gap;
      context.drawImage(strips, 0, row, columns, 1, 0, y, columns, height);
    });
  }

  /** Paints the tracks into `strips`, a line of pixels for each. */
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

  drawLabels(fixed) {
    const {context, ratio, theme} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    ["#000000", "#ffffff", theme.soft].forEach((colour, list) => {
      const labels = this.labels[list];
      context.fillStyle = colour;
      for (let k = 0; k < labels.length; k += 4) {
        const [track, index, left, right] = [labels[k], labels[k + 1], labels[k + 2], labels[k + 3]];
        const text = track.lane.fixed === fixed ? this.cut(track.name[index], right - left - 9 * ratio) : "";
        if (!text) continue;
        const y = this.line(this.rowTop(track) + (ROW - ROW_GAP) / 2);
        context.fillText(text, left + 4 * ratio, y + 0.5);
      }
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

  /** Paints one track into the pixels from `offset` on. */
  paintTrack(track, offset, {us, first}) {
    const {columns, pixels} = this;
    const {start, end, name, busy, size, lane} = track;
    const {searching} = this;
    const matches = searching && track.lit;
    const {rgb} = lane.palette;
    const shade = lane.shade || this.model.shade;
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
      const dim = matches && !holds(matches, wide);
      this.paintBox(track, wide, offset, {us, first}, dim);
      if (shownMatch >= 0) paint(column, 255, shownMatch); // the box must not hide it
    }
  }

  /** Paints an event that is wider than a pixel, and keeps its name for `drawLabels` where that may fit. */
  paintBox(track, index, offset, {us, first}, dim) {
    const {columns, pixels, theme, ratio} = this;
    const shade = (track.lane.shade || this.model.shade)[track.name[index]];
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
    const {drag, selection} = this;
    if (drag?.kind === "range" && drag.moved) this.drawMeasure(this.rangeOf(drag));
    else if (selection?.kind === "range") this.drawMeasure(selection);
  }

  isLoaded({start, end}) {
    const {loaded} = this.model;
    return !loaded || (start >= loaded.start - 0.002 && end <= loaded.end + 0.002);
  }

  drawSteps(band, hair) {
    const {context, theme, ratio} = this;
    context.font = `600 ${11 * ratio}px ${FONT}`;
    context.textAlign = "center";
    this.eachStep((step, left, right, index) => {
      context.fillStyle = index % 2 ? theme.lane : theme.odd;
      context.fillRect(left, 0, Math.max(1, right - left), band);
      if (!this.isLoaded(step)) this.hatch(left, right, 0, band);
      context.fillStyle = theme.line;
      if (right - left > 6) context.fillRect(left, 0, hair, band);
      const from = Math.max(0, left);
      const room = right - from - 8 * ratio;
      if (room < 6 * ratio) return;
      const full = /^\d+$/.test(step.name) ? `step ${step.name}` : shortened(step.name);
      const text = context.measureText(full).width <= room ? full : fitText(context, shortened(step.name), room);
      if (!this.isLoaded(step)) {
        const width = context.measureText(text).width + 6 * ratio;
        context.fillStyle = theme.header;
        context.fillRect((from + right - width) / 2, 1, width, band - 2);
      }
      context.fillStyle = theme.text;
      context.fillText(text, (from + right) / 2, band / 2 + 0.5);
    });
    context.fillStyle = theme.line;
    context.fillRect(0, band, this.columns, hair);
  }
}
