// A timeline of a profiler trace, drawn on one canvas.
//
//     import {Timeline} from "./timeline.js";
//     const timeline = new Timeline(element, data, {onSelect(info) {}, onView(view) {}, onLoad(step) {}, dark: false});
//
// `data` is the answer of the server's route /lanes (see walkthrough/trace/timeline/lanes.py); times are in µs. Of a lane only
// start and duration are needed. onSelect gets one of
//     {kind: "event", name, start, duration, lane, at}    at: what `selectAt` takes
//     {kind: "box", start, end, lanes, count, us, wall, names, top: [{name, count, us}]}
//     {kind: "range", start, end, busy: [{label, us}]}
//     {kind: "none"}
// A box counts the events that reach into it, and of each the part inside: `us` is the sum of these parts over all
// levels (so nested time counts again at each level), `wall` the time in which at least one of them runs, `names` how
// many names differ. Of a folded lane only the row in sight counts. onView gets {start, end} whenever the view moves,
// onLoad a step that is not loaded and was clicked.
//
// How a frame stays cheap with 500,000 events: the events of one lane and one level form a Track, held in typed arrays
// sorted by start. A frame paints each visible Track into one line of pixels (`paintTrack`): boxes wider than a pixel
// one by one, and all narrower events that start in the same pixel column at once, found by binary search. So a frame
// costs about (columns x visible rows), however many events there are. Each line is then stretched to its row's height.
//
// The class is built in layers, each in a module: Stage (elements, view), Lanes (groups, places), Marking and Painted
// (drawing), Picking (selection, search), Input (mouse and keys). The data are in timeline_model.js.
//
// Names come from a trace, so from strangers: they reach the page only by `textContent` and `fillText`.
import {clamp} from "./timeline_model.js";
import {Picking} from "./timeline_select.js";
import {CLICK_SLOP, HEADER, make, ROW, STEP_BAND} from "./timeline_style.js";

// The timeline's help: what mouse and keyboard do.
const KEYS = [
  ["W, S or + −", "zoom in, zoom out (at the pointer)"],
  ["A, D or ← →", "pan to the left, to the right"],
  ["↑ ↓, Page up, Page down", "scroll the lanes"],
  ["F", "zoom to the selection"],
  ["M", "measure the selection: the busy time of every lane in its range"],
  ["0, Home", "show all that is loaded"],
  ["/", "search; Enter goes to the next event, Shift + Enter to the one before"],
  ["N, Shift + N", "next event found, the one before"],
  ["Escape", "clear the selection, close this help"],
  ["?", "this help"],
  ["On a lane's label", "Enter folds, ↑ ↓ go to the next label, Alt + ↑ ↓ move the lane, P pins it to the top"],
];
const MOUSE = [
  ["Wheel", "zoom"],
  ["Shift + wheel", "scroll the lanes"],
  ["Drag", "pan"],
  ["Drag on the time axis", "measure a range"],
  ["Shift + drag", "select a box"],
  ["Click on an event", "select it: its launch, operators, Python functions and GPU work are shown below"],
  ["Double click on an event", "zoom to it"],
  ["Click on a step", "zoom to it, or load it where it is not loaded"],
  ["Click on a label", "fold or unfold a lane or a group"],
];

/** A closed dialog in `parent`; the browser closes it on Escape and gives the focus back. */
export function helpDialog(parent) {
  const dialog = make("dialog", "wtl-help", "", parent);
  dialog.setAttribute("aria-labelledby", "wtl-help-title");
  const title = make("h2", "", "Keyboard and mouse", dialog);
  title.id = "wtl-help-title";
  for (const [name, rows] of [["Keyboard", KEYS], ["Mouse", MOUSE]]) {
    make("h3", "", name, dialog);
    const list = make("dl", "", "", dialog);
    for (const [what, does] of rows) {
      make("dt", "", what, list);
      make("dd", "", does, list);
    }
  }
  const close = make("button", "", "Close", dialog);
  close.type = "button";
  close.autofocus = true;
  close.addEventListener("click", () => dialog.close());
  return dialog;
}

