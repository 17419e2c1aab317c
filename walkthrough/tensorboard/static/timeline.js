// A timeline of a profiler trace: its lanes' labels, what is seen of it, its mouse and keys, its selection and search.
//
//     new Timeline(element, data, {onView({start, end}) {}, onSelect(address) {}, onLoad(step) {}, keys: {}, dark: false})
//
// `data` is the answer of the server's route /lanes (see walkthrough/trace/timeline.py); times are in µs. onView is
// called whenever the view moves; onSelect with what `selectAt` takes, or null; onLoad with a step that is not loaded and
// was clicked; keys: further keys, {key: action(event)}.
import {duration, grouped, h, quantity} from "./elements.js";
import {Drawing} from "./timeline_draw.js";
import {
  addressOf, atAddress, clamp, exact, fullLabel, lowerBound, markMatches, matchBeside, matchesInOrder, moment, nameOf, readModel,
  timesOf,
} from "./timeline_model.js";
import {arrowsOf, eventPanel, rangePanel, relationsOf} from "./timeline_select.js";
import {HEADER, LANE_PAD, ROW, STEP_BAND, shortened, swatchOf} from "./timeline_style.js";

const LEAST_SPAN = 0.02; // µs that the view shows at most zoom
const CLICK_SLOP = 4; // a pointer that moves less than this has clicked
const LEAST_SEEN = 3; // pixels: a narrower event is zoomed to when it is selected from elsewhere
const HINT = "Wheel: zoom. Drag: pan. Drag on the time axis: measure. Keys: W A S D, arrows, F, M, 0, Esc.";
const NOTHING_SELECTED = "Click an event to see its launch, its operators and its source lines here. " +
  "A drag on the time axis measures.";
const HELP = [
  ["W, S or + −", "zoom in, zoom out (at the pointer)"],
  ["A, D or ← →", "pan to the left, to the right"],
  ["↑ ↓, Page up, Page down", "scroll the lanes"],
  ["F", "zoom to the selection"],
  ["M", "measure the selection: the busy time of every lane in its range"],
  ["0, Home", "show all that is loaded"],
  ["/", "search; Enter goes to the next event, Shift + Enter to the one before"],
  ["N, Shift + N", "next event found, the one before"],
  ["Escape", "clear the selection"],
  ["?", "this help"],
  ["Wheel, Shift + wheel", "zoom, scroll the lanes"],
  ["Drag", "pan; on the time axis: measure a range"],
  ["Click on an event", "select it: its launch, operators, Python functions and GPU work are shown below"],
  ["Double click on an event", "zoom to it"],
  ["Click on a step", "zoom to it, or load it where it is not loaded"],
  ["Click on a label", "fold or unfold a lane or a group"],
];

export class Timeline {
  constructor(element, data, {onSelect, onView, onLoad, argumentsOf, keys = {}, dark = false}) {
    Object.assign(this, {element, onSelect, onView, onLoad, argumentsOf, keys, model: readModel(data)});
    this.selected = null; // the event whose panel is shown
    this.range = null; // or the range that is measured: {low, high}
    this.arrows = []; // [{from, to}]: from a call to the device's work
    this.hover = null; // an event
    this.pointer = null; // where the mouse is over the canvas
    this.drag = null; // what the pressed pointer does
    this.found = null; // {count, us, inOrder: all events found, current: the last of them gone to}
    this.listeners = new AbortController();
    this.build(dark);
    this.listen();
    this.layout();
    this.resize();
    if (this.model.opening) this.show(this.around(this.model.opening, 0.02));
    else this.fit();
  }

  destroy() {
    this.listeners.abort();
    this.resizes.disconnect();
    cancelAnimationFrame(this.pending);
  }

  // -------------------------------------------------------------------------------------------------- the elements

