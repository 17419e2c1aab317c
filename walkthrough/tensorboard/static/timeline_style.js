// The timeline's measures, its style sheet, and what makes its elements and texts.

export const ROW = 18; // height of one level, in CSS pixels, as all lengths here
export const ROW_GAP = 2; // empty part of a row, at its bottom
export const LANE_PAD = 4; // empty part of a lane, above and below its rows
export const HEADER = 42; // steps and time axis
export const STEP_BAND = 20; // the steps' part of the header
export const HEADING = 22; // height of a group's heading
export const COUNTER = 40; // height of a counter's curve
export const LABELS = 196; // width of the column of lane labels
export const NARROW = [680, 104]; // in a stage narrower than the first, that column has the second width
export const WIDE = [1600, 264]; // in a wider one, it has this one
export const SCROLLBAR = 16;
export const LEAST_LABEL = 26; // a narrower box shows no name
export const LEAST_SPAN = 0.02; // µs that the view shows at most zoom
export const CLICK_SLOP = 4; // a pointer that moves less than this has clicked
export const HIT_SLOP = 3; // how far beside a box a click still finds it
export const MOST_CHARACTERS = 240; // of a name, on the canvas and in the tooltip
export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export const HINT = "Wheel: zoom. Drag: pan. Drag on the time axis: measure. Shift + drag: select a box. " +
  "Keys: W A S D, arrows, F, M, 0, Esc; ? for all.";
export const NOTHING_SELECTED = "Click an event to see its launch, its operators and its source lines here. " +
  "Shift + drag selects a box, a drag on the time axis measures.";

