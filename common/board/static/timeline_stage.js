// The timeline's elements, its lanes' places and its view.
import {THEME_PROPERTIES, THEMES, SHADES, palette} from "./timeline_colours.js";
import {clamp, grouped} from "./timeline_numbers.js";
import {HEADER, HINT, HINT_MORE, LABELS, LANE_PAD, LEAST_SPAN, NARROW, NOTHING_SELECTED, ROW, SCROLLBAR, STYLE, make, shortened} from "./timeline_style.js";
import {readModel} from "./timeline_tracks.js";

export class Stage {
  /** Fills `element`. `data`: {names, steps, lanes} as the server sends it. */
  constructor(element, data, {onSelect = () => {}, dark = false} = {}) {
    this.element = element;
    this.onSelect = onSelect;
    this.model = readModel(data);
    this.empty = !this.model.events;
    this.view = {start: 0, end: 1}; // µs at the canvas's left and right edges
    this.goal = null; // the view that an animation moves to
    this.selection = null; // {kind: "event", track, index} or {kind: "box", tracks, low, high}
    this.hover = null; // {track, index}
    this.pointer = null; // where the mouse is over the canvas
    this.drag = null; // what the pressed pointer does
    this.searching = null; // {match: for each name 0 or 1, count, us, marks: only findings match, at: the last match}
    this.boxMode = false;
    this.pending = 0; // the animation frame asked for
    this.changes = 0; // counts what changes the rows' pixels, besides the view
    this.labels = [[], [], []]; // names to draw in this frame: in black, in white, in the dim colour
    this.texts = new Map(); // names cut to a width
    this.touches = new Map(); // the pressed pointers' places, by their id
    this.listeners = new AbortController();
    this.build();
    this.setDark(dark);
    if (this.empty) return;
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(this.stage);
    this.layout();
    this.resize();
    this.fit();
  }

  setDark(dark) {
    this.dark = Boolean(dark);
    this.changes++;
    this.theme = THEMES[this.dark ? "dark" : "light"];
    for (const key of THEME_PROPERTIES) this.element.style.setProperty(`--wtl-${key}`, this.theme[key]);
    this.element.style.colorScheme = this.dark ? "dark" : "light";
    for (const lane of this.model.lanes) {
      lane.palette = palette(lane.kind, this.theme.lightness);
      const rgb = lane.palette.rgb[SHADES >> 1];
      if (lane.swatch) lane.swatch.style.background = `rgb(${rgb & 255}, ${(rgb >> 8) & 255}, ${rgb >> 16})`;
    }
    this.request();
  }

  /** Shows the whole trace. */
  fit() {
    if (this.empty) return;
    this.show(this.limits());
  }

  destroy() {
    this.listeners.abort();
    this.resizes?.disconnect();
    cancelAnimationFrame(this.pending);
    this.empty = true; // nothing is drawn from here on
    this.element.replaceChildren();
    this.element.classList.remove("wtl");
    this.element.style.removeProperty("color-scheme");
    for (const key of THEME_PROPERTIES) this.element.style.removeProperty(`--wtl-${key}`);
  }

  // -------------------------------------------------------------------------------------------------- the elements

