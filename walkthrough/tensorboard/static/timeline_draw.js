// The timeline's elements, and its view: which times are seen.
import {duration, grouped, quantity} from "./elements.js";
import {helpDialog} from "./timeline.js";
import {clamp, exact, fullLabel, gallop, holds, lowerBound, readModel, roundStep, tickLabel} from "./timeline_model.js";
import {
  brief,
  COUNTER,
  cssColour,
  fitText,
  FONT,
  HEADER,
  HEADING,
  HINT,
  LABELS,
  LANE_PAD,
  LEAST_LABEL,
  LEAST_SPAN,
  make,
  NARROW,
  NOTHING_SELECTED,
  palette,
  ROW,
  ROW_GAP,
  SCROLLBAR,
  shortened,
  STEP_BAND,
  STYLE,
  swatchOf,
  THEME_PROPERTIES,
  THEMES,
  WIDE,
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

// The timeline's lanes: their groups and their places, how they fold, move and are pinned to the top.
const STORE = "walkthrough-lanes"; // the arrangement in the session's memory, by lane ids
const DEEP = 3; // levels: deeper lanes of threads other than the main one start folded
const MOST_PINNED = 0.6; // of the height: where the pinned lanes need more, they scroll with the others
const FOLDING = new Set(["python", "runtime"]);

export class Lanes extends Stage {
  /** The groups of lanes in their order, as the reader has arranged them. */
  arrange() {
    const memory = remembered();
    const groups = new Map();
    for (const lane of this.model.lanes) {
      if (!groups.has(lane.group)) groups.set(lane.group, {name: lane.group, lanes: [], open: true});
      groups.get(lane.group).lanes.push(lane);
      const deep = FOLDING.has(lane.kind) && lane.tracks.length > DEEP && !lane.group.includes("main thread");
      lane.open = memory.open?.[lane.id] ?? !deep;
      lane.pinned = memory.pinned?.includes(lane.id) || false;
    }
    this.groups = inOrder([...groups.values()], memory.groups || [], ({name}) => name);
    for (const group of this.groups) {
      group.open = !memory.folded?.includes(group.name);
      group.lanes = inOrder(group.lanes, memory.order || [], ({id}) => id);
    }
    const place = (lane) => memory.pinned?.indexOf(lane.id) ?? -1;
    this.pinnedLanes = this.model.lanes.filter((lane) => lane.pinned).sort((a, b) => place(a) - place(b));
  }

  /** Keeps the arrangement; of lanes that this trace does not have, what was kept before. */
  remember() {
    const before = remembered();
    const here = new Set(this.model.lanes.map(({id}) => id));
    const names = new Set(this.groups.map(({name}) => name));
    const others = (list, known) => (list || []).filter((one) => !known.has(one));
    const lanes = this.groups.flatMap((group) => group.lanes);
    const memory = {
      order: [...lanes.map(({id}) => id), ...others(before.order, here)],
      groups: [...names, ...others(before.groups, names)],
      pinned: [...this.pinnedLanes.map(({id}) => id), ...others(before.pinned, here)],
      folded: [...this.groups.filter(({open}) => !open).map(({name}) => name), ...others(before.folded, names)],
      open: {...before.open, ...Object.fromEntries(lanes.map(({id, open}) => [id, open]))},
    };
    try {
      sessionStorage.setItem(STORE, JSON.stringify(memory));
    } catch {
      // no memory: the arrangement lasts as long as the page
    }
  }

  resetLanes() {
    try {
      sessionStorage.removeItem(STORE);
    } catch {
      // as above
    }
    this.arrange();
    this.placeElements();
    this.layout();
  }

  // -------------------------------------------------------------------------------------------------- the elements

  buildLanes() {
    this.laneList = make("div", "wtl-labels", "", this.stage);
    this.laneList.setAttribute("role", "group");
    this.laneList.setAttribute("aria-label", "Lanes");
    this.pinnedList = make("div", "wtl-pinned", "", this.laneList);
    this.scrolled = make("div", "wtl-scrolled", "", this.laneList);
    this.inner = make("div", "", "", this.scrolled);
    this.arrange();
    for (const group of this.groups) if (group.name) this.buildHeading(group);
    for (const lane of this.model.lanes) this.buildLane(lane);
    this.placeElements();
  }

  buildHeading(group) {
    group.element = make("div", "wtl-group");
    group.fold = this.button(group.element, "", shortened(group.name), () => this.foldGroup(group));
    group.fold.className = "wtl-fold";
    group.fold.removeAttribute("aria-label"); // its text names it
    make("span", "", shortened(group.name), group.fold);
    this.buildTools(group, `the group ${shortened(group.name)}`, (by) => this.moveGroup(group, by));
    this.listenTo(group);
  }

  buildLane(lane) {
    lane.element = make("div", "wtl-lane");
    lane.fold = this.button(lane.element, "", titleOf(lane), () => this.fold(lane));
    lane.fold.className = "wtl-fold";
    lane.fold.removeAttribute("aria-label");
    lane.swatch = make("i", "", "", lane.fold);
    make("span", "", shortened(lane.short), lane.fold);
    lane.group_label = make("em", "", lane.group ? shortened(lane.group) : "", lane.fold); // seen where it is pinned
    const tools = this.buildTools(lane, shortened(fullLabel(lane)), (by) => this.move(lane, by));
    lane.pin = this.button(tools, "pin", `Pin ${shortened(fullLabel(lane))} to the top`, () => this.pinLane(lane));
    lane.pin.className = "wtl-pin";
    this.listenTo(lane);
  }

  buildTools(item, name, move) {
    const tools = make("span", "wtl-tools", "", item.element);
    this.button(tools, "↑", `Move ${name} up`, () => move(-1));
    this.button(tools, "↓", `Move ${name} down`, () => move(1));
    item.move = move;
    return tools;
  }

  listenTo(item) {
    const {signal} = this.listeners;
    item.fold.addEventListener("focus", () => this.scrollToItem(item), {signal});
    item.fold.addEventListener("keydown", (event) => this.onLaneKey(event, item), {signal});
  }

  /** On a lane's label: the arrows go to the next label, with Alt they move the lane; P pins it. */
  onLaneKey(event, item) {
    const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (event.ctrlKey || event.metaKey) return;
    if (by && event.altKey) item.move(by);
    else if (by) {
      const labels = [...this.laneList.querySelectorAll(".wtl-fold")].filter((one) => one.offsetParent);
      labels[labels.indexOf(item.fold) + by]?.focus();
    } else if (event.key.toLowerCase() === "p" && item.pin) this.pinLane(item);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Puts the labels into the order of the lanes, so that Tab goes from top to bottom. */
  placeElements() {
    const focused = document.activeElement;
    const scrolled = [];
    for (const group of this.groups) {
      if (group.element) scrolled.push(group.element);
      scrolled.push(...group.lanes.filter(({pinned}) => !pinned).map(({element}) => element));
    }
    this.pinnedList.replaceChildren(...this.pinnedLanes.map(({element}) => element));
    this.inner.replaceChildren(...scrolled);
    if (this.laneList.contains(focused) && document.activeElement !== focused) focused.focus({preventScroll: true});
  }

  // ---------------------------------------------------------------------------------------------------- the places

  /** Sets each lane's place: pinned lanes stay under the header, the others scroll below them. */
  layout() {
    let y = 0;
    for (const lane of this.pinnedLanes) y = this.placeLane(lane, y);
    const stays = y <= MOST_PINNED * (this.tall - HEADER);
    this.pinnedHeight = stays ? y : 0;
    if (stays) y = 0;
    for (const lane of this.model.lanes) lane.fixed = stays && lane.pinned;
    this.pinnedList.classList.toggle("wtl-fixed", stays);
    for (const group of this.groups) {
      group.y = y;
      const rest = group.lanes.filter(({pinned}) => !pinned);
      group.height = group.element && rest.length ? HEADING : 0;
      y += group.height;
      if (group.element) {
        group.element.hidden = !group.height;
        group.element.style.top = `${group.y}px`;
        group.fold.setAttribute("aria-expanded", String(group.open));
      }
      for (const lane of rest) y = this.placeLane(lane, y, group.open);
    }
    this.height = y;
    this.changes++;
    this.placedAt = null;
    this.stage.style.setProperty("--wtl-pinned", `${this.pinnedHeight}px`);
    this.spacer.style.height = `${y}px`;
    // The height where `element` has none of its own; in an element with one, the stage takes what is left.
    this.stage.style.flexBasis = `min(70vh, ${HEADER + this.pinnedHeight + y + 2}px)`;
    this.request();
  }

  /** Places one lane at y; returns where the next begins. */
  placeLane(lane, y, shown = true) {
    lane.y = y;
    lane.shown = shown;
    lane.rows = !shown || lane.counter ? 0 : lane.open ? lane.tracks.length : 1;
    const inside = lane.counter && lane.open ? COUNTER : Math.max(1, lane.rows) * ROW;
    lane.height = shown ? inside + 2 * LANE_PAD : 0;
    lane.element.hidden = !shown;
    lane.element.style.top = `${y}px`;
    lane.element.style.height = `${lane.height}px`;
    lane.element.classList.toggle("wtl-tall", lane.height > 2 * ROW); // room for a label of two lines
    lane.group_label.hidden = !lane.pinned || !lane.group;
    lane.fold.setAttribute("aria-expanded", String(lane.open));
    lane.pin.setAttribute("aria-pressed", String(lane.pinned));
    lane.pin.textContent = lane.pinned ? "unpin" : "pin";
    return y + lane.height;
  }

  /** The y on the canvas of a lane or of a group's heading. */
  top(item) {
    return HEADER + item.y + (item.fixed ? 0 : this.pinnedHeight - this.scroll.scrollTop);
  }

  /** The y on the canvas of a track's row; of the lane's first row where the lane is folded, of its group's heading
   * where that is. */
  rowTop(track) {
    const {lane} = track;
    return this.top(lane) + LANE_PAD + (lane.open && lane.shown ? track.level * ROW : 0) - (lane.shown ? 0 : ROW);
  }

  /** Moves the labels with the lanes; a label stays in sight while any of its lane is. */
  placeLanes() {
    const {scrollTop} = this.scroll;
    if (scrollTop === this.placedAt) return;
    this.placedAt = scrollTop;
    this.inner.style.transform = `translateY(${-scrollTop}px)`;
    if (!this.pinnedHeight) this.pinnedList.style.transform = `translateY(${-scrollTop}px)`;
    else this.pinnedList.style.transform = "";
    for (const lane of this.model.lanes) {
      if (!lane.shown) continue;
      const hidden = lane.fixed ? 0 : clamp(scrollTop - lane.y, 0, lane.height - ROW - 2 * LANE_PAD);
      lane.element.style.paddingTop = `${LANE_PAD - 1 + hidden}px`;
    }
  }

  /** Scrolls so that `height` pixels at `y` of the scrolling lanes are seen, in the middle where they were hidden. */
  scrollTo(y, height) {
    const room = this.tall - HEADER - this.pinnedHeight;
    const top = this.scroll.scrollTop;
    if (y < top || y + height > top + room) this.scroll.scrollTop = y + height / 2 - room / 2;
    this.request();
  }

  scrollToItem(item) {
    if (!item.fixed) this.scrollTo(item.y, Math.min(item.height, 2 * ROW));
    this.scrolled.scrollTop = this.laneList.scrollTop = 0; // the browser's own scrolling to the focus
  }

  // ----------------------------------------------------------------------------------------- how the reader arranges

  arranged() {
    this.hover = null;
    this.layout();
    this.remember();
  }

  fold(lane) {
    lane.open = !lane.open;
    this.arranged();
  }

  foldGroup(group) {
    group.open = !group.open;
    this.arranged();
  }

  /** Unfolds what hides a track. */
  unfold({lane, level}) {
    const group = this.groups.find(({name}) => name === lane.group);
    if (!lane.shown) group.open = true;
    if (!lane.open && level) lane.open = true;
    this.arranged();
  }

  move(lane, by) {
    const list = lane.pinned ? this.pinnedLanes : this.groups.find(({name}) => name === lane.group).lanes;
    let to = list.indexOf(lane) + by;
    while (!lane.pinned && list[to]?.pinned) to += by; // these are seen elsewhere
    swap(list, list.indexOf(lane), to);
    this.placeElements();
    this.arranged();
    this.scrollToItem(lane);
  }

  moveGroup(group, by) {
    const at = this.groups.indexOf(group);
    let to = at + by;
    while (this.groups[to] && !this.groups[to].height && this.groups[to].name) to += by;
    swap(this.groups, at, to);
    this.placeElements();
    this.arranged();
    this.scrollToItem(group);
  }

  pinLane(lane) {
    lane.pinned = !lane.pinned;
    if (lane.pinned) this.pinnedLanes.push(lane);
    else this.pinnedLanes.splice(this.pinnedLanes.indexOf(lane), 1);
    this.placeElements();
    this.arranged();
  }
}

function titleOf(lane) {
  return shortened(fullLabel(lane) + (lane.title ? ` (${lane.title})` : ""), 400);
}

/** A list, in which those that `wanted` names stand in its order; the others keep their places. */
function inOrder(list, wanted, nameOf) {
  const rank = new Map(wanted.map((name, place) => [name, place]));
  const known = list.filter((one) => rank.has(nameOf(one)));
  known.sort((a, b) => rank.get(nameOf(a)) - rank.get(nameOf(b)));
  let next = 0;
  return list.map((one) => (rank.has(nameOf(one)) ? known[next++] : one));
}

function swap(list, a, b) {
  if (b >= 0 && b < list.length) [list[a], list[b]] = [list[b], list[a]];
}

/** The arrangement of this session; {} where there is none. */
function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE)) || {};
  } catch {
    return {};
  }
}

// What the timeline draws over and between its lanes: headings, counters, what is not loaded, the selection, arrows.
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

// Draws a frame of the timeline: its ground, its lanes, what is selected, its header.
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
