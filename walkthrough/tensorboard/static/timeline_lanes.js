// The timeline's lanes: their groups and their places, how they fold, move and are pinned to the top.
import {clamp} from "./timeline_numbers.js";
import {Stage} from "./timeline_stage.js";
import {COUNTER, HEADER, HEADING, LANE_PAD, ROW, make, shortened} from "./timeline_style.js";
import {fullLabel} from "./timeline_tracks.js";

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
