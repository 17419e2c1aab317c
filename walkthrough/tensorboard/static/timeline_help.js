// The timeline's help: what mouse and keyboard do.
import {make} from "./timeline_style.js";

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