export const STYLE = `
.wtl { display: flex; flex-direction: column; min-width: 0; color: var(--wtl-text); background: var(--wtl-ground);
  font: 13px/1.45 ${FONT}; box-sizing: border-box; }
.wtl *, .wtl *::before { box-sizing: border-box; }
.wtl-stage { position: relative; flex: 1 1 auto; min-height: 160px; overflow: hidden; overflow: clip;
  background: var(--wtl-header); border: 1px solid var(--wtl-line); border-radius: 4px; }
.wtl-canvas { position: absolute; top: 0; left: var(--wtl-labels); display: block; touch-action: none; outline: none;
  cursor: grab; user-select: none; }
.wtl-canvas[data-cursor=box] { cursor: crosshair; }
.wtl-canvas[data-cursor=event] { cursor: pointer; }
.wtl-canvas[data-cursor=range] { cursor: col-resize; }
.wtl-canvas[data-cursor=drag] { cursor: grabbing; }
.wtl-ring { position: absolute; inset: 0; border-radius: 3px; pointer-events: none; z-index: 3; }
.wtl-canvas:focus-visible ~ .wtl-ring { box-shadow: inset 0 0 0 2px var(--wtl-focus); }
.wtl-corner { position: absolute; top: 0; left: 0; width: var(--wtl-labels); height: ${HEADER}px; z-index: 1;
  background: var(--wtl-header); border-right: 1px solid var(--wtl-line); border-bottom: 1px solid var(--wtl-line);
  display: flex; align-items: end; padding: 2px 8px; color: var(--wtl-soft); font-size: 11px; }
.wtl-labels { position: absolute; top: ${HEADER}px; bottom: 0; left: 0; width: var(--wtl-labels); overflow: hidden;
  overflow: clip; background: var(--wtl-header); border-right: 1px solid var(--wtl-line); }
.wtl-scrolled { position: absolute; top: var(--wtl-pinned); bottom: 0; left: 0; width: 100%; overflow: hidden;
  overflow: clip; }
.wtl-pinned.wtl-fixed { position: absolute; top: 0; left: 0; width: 100%; height: var(--wtl-pinned); z-index: 1;
  background: var(--wtl-header); }
.wtl-fixed:not(:empty) { border-bottom: 2px solid var(--wtl-soft); }
.wtl-lane, .wtl-group { position: absolute; left: 0; width: 100%; border-bottom: 1px solid var(--wtl-lane); }
.wtl-lane[hidden], .wtl-group[hidden] { display: none; }
.wtl-group { height: ${HEADING}px; padding-top: 2px; background: var(--wtl-heading); font-weight: 600; }
.wtl-lane:hover { background: var(--wtl-odd); }
.wtl-fold { display: flex; gap: 5px; align-items: start; width: 100%; height: 100%; padding: 0 6px 0 8px; margin: 0;
  border: 0; text-align: left; font: inherit; font-size: 12px; line-height: ${ROW}px; color: inherit;
  background: none; cursor: pointer; }
.wtl-lane .wtl-fold { padding-left: 16px; }
.wtl-fixed .wtl-fold { padding-left: 8px; }
.wtl-fold::before { content: "▾"; content: "▾" / ""; flex: none; width: 10px; color: var(--wtl-soft); }
.wtl-fold[aria-expanded=false]::before { content: "▸"; content: "▸" / ""; }
.wtl-fold i { flex: none; width: 9px; height: 9px; margin-top: 5px; border-radius: 2px; }
.wtl-fold span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-fold em { flex: none; max-width: 40%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  color: var(--wtl-soft); font-style: normal; font-size: 11px; margin-left: auto; }
.wtl-fold em[hidden] { display: none; }
.wtl-tall .wtl-fold span { white-space: normal; overflow-wrap: anywhere; display: -webkit-box;
  -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.wtl-tools { position: absolute; right: 2px; bottom: 1px; visibility: hidden; display: flex; gap: 2px;
  background: var(--wtl-odd); border-radius: 3px; }
.wtl-lane:hover > .wtl-tools, .wtl-group:hover > .wtl-tools, .wtl-lane:focus-within > .wtl-tools,
.wtl-group:focus-within > .wtl-tools { visibility: visible; }
.wtl-tools button { min-width: 20px; height: 20px; padding: 0 4px; font: inherit; font-size: 11px; line-height: 16px;
  color: inherit; background: var(--wtl-button); border: 1px solid var(--wtl-line); border-radius: 3px;
  cursor: pointer; }
.wtl-tools button:hover { border-color: var(--wtl-soft); }
.wtl-scroll { position: absolute; top: calc(${HEADER}px + var(--wtl-pinned)); right: 0; bottom: 0;
  width: ${SCROLLBAR}px; overflow-x: hidden;
  overflow-y: auto; background: var(--wtl-header); }
.wtl-scroll div { width: 1px; }
.wtl-tip { position: absolute; z-index: 4; max-width: 460px; padding: 4px 8px; border-radius: 4px; font-size: 12px;
  pointer-events: none; background: var(--wtl-text); color: var(--wtl-ground); overflow-wrap: anywhere;
  box-shadow: 0 2px 8px rgba(0, 0, 0, 0.35); }
.wtl-tip small { display: block; font-size: 11px; opacity: 0.85; }
.wtl-foot { flex: none; display: flex; flex-wrap: wrap; gap: 6px; align-items: center; padding: 6px 0; }
.wtl-foot p { flex: 1 1 320px; margin: 0 0 0 4px; font-size: 12px; color: var(--wtl-soft); }
.wtl-foot button { font: inherit; font-size: 12px; min-width: 28px; padding: 2px 9px; color: inherit; cursor: pointer;
  background: var(--wtl-button); border: 1px solid var(--wtl-line); border-radius: 4px; }
.wtl-foot button:hover { border-color: var(--wtl-soft); }
.wtl-foot button[aria-pressed=true] { color: var(--wtl-ground); background: var(--wtl-text);
  border-color: var(--wtl-text); }
.wtl button:focus-visible { outline: 2px solid var(--wtl-focus); outline-offset: -2px; }
.wtl-panel { flex: 0 1 max(216px, 25vh); min-height: 96px; overflow: auto; padding: 8px 12px;
  border: 1px solid var(--wtl-line); border-radius: 4px; background: var(--wtl-header); display: flex;
  flex-wrap: wrap; gap: 6px 36px; align-content: start; align-items: start; }
.wtl-panel.wtl-unused { flex: none; min-height: 0; padding: 3px 12px; }
.wtl-unused > p { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-panel > p { margin: 0; color: var(--wtl-soft); }
.wtl-panel h3 { flex: 1 1 100%; margin: 0; font-size: 13px; font-weight: 600; overflow-wrap: anywhere; }
.wtl-panel h4 { margin: 0; font-size: 12px; font-weight: 600; color: var(--wtl-soft); }
.wtl-panel dl { margin: 0; display: grid; grid-template-columns: auto auto; justify-content: start;
  gap: 0 12px; align-content: start; max-width: 100%; }
.wtl-panel dt { color: var(--wtl-soft); }
.wtl-panel dd { margin: 0; max-width: 560px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wtl-panel dd i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 5px; }
.wtl-part { flex: 0 1 auto; min-width: min(280px, 100%); max-width: min(620px, 100%); }
.wtl-lines { flex: 1 1 340px; }
.wtl-panel ol { min-width: 0; margin: 0; padding: 0; list-style: none; }
.wtl-panel > ol { flex: 1 1 420px; columns: 2 320px; column-gap: 28px; }
.wtl-panel li { display: flex; gap: 10px; break-inside: avoid; font-variant-numeric: tabular-nums; }
.wtl-panel li span, .wtl-panel li button { flex: 1 1 auto; min-width: 0; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; text-align: left; }
.wtl-panel li b { flex: none; min-width: 68px; text-align: right; font-weight: 500; }
.wtl-panel li small { flex: none; min-width: 64px; text-align: right; font-size: inherit; color: var(--wtl-soft); }
.wtl-link { font: inherit; color: var(--wtl-link); background: none; border: 0; padding: 0; cursor: pointer;
  text-decoration: underline; text-align: left; overflow-wrap: anywhere; }
.wtl-help { max-width: min(760px, calc(100vw - 32px)); max-height: calc(100vh - 32px); padding: 16px 24px;
  color: var(--wtl-text); background: var(--wtl-ground); border: 1px solid var(--wtl-soft); border-radius: 6px; }
.wtl-help::backdrop { background: rgba(0, 0, 0, 0.45); }
.wtl-help h2 { margin: 0 0 8px; font-size: 16px; }
.wtl-help h3 { margin: 12px 0 4px; font-size: 13px; }
.wtl-help dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: 2px 20px; }
.wtl-help dt { font-weight: 500; }
.wtl-help dd { margin: 0; color: var(--wtl-soft); }
.wtl-help > button { margin-top: 14px; font: inherit; padding: 3px 14px; color: inherit;
  background: var(--wtl-button); border: 1px solid var(--wtl-soft); border-radius: 4px; cursor: pointer; }
.wtl-empty { margin: 0; padding: 24px; color: var(--wtl-soft); }
`;

/** A new element; `text` only ever becomes text. */
export function make(tag, className = "", text = "", parent = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/** A name as it is shown: not too long, and without characters that turn the direction of what follows. */
export function shortened(name, most = MOST_CHARACTERS) {
  const text = name.length > most ? `${name.slice(0, most)}…` : name;
  return text.replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** `text`, cut with "…" so that it is at most `room` wide; "" where fewer than three characters would be left. */
export function fitText(context, text, room) {
  const width = context.measureText(text).width;
  if (width <= room) return text;
  let length = Math.floor((text.length * room) / width);
  while (length > 2 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}

/** A kernel's name without what many kernels' names begin with. */
export function brief(name) {
  return name.replace(/^void /, "").replace(/at::native::|\(anonymous namespace\)::/g, "");
}

/** A list of names and values: texts or elements. */
export function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    make("dt", "", name, list);
    make("dd", "", "", list).append(value);
  }
  return list;
}