  build(dark) {
    const button = (text, title, onclick) => h("button", {type: "button", title, "aria-label": title, onclick}, text);
    this.labels = h("div", {class: "wtl-labels", role: "group", "aria-label": "Lanes"},
      h("div", {class: "wtl-corner"}, "Click a lane to fold it"));
    this.canvas = h("canvas", {class: "wtl-canvas", tabindex: 0, role: "application",
      "aria-label": `Timeline of ${grouped(this.model.events)} events. Arrows pan, plus and minus zoom, 0 shows all that is ` +
        "loaded, F zooms to the selection, Escape clears it, ? shows all keys."});
    this.stage = h("div", {class: "wtl-stage"}, this.labels, this.canvas);
    this.tip = h("div", {class: "wtl-tip", hidden: ""});
    this.help = h("details", {}, h("summary", {}, "Keyboard and mouse"),
      h("dl", {}, ...HELP.flatMap(([what, does]) => [h("dt", {}, what), h("dd", {}, does)])));
    this.panel = h("div", {class: "wtl-panel wtl-unused", tabindex: -1, role: "region", "aria-label": "Selection",
      "aria-live": "polite"}, h("p", {}, NOTHING_SELECTED)); // unused: one line high
    this.element.classList.add("wtl");
    this.element.append(this.stage, this.tip, h("div", {class: "wtl-foot"},
      button("−", "Zoom out", () => this.zoom(1.6)), button("+", "Zoom in", () => this.zoom(1 / 1.6)),
      button("Fit", "Show all that is loaded", () => this.fit()), h("p", {}, HINT), this.help), this.panel);
    this.drawing = new Drawing(this.stage, this.canvas, this.model, dark);
    for (const group of this.drawing.groups) {
      this.buildLabel(group, "wtl-group", group.name, group.name);
      for (const lane of group.lanes) {
        this.buildLabel(lane, "wtl-lane", lane.short, fullLabel(lane) + (lane.title ? ` (${lane.title})` : ""),
          h("i", {style: `background:${swatchOf(lane)}`}));
      }
    }
  }

  /** The label of a lane or a group, which folds it. */
  buildLabel(item, className, text, title, swatch = null) {
    const fold = () => {
      item.open = !item.open;
      this.layout();
    };
    item.fold = h("button", {class: "wtl-fold", type: "button", title: shortened(title, 400), onclick: fold},
      h("div", {}, swatch, h("span", {}, shortened(text))));
    item.element = h("div", {class: className}, item.fold);
    this.labels.append(item.element);
  }

  /** Places the lanes, after one has been folded or unfolded too. */
  layout() {
    this.drawing.layout();
    this.hover = null;
    for (const group of this.drawing.groups) {
      group.fold.setAttribute("aria-expanded", group.open);
      for (const {element, fold, open, shown, height} of group.lanes) {
        element.hidden = !shown;
        element.style.height = `${height}px`;
        element.classList.toggle("wtl-tall", height > 2 * ROW); // room for a label of two lines
        fold.setAttribute("aria-expanded", open);
      }
    }
    this.request();
  }

  resize() {
    this.drawing.resize(this.stage.clientWidth - this.labels.offsetWidth, this.stage.clientHeight);
    this.draw(); // now: a resized canvas is blank
  }

  /** Ready for the keys, unless the reader is in a field. */
  focus() {
    if (!document.activeElement?.matches("input, select, textarea")) {
      this.canvas.focus({preventScroll: true, focusVisible: false});
    }
  }

  // ------------------------------------------------------------------------------------------------------ the view

  get view() {
    return this.drawing.view;
  }

  /** The widest view: the whole trace and a little on both sides. */
  limits() {
    return this.around({start: this.model.low, end: this.model.high});
  }

  /** A span of time and a little on both sides. */
  around({start, end}, part = 0.01) {
    const margin = Math.max((end - start) * part, LEAST_SPAN);
    return {start: start - margin, end: end + margin};
  }

  /** Moves to a view, or to the nearest that is neither too wide nor too narrow, nor far outside the trace. */
  show({start, end}) {
    const limits = this.limits();
    const whole = limits.end - limits.start;
    const span = clamp(end - start, Math.min(LEAST_SPAN, whole), whole);
    const beside = 0.5 * span * (1 - span / whole); // so that the first event can be centred
    const from = clamp((start + end - span) / 2, limits.start - beside, limits.end + beside - span);
    this.drawing.view = {start: from, end: from + span};
    delete this.canvas.dataset.seen;
    this.onView(this.view);
    this.request();
  }

  /** Shows all that is loaded. */
  fit() {
    this.show(this.model.loaded ? this.around(this.model.loaded) : this.limits());
  }