  build() {
    this.element.classList.add("wtl");
    this.element.replaceChildren();
    make("style", "", STYLE, this.element);
    if (this.empty) {
      make("p", "wtl-empty", "This trace has no events to draw.", this.element);
      return;
    }
    this.stage = make("div", "wtl-stage", "", this.element);
    this.canvas = make("canvas", "wtl-canvas", "", this.stage);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `Timeline of ${grouped(this.model.events)} events. Arrows pan, plus and ` +
      "minus zoom, 0 shows all, F zooms to the selection, Escape clears it.");
    this.context = this.canvas.getContext("2d", {alpha: false});
    this.strips = document.createElement("canvas"); // one line of pixels for each visible row
    this.stripsContext = this.strips.getContext("2d", {willReadFrequently: true}); // kept in main memory
    make("div", "wtl-ring", "", this.stage);
    make("div", "wtl-corner", "Click a lane to fold it", this.stage);
    this.buildLanes();
    this.scroll = make("div", "wtl-scroll", "", this.stage);
    this.scroll.tabIndex = -1; // the canvas's keys scroll too
    this.spacer = make("div", "", "", this.scroll);
    this.tip = make("div", "wtl-tip", "", this.stage);
    this.tip.hidden = true;
    this.buildFoot();
    this.panel = make("div", "wtl-panel", "", this.element);
    this.panel.setAttribute("aria-live", "polite");
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.listen();
  }

  buildLanes() {
    this.laneList = make("div", "wtl-labels", "", this.stage);
    for (const lane of this.model.lanes) {
      lane.button = make("button", "wtl-lane", "", this.laneList);
      lane.button.type = "button";
      lane.button.title = shortened(lane.label);
      lane.swatch = make("i", "", "", lane.button);
      make("span", "", shortened(lane.label), lane.button);
      const {signal} = this.listeners;
      lane.button.addEventListener("click", () => this.fold(lane), {signal});
      lane.button.addEventListener("focus", () => this.scrollTo(lane.y, Math.min(lane.height, 2 * ROW)), {signal});
    }
  }

  buildFoot() {
    const foot = make("div", "wtl-foot", "", this.element);
    const button = (text, title, action) => {
      const node = make("button", "", text, foot);
      node.type = "button";
      node.title = title;
      node.setAttribute("aria-label", title);
      node.addEventListener("click", action, {signal: this.listeners.signal});
      return node;
    };
    this.modeButton = button("Select a box", "Select a box by dragging", () => this.setBoxMode(!this.boxMode));
    this.modeButton.setAttribute("aria-pressed", "false");
    button("−", "Zoom out", () => this.zoom(1.6));
    button("+", "Zoom in", () => this.zoom(1 / 1.6));
    button("Fit", "Show the whole trace", () => this.fit());
    make("p", "", HINT, foot).title = HINT_MORE;
  }

  listen() {
    const {signal} = this.listeners;
    const on = (target, type, handler, options = {}) =>
      target.addEventListener(type, handler.bind(this), {...options, signal});
    on(this.canvas, "wheel", this.onWheel, {passive: false});
    on(this.canvas, "pointerdown", this.onDown);
    on(this.canvas, "pointermove", this.onMove);
    on(this.canvas, "pointerup", this.onUp);
    on(this.canvas, "pointercancel", this.onCancel);
    on(this.canvas, "lostpointercapture", this.onCancel);
    on(this.canvas, "pointerleave", this.onLeave);
    on(this.canvas, "dblclick", this.onDouble);
    on(this.canvas, "keydown", this.onKey);
    on(this.laneList, "wheel", this.onLabelWheel, {passive: false});
    on(this.scroll, "scroll", this.request);
    on(window, "resize", this.resize); // also when the browser's zoom changes the pixel ratio
  }

  /** Sets each lane's place; to be called when one is folded. */
  layout() {
    let y = 0;
    for (const lane of this.model.lanes) {
      lane.y = y;
      lane.rows = lane.open ? lane.tracks.length : 1;
      lane.height = lane.rows * ROW + 2 * LANE_PAD;
      lane.button.style.top = `${y}px`;
      lane.button.style.height = `${lane.height}px`;
      lane.button.setAttribute("aria-expanded", String(lane.open));
      lane.button.classList.toggle("wtl-tall", lane.rows > 1); // room for a label of two lines
      y += lane.height;
    }
    this.height = y;
    this.changes++;
    this.spacer.style.height = `${y}px`;
    // The height where `element` has none of its own; in an element with one, the stage takes what is left.
    this.stage.style.flexBasis = `min(70vh, ${HEADER + y + 2}px)`;
    this.request();
  }

  resize() {
    if (this.empty) return;
    this.labelWidth = this.stage.clientWidth < NARROW[0] ? NARROW[1] : LABELS;
    this.stage.style.setProperty("--wtl-labels", `${this.labelWidth}px`);
    this.width = Math.max(1, this.stage.clientWidth - this.labelWidth - SCROLLBAR);
    this.tall = Math.max(1, this.stage.clientHeight);
    this.ratio = window.devicePixelRatio || 1;
    this.columns = Math.max(1, Math.round(this.width * this.ratio));
    const lines = Math.max(1, Math.round(this.tall * this.ratio));
    if (this.canvas.width !== this.columns || this.canvas.height !== lines) {
      this.canvas.width = this.columns;
      this.canvas.height = lines;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.tall}px`;
      this.texts.clear();
      if (this.context) this.draw(); // now: a resized canvas is blank
    }
  }

  fold(lane) {
    lane.open = !lane.open;
    this.hover = null;
    this.layout();
  }

  // ------------------------------------------------------------------------------------------------------ the view

  /** The widest view: the whole trace and a little on both sides. */
  limits() {
    const {low, high} = this.model;
    const margin = Math.max((high - low) * 0.01, LEAST_SPAN);
    return {start: low - margin, end: high + margin};
  }

  /** The nearest allowed view: neither too wide nor too narrow, nor far beside the trace. */
  allowed({start, end}) {
    const limits = this.limits();
    const whole = limits.end - limits.start;
    const span = clamp(end - start, Math.min(LEAST_SPAN, whole), whole);
    const beside = 0.5 * span * (1 - span / whole); // so that the first event can be centred
    const middle = (start + end) / 2;
    const from = clamp(middle - span / 2, limits.start - beside, limits.end + beside - span);
    return {start: from, end: from + span};
  }

  /** Moves to a view: smoothly where `glide`. */
  show(view, glide = true) {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!this.goal) this.glided = performance.now();
    this.goal = this.allowed(view);
    if (!glide || still || !this.shown) {
      this.view = this.goal;
      this.goal = null;
    }
    this.request();
  }

  /** Makes the view `factor` times as wide, about the time at canvas x (its middle where null). */
  zoom(factor, x = this.width / 2, glide = true) {
    const {start, end} = this.goal || this.view;
    const fixed = start + ((end - start) * x) / this.width;
    const span = clamp((end - start) * factor, LEAST_SPAN, this.limits().end - this.limits().start);
    const from = fixed - (span * x) / this.width;
    this.show({start: from, end: from + span}, glide);
  }

  /** Moves the view by a part of its width. */
  pan(part, glide = true) {
    const {start, end} = this.goal || this.view;
    const by = (end - start) * part;
    this.show({start: start + by, end: end + by}, glide);
  }

  zoomToSelection() {
    const chosen = this.selection;
    if (!chosen) return;
    const low = chosen.kind === "box" ? chosen.low : chosen.track.start[chosen.index];
    const high = chosen.kind === "box" ? chosen.high : chosen.track.end[chosen.index];
    const margin = Math.max((high - low) * 0.1, LEAST_SPAN);
    this.show({start: low - margin, end: high + margin});
  }

  /** Scrolls so that [y, y + height) of the lanes is seen, in the middle where it was hidden. */
  scrollTo(y, height) {
    const room = this.tall - HEADER;
    const top = this.scroll.scrollTop;
    if (y < top || y + height > top + room) this.scroll.scrollTop = y + height / 2 - room / 2;
    this.request();
  }

  /** Brings an event to the middle; zooms where it would be too small to see, or wider than the view. */
  reveal(track, index) {
    if (!track.lane.open && track.level) this.fold(track.lane);
    this.scrollTo(this.rowTop(track), ROW);
    const {start, end} = this.goal || this.view;
    const length = track.end[index] - track.start[index];
    const pixels = (length / (end - start)) * this.width;
    let span = end - start;
    if (pixels < 16 || pixels > this.width * 0.9) span = Math.max(length, 1) * (this.width / 140);
    const middle = (track.start[index] + track.end[index]) / 2;
    this.show({start: middle - span / 2, end: middle + span / 2});
  }

  /** Asks for one frame; nothing is drawn between frames. */
  request() {
    if (!this.pending && !this.empty) this.pending = requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.pending = 0;
    if (this.goal) this.glide(now);
    if (this.pointer && !this.drag) this.findHover();
    this.draw();
    if (this.goal) this.request();
  }

  /** One step towards the goal: the rest shrinks by e every 55 ms. */
  glide(now) {
    const elapsed = clamp(now - this.glided, 4, 50);
    this.glided = now;
    const part = 1 - Math.exp(-elapsed / 55);
    const start = this.view.start + (this.goal.start - this.view.start) * part;
    const end = this.view.end + (this.goal.end - this.view.end) * part;
    const rest = Math.abs(this.goal.start - start) + Math.abs(this.goal.end - end);
    this.view = {start, end};
    if (rest < (this.goal.end - this.goal.start) * 0.002) [this.view, this.goal] = [this.goal, null];
  }
}