// Mouse, touch and keyboard on the timeline.
export class Input extends Picking {
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
    on(document, "keydown", this.onKey);
    on(this.laneList, "wheel", this.onLabelWheel, {passive: false});
    on(this.scroll, "scroll", this.request);
    on(window, "resize", this.resize); // also when the browser's zoom changes the pixel ratio
  }

  onWheel(event) {
    event.preventDefault();
    if (this.drag) return;
    const unit = [1, 16, this.tall][event.deltaMode] || 1;
    const [across, along] = [event.deltaX * unit, event.deltaY * unit];
    if (event.shiftKey) this.scroll.scrollTop += along || across; // browsers turn Shift + wheel sideways
    else if (Math.abs(across) > Math.abs(along)) this.pan(across / this.width, false);
    else {
      const speed = event.ctrlKey ? 0.01 : 0.0018; // Ctrl: a pinch on a touchpad, in small steps
      this.zoom(Math.exp(clamp(along, -400, 400) * speed), this.place(event).x, false);
    }
    this.pointer = this.place(event);
    this.request();
  }

  /** Over the labels the plain wheel scrolls. */
  onLabelWheel(event) {
    const before = this.scroll.scrollTop;
    this.scroll.scrollTop += (event.deltaY || event.deltaX) * (event.deltaMode ? 16 : 1);
    if (this.scroll.scrollTop !== before) event.preventDefault();
  }

  onDown(event) {
    if (event.button > 1) return;
    this.touches.set(event.pointerId, this.place(event));
    if (this.touches.size === 2) this.startPinch();
    if (this.drag) return;
    event.preventDefault(); // no text selection; so the focus is ours to set
    this.canvas.focus({preventScroll: true, focusVisible: false});
    this.canvas.setPointerCapture(event.pointerId);
    const {x, y} = this.place(event);
    const top = this.scroll.scrollTop;
    const left = event.button === 0;
    const axis = y >= STEP_BAND && y < HEADER;
    const kind = left && axis ? "range" : left && (event.shiftKey || this.boxMode) ? "box" : "pan";
    this.goal = null;
    this.drag = {
      kind, id: event.pointerId, moved: false, view: this.view, top, from: {x, y, time: this.timeAt(x)}, to: {x, y},
    };
  }

  onMove(event) {
    this.pointer = this.place(event);
    const {drag} = this;
    if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, this.pointer);
    if (drag?.kind === "pinch") this.pinch();
    else if (drag && event.pointerId === drag.id) {
      drag.to = this.pointer;
      const [across, along] = [drag.to.x - drag.from.x, drag.to.y - drag.from.y];
      if (!drag.moved && Math.hypot(across, along) >= CLICK_SLOP) this.startDrag();
      if (drag.moved && drag.kind === "pan") {
        const by = (across / this.width) * (drag.view.end - drag.view.start);
        this.show({start: drag.view.start - by, end: drag.view.end - by}, false);
        this.scroll.scrollTop = drag.top - along;
      }
    }
    this.request();
  }

  startDrag() {
    this.drag.moved = true;
    this.hover = null;
    this.tip.hidden = true;
    this.canvas.dataset.cursor = {box: "box", range: "range"}[this.drag.kind] || "drag";
  }

  /** Two fingers: each keeps the time that was under it. */
  startPinch() {
    const times = [...this.touches.values()].map(({x}) => this.timeAt(x));
    this.drag = {kind: "pinch", times, moved: true, id: this.drag?.id};
  }

  pinch() {
    const [a, b] = [...this.touches.values()].map(({x}) => x);
    const [from, to] = this.drag.times;
    const us = (to - from) / (b - a); // in one CSS pixel
    if (us > 0 && Number.isFinite(us)) this.show({start: from - a * us, end: from + (this.width - a) * us}, false);
  }

  onUp(event) {
    const {drag} = this;
    this.touches.delete(event.pointerId);
    if (drag?.kind === "pinch") {
      this.endDrag();
      return;
    }
    if (!drag || event.pointerId !== drag.id) return;
    const place = this.place(event);
    this.endDrag();
    if (drag.moved) {
      if (drag.kind === "box") this.selectBox(this.boxOf({...drag, to: place}));
      if (drag.kind === "range") this.selectRange(this.rangeOf({...drag, to: place}));
    } else if (event.button === 0) this.click(place);
  }

  click(place) {
    const step = this.stepAt(place.x, place.y);
    if (step && !this.isLoaded(step) && this.onLoad) {
      this.onLoad(step);
      return;
    }
    if (step) {
      this.show(this.around(step, 0.02));
      return;
    }
    if (place.y < HEADER) return;
    const clicked = this.eventAt(place);
    if (clicked) this.selectEvent(clicked.track, clicked.index);
    else this.clearSelection();
  }

  onCancel(event) {
    this.touches.delete(event.pointerId);
    this.endDrag();
  }

  onDouble(event) {
    if (this.eventAt(this.place(event))) this.zoomToSelection();
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

  setBoxMode(on) {
    this.boxMode = on;
    this.modeButton.setAttribute("aria-pressed", String(on));
    this.canvas.dataset.cursor = on ? "box" : "pan";
  }

  /** Keys work wherever the focus is, except in a field; what is pressed in the help is the browser's. */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.empty) return;
    if (this.dialog.open || event.target.closest?.("input, select, textarea, dialog")) return;
    const zoomAt = this.pointer ? this.pointer.x : this.width / 2;
    const page = this.tall - HEADER - ROW;
    const actions = {
      ArrowLeft: () => this.pan(-0.15), a: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15), d: () => this.pan(0.15),
      ArrowUp: () => this.scrollBy(-3 * ROW), ArrowDown: () => this.scrollBy(3 * ROW),
      PageUp: () => this.scrollBy(-page), PageDown: () => this.scrollBy(page),
      "+": () => this.zoom(1 / 1.4, zoomAt), "=": () => this.zoom(1 / 1.4, zoomAt), w: () => this.zoom(1 / 1.4, zoomAt),
      "-": () => this.zoom(1.4, zoomAt), "_": () => this.zoom(1.4, zoomAt), s: () => this.zoom(1.4, zoomAt),
      0: () => this.fit(), Home: () => this.fit(), f: () => this.zoomToSelection(), m: () => this.measureSelection(),
      "?": () => this.help(), Escape: () => this.escape(),
      ...this.keys,
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  }

  scrollBy(pixels) {
    this.scroll.scrollTop += pixels;
  }

  /** Ends a drag without effect, or else clears the selection. */
  escape() {
    if (this.drag) this.endDrag();
    else this.clearSelection();
  }
}

export class Timeline extends Input {
  /** Ready for the keys, unless the reader is in a field. */
  focus() {
    if (!this.empty && !document.activeElement?.matches("input, select, textarea")) {
      this.canvas.focus({preventScroll: true, focusVisible: false});
    }
  }
}