  /** Makes the view `factor` times as wide, about the time at canvas x. */
  zoom(factor, x = this.drawing.width / 2) {
    const {start, end} = this.view;
    const limits = this.limits();
    const span = clamp((end - start) * factor, LEAST_SPAN, limits.end - limits.start);
    const from = start + ((end - start - span) * x) / this.drawing.width;
    this.show({start: from, end: from + span});
  }

  /** Moves the view by a part of its width. */
  pan(part) {
    const {start, end} = this.view;
    const by = (end - start) * part;
    this.show({start: start + by, end: end + by});
  }

  scrollBy(pixels) {
    this.stage.scrollTop += pixels;
  }

  /** Asks for one frame; nothing is drawn between frames. */
  request() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      if (this.pointer && !this.drag) this.findHover();
      this.draw();
      this.canvas.dataset.seen = `${exact(this.view.start)} ${exact(this.view.end)}`;
    });
  }

  draw() {
    const range = this.drag?.axis && this.drag.moved ? this.rangeOf(this.drag) : this.range;
    this.drawing.draw({hover: this.hover, selected: this.selected, arrows: this.arrows, range});
  }

  // ------------------------------------------------------------------------------------------------ mouse and keys

  listen() {
    const on = (target, type, handler, options) => target.addEventListener(type, handler.bind(this),
      {...options, signal: this.listeners.signal});
    on(this.canvas, "wheel", this.onWheel, {passive: false});
    on(this.canvas, "pointerdown", this.onDown);
    on(this.canvas, "pointermove", this.onMove);
    on(this.canvas, "pointerup", this.onUp);
    on(this.canvas, "lostpointercapture", this.endDrag);
    on(this.canvas, "pointerleave", this.onLeave);
    on(this.canvas, "dblclick", (event) => this.drawing.eventAt(this.place(event)) && this.zoomToSelection());
    on(document, "keydown", this.onKey);
    on(this.stage, "scroll", this.request);
    on(window, "resize", this.resize); // also when the browser's zoom changes the pixel ratio
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(this.stage);
  }

  /** The canvas x and y of a pointer event, in CSS pixels. */
  place(event) {
    const {left, top} = this.canvas.getBoundingClientRect();
    return {x: event.clientX - left, y: event.clientY - top};
  }

  onWheel(event) {
    event.preventDefault();
    if (this.drag) return;
    const unit = [1, 16, this.drawing.tall][event.deltaMode];
    const [across, along] = [event.deltaX * unit, event.deltaY * unit];
    const speed = event.ctrlKey ? 0.01 : 0.0018; // Ctrl: two fingers on a touchpad, in small steps
    if (event.shiftKey) this.scrollBy(along || across); // browsers turn Shift + wheel sideways
    else if (Math.abs(across) > Math.abs(along)) this.pan(across / this.drawing.width);
    else this.zoom(Math.exp(clamp(along, -400, 400) * speed), this.place(event).x);
  }

  onDown(event) {
    if (event.button > 1 || this.drag) return;
    event.preventDefault(); // no text selection; so the focus is ours to set
    this.canvas.focus({preventScroll: true, focusVisible: false});
    this.canvas.setPointerCapture(event.pointerId);
    const from = this.place(event);
    const axis = event.button === 0 && from.y >= STEP_BAND && from.y < HEADER;
    this.drag = {id: event.pointerId, axis, moved: false, from, to: from, view: this.view, time: this.drawing.timeAt(from.x),
      top: this.stage.scrollTop};
  }

  onMove(event) {
    const {drag} = this;
    this.pointer = this.place(event);
    this.request();
    if (event.pointerId !== drag?.id) return;
    drag.to = this.pointer;
    const [across, along] = [drag.to.x - drag.from.x, drag.to.y - drag.from.y];
    if (!drag.moved && Math.hypot(across, along) < CLICK_SLOP) return;
    drag.moved = true;
    this.hover = null;
    this.tip.hidden = true;
    this.canvas.dataset.cursor = drag.axis ? "range" : "drag";
    if (drag.axis) return;
    const by = (across / this.drawing.width) * (drag.view.end - drag.view.start);
    this.show({start: drag.view.start - by, end: drag.view.end - by});
    this.stage.scrollTop = drag.top - along;
  }

  onUp(event) {
    const {drag} = this;
    if (event.pointerId !== drag?.id) return;
    this.endDrag();
    if (drag.moved && drag.axis) this.selectRange(this.rangeOf(drag));
    else if (!drag.moved && event.button === 0) this.click(drag.to);
  }

  endDrag() {
    this.drag = null;
    this.request();
  }

  onLeave() {
    this.pointer = null;
    this.hover = null;
    this.tip.hidden = true;
    this.request();
  }

  click(place) {
    const step = this.drawing.stepAt(place);
    const event = this.drawing.eventAt(place);
    if (step && !this.drawing.isLoaded(step)) this.onLoad(step);
    else if (step) this.show(this.around(step, 0.02));
    else if (event) this.select(event);
    else if (place.y >= HEADER) this.clear();
  }

  /** Keys work wherever the focus is, except in a field. */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const [zoomIn, zoomOut] = [1 / 1.4, 1.4].map((factor) => () => this.zoom(factor, this.pointer?.x));
    const [left, right] = [-0.15, 0.15].map((part) => () => this.pan(part));
    const page = this.drawing.tall - HEADER - ROW;
    const actions = {
      ArrowLeft: left, a: left, ArrowRight: right, d: right, "+": zoomIn, "=": zoomIn, w: zoomIn, "-": zoomOut, s: zoomOut,
      ArrowUp: () => this.scrollBy(-3 * ROW), ArrowDown: () => this.scrollBy(3 * ROW),
      PageUp: () => this.scrollBy(-page), PageDown: () => this.scrollBy(page),
      0: () => this.fit(), Home: () => this.fit(), f: () => this.zoomToSelection(), m: () => this.measureSelection(),
      "?": () => this.help.toggleAttribute("open"), Escape: () => (this.drag ? this.endDrag() : this.clear()),
      ...this.keys,
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  }

  findHover() {
    const {x, y} = this.pointer;
    this.hover = this.drawing.eventAt(this.pointer);
    const axis = y >= STEP_BAND && y < HEADER;
    this.canvas.dataset.cursor = axis ? "range" : this.hover || this.drawing.stepAt(this.pointer) ? "event" : "pan";
    const lines = this.hover ? this.eventTip(this.hover) : this.counterTip(this.pointer);
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(lines[0], h("small", {}, lines[1]));
    const canvas = this.canvas.getBoundingClientRect();
    const {offsetWidth: width, offsetHeight: height} = this.tip;
    const beside = canvas.left + x + 14 + width < innerWidth ? x + 14 : x - 10 - width;
    const below = canvas.top + y + 18 + height < innerHeight ? y + 18 : y - 8 - height;
    Object.assign(this.tip.style, {left: `${canvas.left + beside}px`, top: `${canvas.top + below}px`});
  }

  eventTip(event) {
    const [start, , length] = timesOf(event);
    return [shortened(nameOf(this.model, event)),
      `${duration(length)} from ${moment(start)} · ${shortened(event.track.lane.label)}`];
  }

  /** A counter's value under the pointer. */
  counterTip({x, y}) {
    const lane = this.drawing.laneAt(y);
    if (!lane?.counter) return null;
    const {time, value, most} = lane.counter;
    const index = lowerBound(time, this.drawing.timeAt(x)) - 1;
    return index < 0 ? null : [`${shortened(lane.label)}: ${quantity(value[index], lane.unit)}`,
      `since ${moment(time[index])} · max. ${quantity(most, lane.unit)}`];
  }

  // ----------------------------------------------------------------------------------------------------- selecting

  select(event) {
    const relations = relationsOf(this.model, event);
    this.change({selected: event, arrows: arrowsOf(this.model, event, relations)},
      eventPanel(this.model, event, relations, (other) => this.goTo(other), this.argumentsOf));
    this.onSelect(addressOf(event));
  }

  selectRange(range) {
    if (!(range.high > range.low)) return;
    this.change({range}, rangePanel(this.drawing.groups.flatMap(({lanes}) => lanes), range));
    this.onSelect(null);
  }

  clear() {
    if (!this.selectedTimes()) return;
    this.change({}, [h("p", {}, NOTHING_SELECTED)]);
    this.onSelect(null);
  }

  /** Changes the selection and what the panel says; the focus stays in the panel where it was in what is replaced. */
  change({selected = null, range = null, arrows = []}, content) {
    Object.assign(this, {selected, range, arrows});
    const focused = this.panel.contains(document.activeElement);
    this.panel.replaceChildren(...content);
    this.panel.scrollTop = 0;
    if (focused) this.panel.focus({preventScroll: true});
    if (this.panel.classList.contains("wtl-unused")) { // the first selection: then the lanes have less room
      this.panel.classList.remove("wtl-unused");
      this.resize();
      if (selected) this.bringRow(selected.track);
    }
    this.request();
  }

  /** The range that a drag on the time axis measures. */
  rangeOf({time, to}) {
    const [low, high] = [time, this.drawing.timeAt(clamp(to.x, 0, this.drawing.width))].sort((a, b) => a - b);
    return {low, high};
  }

  /** The times of the selection: [low, high], or null. */
  selectedTimes() {
    if (this.range) return [this.range.low, this.range.high];
    return this.selected && timesOf(this.selected).slice(0, 2);
  }

  measureSelection() {
    const [low, high] = this.selectedTimes() || [];
    this.selectRange({low, high});
  }

  zoomToSelection() {
    const [start, end] = this.selectedTimes() || [];
    if (start !== undefined) this.show(this.around({start, end}, 0.1));
  }

  /** Selects an event and brings it into sight; the view stays where the event is seen in it. */
  goTo(event) {
    const [start, , length] = timesOf(event);
    if (start < this.view.start || start > this.view.end || this.pixels(length) < LEAST_SEEN) this.reveal(event);
    else this.bringRow(event.track);
    this.select(event);
  }

  pixels(us) {
    return (us / (this.view.end - this.view.start)) * this.drawing.width;
  }

  /** Unfolds a track's row and scrolls to it, to the middle where it was hidden. */
  bringRow({lane, level}) {
    const group = this.drawing.groups.find(({name}) => name === lane.group);
    if (!lane.shown || (!lane.open && level)) {
      group.open = true;
      lane.open ||= level > 0;
      this.layout();
    }
    const y = lane.y + LANE_PAD + (lane.open ? level * ROW : 0);
    const room = this.stage.clientHeight - HEADER;
    const {scrollTop} = this.stage;
    if (y < scrollTop || y + ROW > scrollTop + room) this.stage.scrollTop = y + (ROW - room) / 2;
  }

  /** Brings an event to the middle; zooms where it would be too small to see, or wider than the view. */
  reveal(event) {
    this.bringRow(event.track);
    const [start, end, length] = timesOf(event);
    const pixels = this.pixels(length);
    const fits = pixels >= 16 && pixels <= this.drawing.width * 0.9;
    const span = fits ? this.view.end - this.view.start : Math.max(length, 1) * (this.drawing.width / 140);
    this.show({start: (start + end - span) / 2, end: (start + end + span) / 2});
  }

  /** Selects the event at an address ("<lane id>@<start>") without moving the view. */
  selectAt(address) {
    const event = atAddress(this.model, address);
    if (!event) return;
    this.bringRow(event.track);
    this.select(event);
  }

  // -------------------------------------------------------------------------------------------------------- search

  /** Finds the events whose name contains `text`, or matches it as a regular expression, and that last at least `least`
   * µs; dims the others. Without both it clears. Returns {count, us}, and `error` where the expression is invalid. */
  search(text, {regex = false, least = 0} = {}) {
    this.found = null;
    for (const track of this.model.tracks) track.matches = null;
    this.drawing.changes++;
    this.request();
    let test = (name) => name.toLowerCase().includes(text.toLowerCase());
    try {
      const expression = regex && new RegExp(text, "i");
      if (regex) test = (name) => expression.test(name);
    } catch {
      return {count: 0, us: 0, error: "this is not a regular expression"};
    }
    if (text || least) this.found = {...markMatches(this.model, test, least), inOrder: null, current: null};
    return this.found || {count: 0, us: 0};
  }

  /** Selects and centres the next match (+1) or the one before (-1), in the order of time, round the end. Returns that
   * it is match 3 (`at`) of 20 (`of`); null without matches. */
  next(direction = 1) {
    const {found} = this;
    if (!found?.count) return null;
    found.inOrder ||= matchesInOrder(this.model);
    const at = matchBeside(this.model, found.inOrder, found.current || this.selected, direction);
    found.current = found.inOrder[at];
    this.reveal(found.current);
    this.select(found.current);
    return {at: at + 1, of: found.count};
  }
}
