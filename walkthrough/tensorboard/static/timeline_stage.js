// The timeline's elements, and its view: which times are seen.
import {grouped} from "./elements.js";
import {THEME_PROPERTIES, THEMES, palette, swatchOf} from "./timeline_colours.js";
import {helpDialog} from "./timeline_help.js";
import {readModel} from "./timeline_model.js";
import {clamp, exact} from "./timeline_numbers.js";
import {
  HEADER, HINT, LABELS, LEAST_SPAN, NARROW, NOTHING_SELECTED, SCROLLBAR, STYLE, WIDE, make,
} from "./timeline_style.js";

export class Stage {
  /** Fills `element`. `data`: as the server sends it. */
  constructor(element, data, options = {}) {
    const {onSelect = () => {}, onView = () => {}, onLoad = null, keys = {}, dark = false} = options;
    this.element = element;
    this.onSelect = onSelect;
    this.onView = onView;
    this.onLoad = onLoad;
    this.keys = keys; // further keys: {key: action(event)}
    this.model = readModel(data);
    const {events, steps, lanes} = this.model;
    this.empty = !events && !steps.length && !lanes.some(({counter}) => counter?.time.length);
    this.view = {start: 0, end: 1}; // µs at the canvas's left and right edges
    this.goal = null; // the view that an animation moves to
    // {kind: "event", track, index}, {kind: "box", tracks, low, high} or {kind: "range", low, high}
    this.selection = null;
    this.arrows = []; // [{from, to}]: from a call to the device's work
    this.hover = null; // {track, index}
    this.pointer = null; // where the mouse is over the canvas
    this.drag = null; // what the pressed pointer does
    this.searching = null; // {count, us, marks: only findings match, at: the last match}
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
    this.resize();
    this.layout();
    if (this.model.opening) this.show(this.around(this.model.opening, 0.02));
    else this.fit();
  }

  setDark(dark) {
    this.dark = Boolean(dark);
    this.changes++;
    this.theme = THEMES[this.dark ? "dark" : "light"];
    this.hatching = null;
    for (const key of THEME_PROPERTIES) this.element.style.setProperty(`--wtl-${key}`, this.theme[key]);
    this.element.style.colorScheme = this.dark ? "dark" : "light";
    for (const lane of this.model.lanes) {
      lane.palette = palette(lane.kind, this.theme);
      if (lane.swatch) lane.swatch.style.background = swatchOf(lane);
    }
    this.request();
  }

  /** Shows all that is loaded. */
  fit() {
    if (!this.empty) this.show(this.model.loaded ? this.around(this.model.loaded) : this.limits());
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
      "minus zoom, 0 shows all that is loaded, F zooms to the selection, Escape clears it, ? shows all keys.");
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
    this.panel.tabIndex = -1; // holds the focus when what had it is replaced
    this.panel.setAttribute("role", "region");
    this.panel.setAttribute("aria-label", "Selection");
    this.panel.setAttribute("aria-live", "polite");
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.panel.classList.add("wtl-unused"); // one line high until something is selected
    this.dialog = helpDialog(this.element);
    this.listen();
  }

  /** A button whose `title` also names it for screen readers. */
  button(parent, text, title, action) {
    const node = make("button", "", text, parent);
    node.type = "button";
    node.title = title;
    node.setAttribute("aria-label", title);
    node.addEventListener("click", action, {signal: this.listeners.signal});
    return node;
  }

  buildFoot() {
    const foot = make("div", "wtl-foot", "", this.element);
    const toggle = () => this.setBoxMode(!this.boxMode);
    this.modeButton = this.button(foot, "Select a box", "Select a box by dragging", toggle);
    this.modeButton.setAttribute("aria-pressed", "false");
    this.button(foot, "−", "Zoom out", () => this.zoom(1.6));
    this.button(foot, "+", "Zoom in", () => this.zoom(1 / 1.6));
    this.button(foot, "Fit", "Show all that is loaded", () => this.fit());
    this.button(foot, "Reset lanes", "Unfold the lanes and put them in their first order", () => this.resetLanes());
    this.button(foot, "Help", "Help: keyboard and mouse", () => this.help());
    make("p", "", HINT, foot);
  }

  help() {
    if (!this.dialog.open) this.dialog.showModal();
  }

  resize() {
    if (this.empty) return;
    const room = this.stage.clientWidth;
    this.labelWidth = room < NARROW[0] ? NARROW[1] : room < WIDE[0] ? LABELS : WIDE[1];
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
      this.hatching = null;
      if (this.shown) {
        this.layout();
        this.draw(); // now: a resized canvas is blank
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------ the view

  /** The widest view: the whole trace and a little on both sides. */
  limits() {
    return this.around({start: this.model.low, end: this.model.high});
  }

  /** A span of time and a little on both sides. */
  around({start, end}, part = 0.01) {
    const margin = Math.max((end - start) * part, LEAST_SPAN);
    return {start: start - margin, end: end + margin};
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
    delete this.canvas.dataset.seen;
    this.onView(this.goal);
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
    else this.canvas.dataset.seen = `${exact(this.view.start)} ${exact(this.view.end)}`; // nothing moves
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

  /** The canvas x and y of a pointer event, in CSS pixels. */
  place(event) {
    const frame = this.canvas.getBoundingClientRect();
    return {x: event.clientX - frame.left, y: event.clientY - frame.top};
  }

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
}
