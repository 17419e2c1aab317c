// Loaded by torch-tb-profiler's page before its own script: it waits for runs that are still being read, and says which
// traces cannot be read. Names come out of strangers' folders: they reach the page as text only, never as HTML.
"use strict";
{
  const REFRESH = 5000; // ms until the list of failures is asked for again
  const AT_MOST = 20; // lines in the notice
  const ask = window.fetch.bind(window);
  let shown = "[]"; // the failures in the notice, as JSON: it comes back only when they change

  // The server answers 202 while it reads a run. Where no trace of it can be read, the page never gets an answer: it
  // chooses another run when it next asks which there are.
  window.fetch = async (...request) => {
    for (;;) {
      const answer = await ask(...request);
      if (answer.status !== 202) {
        return answer;
      }
      if ((await answer.json()).state === "failed") {
        return new Promise(() => {});
      }
    }
  };

  const element = (name, text, style) => {
    const created = document.createElement(name);
    created.textContent = text;
    Object.assign(created.style, style);
    return created;
  };

  const notice = (failures) => {
    document.getElementById("failures")?.remove();
    if (!failures.length) {
      return;
    }
    const box = element("aside", "", {
      position: "fixed", right: "16px", bottom: "16px", zIndex: 2000, maxWidth: "50vw", maxHeight: "40vh", overflow: "auto",
      padding: "8px 12px", background: "#fff8e1", color: "#333", border: "1px solid #ffb300", borderRadius: "4px",
      font: "13px/1.5 Roboto, sans-serif", overflowWrap: "anywhere",
    });
    box.id = "failures";
    box.setAttribute("role", "status");
    const count = failures.length === 1 ? "One trace" : `${failures.length} traces`;
    const hide = element("button", "hide", {float: "right", marginLeft: "12px", cursor: "pointer"});
    hide.type = "button";
    hide.addEventListener("click", () => box.remove());
    const list = element("ul", "", {margin: "4px 0", paddingLeft: "20px"});
    for (const {run, file, reason} of failures.slice(0, AT_MOST)) {
      list.append(element("li", `${run}, ${file}: ${reason}`));
    }
    if (failures.length > AT_MOST) {
      list.append(element("li", `… and ${failures.length - AT_MOST} more`));
    }
    box.append(hide, element("strong", `${count} cannot be read:`), list);
    document.body.append(box);
  };

  const refresh = async () => {
    if (document.hidden) {
      return;
    }
    try {
      const {failures} = await (await ask("failures")).json();
      if (JSON.stringify(failures) !== shown) {
        shown = JSON.stringify(failures);
        notice(failures);
      }
    } catch {
      // TensorBoard does not answer: the page says so itself
    }
  };
  addEventListener("load", refresh);
  setInterval(refresh, REFRESH);
}
