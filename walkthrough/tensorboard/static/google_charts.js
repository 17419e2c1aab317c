/*
 * The part of the Google Charts interface that the page of torch-tb-profiler 0.4.3 uses, drawn by plotly.js on this
 * machine: nothing is fetched. plotly.js (the global `Plotly`) is loaded by the page before this file.
 *
 * google.charts          load
 * google.visualization   DataTable, arrayToDataTable, events.addListener, PieChart, SteppedAreaChart, ColumnChart,
 *                        LineChart, ComboChart, Timeline, Table
 *
 * Names of kernels, operators and runs come out of traces that strangers may have written. So text enters the page
 * as text nodes only (legends, tooltips, tables); what plotly draws itself (titles, ticks, labels of bars) goes through
 * `escaped`, because plotly reads some tags in text; HTML tooltips are parsed in a document that runs and loads
 * nothing, and only their text is kept; HTML cells of tables are built anew from a short list of plain elements.
 */
(() => {
  "use strict";

  const FONT = "Roboto, Arial, sans-serif";
  const COLORS = [
    "#3366CC", "#DC3912", "#FF9900", "#109618", "#990099", "#3B3EAC", "#0099C6", "#DD4477", "#66AA00", "#B82E2E",
    "#316395", "#994499", "#22AA99", "#AAAA11", "#6633CC", "#E67300", "#8B0707", "#329262", "#5574A6", "#651067",
  ];
  const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false, showTips: false, typesetMath: false };
  const TICK_SIZE = 12; // pixels, as all sizes here
  const STYLE = `
    .gc-frame { position: relative; overflow: hidden; font: 12px ${FONT}; color: #222; }
    .gc-plot { position: absolute; left: 0; top: 0; }
    .gc-plot .zoombox { fill: rgba(0, 0, 0, 0.12) !important; }
    .gc-message { position: absolute; inset: 0; display: flex; align-items: center; justify-content: center;
      color: #757575; font-size: 14px; }
    .gc-legend { position: absolute; display: flex; overflow: auto; scrollbar-width: thin; }
    .gc-legend.gc-right { flex-direction: column; justify-content: safe center; }
    .gc-legend.gc-bottom { flex-wrap: wrap; justify-content: safe center; align-content: flex-start; column-gap: 20px; }
    .gc-entry { display: flex; align-items: center; flex: none; max-width: 100%; line-height: 20px; cursor: default; }
    .gc-swatch { flex: none; width: 12px; height: 12px; margin-right: 6px; }
    .gc-swatch.gc-round { border-radius: 50%; }
    .gc-swatch.gc-line { height: 2px; width: 20px; }
    .gc-name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
    .gc-tooltip { position: fixed; z-index: 2000; pointer-events: none; max-width: min(480px, 90vw); padding: 6px 10px;
      background: #fff; border: 1px solid #ccc; box-shadow: 2px 2px 4px rgba(0, 0, 0, 0.3); font: 13px/18px ${FONT};
      color: #000; overflow-wrap: anywhere; }
    .gc-scroll { overflow: auto; }
    .gc-table { width: 100%; border-collapse: collapse; background: #fff; color: #000; font: 13px/17px ${FONT}; }
    .gc-table th, .gc-table td { padding: 3px 5px; border: 1px solid #eee; text-align: left;
      overflow-wrap: break-word; }
    .gc-table th { position: sticky; top: 0; padding: 3px; background: #f0f0f0; border-color: #ccc; font-weight: bold;
      text-align: center; cursor: pointer; user-select: none; }
    .gc-table td.gc-number { text-align: right; white-space: nowrap; }
    .gc-table tbody tr:nth-child(even) { background: #fafafa; }
    .gc-table tbody tr:hover td { background: #d6e9f8 !important; }
    .gc-pages { display: flex; gap: 8px; align-items: center; padding: 4px 0; font: 13px ${FONT}; }
  `;

  // ---- Text -------------------------------------------------------------------------------------------------------

  /** Text that plotly shows as it is, tags and entities included. */
  function escaped(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  /** Text of at most `limit` characters, cut with an ellipsis. */
  function shortened(text, limit) {
    const characters = Array.from(String(text));
    return characters.length > limit ? characters.slice(0, limit - 1).join("") + "…" : characters.join("");
  }

  /** A value as Google's charts write it: numbers with commas and at most three decimals. */
  function formatted(value) {
    if (value === null || value === undefined) {
      return "";
    }
    return typeof value === "number" ? value.toLocaleString("en-US", { maximumFractionDigits: 3 }) : String(value);
  }

  function percentage(part, total) {
    return ((100 * part) / total).toLocaleString("en-US", { maximumFractionDigits: 1 }) + "%";
  }

  const ruler = document.createElement("canvas").getContext("2d");

  /** Width in pixels of text at the size of the ticks. */
  function textWidth(text) {
    ruler.font = `${TICK_SIZE}px ${FONT}`;
    return ruler.measureText(text).width;
  }

  /** A length of the options, in pixels: a number, a number of pixels as text, or a percentage of `whole`. */
  function pixels(length, whole) {
    if (typeof length === "string" && length.endsWith("%")) {
      return (parseFloat(length) / 100) * whole;
    }
    const number = parseFloat(length);
    return Number.isFinite(number) ? number : undefined;
  }

  // ---- HTML of strangers ------------------------------------------------------------------------------------------

  const DROPPED = new Set(["SCRIPT", "STYLE", "TEMPLATE", "NOSCRIPT", "IFRAME", "OBJECT", "TEXTAREA", "TITLE"]);
  const LINES = new Set(["DIV", "P", "LI", "UL", "OL", "TR", "TABLE", "HR", "H1", "H2", "H3", "H4"]);
  const KEPT = new Set(["B", "STRONG", "I", "EM", "BR", "SPAN", "DIV", "P", "HR", "UL", "OL", "LI", "A"]);

  /** The body of an HTML text, in a document of its own in which no script runs and nothing is loaded. */
  function inertBody(html) {
    return new DOMParser().parseFromString(String(html), "text/html").body;
  }

  /** Text of an HTML text as lines; a line is a list of {text, bold}. */
  function htmlLines(html) {
    const lines = [[]];
    const visit = (node, bold) => {
      if (node.nodeType === Node.TEXT_NODE) {
        lines[lines.length - 1].push({ text: node.data, bold });
      } else if (node.nodeType === Node.ELEMENT_NODE && !DROPPED.has(node.nodeName)) {
        const breaks = node.nodeName === "BR" || LINES.has(node.nodeName);
        if (breaks) {
          lines.push([]);
        }
        node.childNodes.forEach((child) => visit(child, bold || node.nodeName === "B" || node.nodeName === "STRONG"));
        if (breaks && node.nodeName !== "BR") {
          lines.push([]);
        }
      }
    };
    visit(inertBody(html), false);
    return lines.filter((line) => line.some((piece) => piece.text.trim()));
  }

  /** An HTML text built anew from plain elements without attributes; only links keep their http(s) address. */
  function plainElements(html) {
    const copyChildren = (from, to) => {
      from.childNodes.forEach((node) => {
        if (node.nodeType === Node.TEXT_NODE) {
          to.append(node.data);
        } else if (node.nodeType === Node.ELEMENT_NODE && !DROPPED.has(node.nodeName)) {
          copyChildren(node, KEPT.has(node.nodeName) ? to.appendChild(plainElement(node)) : to);
        }
      });
    };
    const fragment = document.createDocumentFragment();
    copyChildren(inertBody(html), fragment);
    return fragment;
  }

  function plainElement(node) {
    const copy = document.createElement(node.nodeName);
    const address = node.nodeName === "A" ? node.getAttribute("href") || "" : "";
    if (/^https?:\/\//i.test(address)) {
      copy.href = address;
      copy.target = "_blank";
      copy.rel = "noopener noreferrer";
    }
    return copy;
  }

  // ---- Small elements ---------------------------------------------------------------------------------------------

  function element(name, className, text) {
    const node = document.createElement(name);
    node.className = className || "";
    node.textContent = text === undefined ? "" : text;
    return node;
  }

  function addStyle() {
    document.head.append(element("style", "gc-style", STYLE));
  }

  /** The one tooltip of the page. */
  const tooltip = {
    box: element("div", "gc-tooltip"),

    /** Show lines (lists of {text, bold}) beside a point of the window. */
    show(lines, x, y) {
      this.box.replaceChildren(...lines.map(tooltipLine));
      document.body.append(this.box);
      this.move(x, y);
    },

    move(x, y) {
      const { offsetWidth: width, offsetHeight: height } = this.box;
      const left = x + 14 + width > window.innerWidth ? x - 14 - width : x + 14;
      const top = y + 14 + height > window.innerHeight ? y - 14 - height : y + 14;
      this.box.style.left = Math.max(left, 0) + "px";
      this.box.style.top = Math.max(top, 0) + "px";
    },

    hide() {
      this.box.remove();
    },
  };

  function tooltipLine(line) {
    const row = element("div");
    row.append(...line.map((piece) => element(piece.bold ? "b" : "span", "", piece.text)));
    return row;
  }

  // ---- Data -------------------------------------------------------------------------------------------------------

  /** A table of typed columns. A cell is kept as {v: value, f: text or undefined, p: properties}. */
  class DataTable {
    constructor() {
      this.columns = [];
      this.rows = [];
    }

    /** addColumn({type, label, id, role, p}) or addColumn(type, label, id). */
    addColumn(type, label, id) {
      const column = typeof type === "object" ? type : { type, label, id };
      this.columns.push({ ...column, label: column.label || "" });
    }

    addRow(cells) {
      this.rows.push(cells.map(cellOf));
    }

    addRows(rows) {
      rows.forEach((row) => this.addRow(row));
    }

    setProperty(row, column, name, value) {
      this.cell(row, column).p[name] = value;
    }

    cell(row, column) {
      const cells = this.rows[row];
      cells[column] = cells[column] || cellOf(null);
      return cells[column];
    }

    getNumberOfRows() {
      return this.rows.length;
    }

    getValue(row, column) {
      return this.cell(row, column).v;
    }

    getFormattedValue(row, column) {
      const { v, f } = this.cell(row, column);
      return f === undefined || f === null ? formatted(v) : String(f);
    }

    getProperty(row, column, name) {
      return this.cell(row, column).p[name];
    }

    columnValues(column) {
      return this.rows.map((_, row) => this.getValue(row, column));
    }

    columnTexts(column) {
      return this.rows.map((_, row) => this.getFormattedValue(row, column));
    }

    /** Columns with numbers to draw, each {column, label, tooltip}: tooltip is the column of its tooltips, if any. */
    dataColumns() {
      const columns = [];
      this.columns.forEach((column, index) => {
        if (column.role === "tooltip" && columns.length) {
          columns[columns.length - 1].tooltip = index;
        } else if (index > 0 && !column.role) {
          columns.push({ column: index, label: column.label });
        }
      });
      return columns;
    }

    /** The tooltip that a tooltip column gives a row, as lines; undefined where it gives none. */
    tooltipLines(row, column) {
      const value = column === undefined ? null : this.getValue(row, column);
      if (value === null || value === undefined) {
        return undefined;
      }
      const p = this.columns[column].p;
      const isHtml = Boolean(p && (p.html === true || p.html === "true"));
      return isHtml ? htmlLines(value) : String(value).split("\n").map((text) => [{ text }]);
    }
  }

  function cellOf(given) {
    const isCell = given !== null && typeof given === "object" && ("v" in given || "f" in given);
    if (!isCell) {
      return { v: given, f: undefined, p: {} };
    }
    return { v: given.v, f: given.f, p: { ...given.p } };
  }

  /** A DataTable from rows of which the first holds the columns' names; a column is of the type of its first value. */
  function arrayToDataTable([names, ...rows]) {
    const table = new DataTable();
    names.forEach((label, index) => {
      const first = rows.map((row) => cellOf(row[index]).v).find((value) => value !== null && value !== undefined);
      table.addColumn(first === undefined ? "number" : typeof first, label);
    });
    table.addRows(rows);
    return table;
  }

  // ---- What all charts share --------------------------------------------------------------------------------------

  const owners = new WeakMap(); // an element -> the chart that is drawn in it

  /** A chart in an element of the page. */
  class Chart {
    constructor(host) {
      this.host = host;
      this.listeners = {};
      this.selection = [];
    }

    emit(name, event) {
      (this.listeners[name] || []).forEach((listener) => listener(event));
    }

    getSelection() {
      return this.selection;
    }

    setSelection(selection) {
      this.selection = selection || [];
    }

    /** Draw in the element; what another chart, or this one, has drawn there before goes away. */
    draw(data, options) {
      const previous = owners.get(this.host);
      if (previous) {
        previous.clearChart();
      }
      this.host.replaceChildren();
      owners.set(this.host, this);
      this.data = data;
      this.options = options || {};
      this.selection = [];
      this.build(previous);
    }

    clearChart() {
      if (owners.get(this.host) === this) {
        owners.delete(this.host);
        this.release();
        this.host.replaceChildren();
      }
    }

    release() {}
  }

  /** A chart that plotly draws: a frame with the plot and, over it, a legend of HTML. */
  class PlotlyChart extends Chart {
    build(previous) {
      this.frame = element("div", "gc-frame");
      this.plot = this.frame.appendChild(element("div", "gc-plot"));
      this.frame.style.width = typeof this.options.width === "number" ? this.options.width + "px" : "100%";
      this.frame.style.height = this.height() + "px";
      this.host.append(this.frame);
      if (typeof Plotly === "undefined") {
        this.say("plotly.js is missing: no chart");
      } else if (this.isEmpty()) {
        this.say("No data");
      } else {
        this.adopt(previous);
        this.render();
        this.watchSize();
      }
    }

    /** Take over what should outlive a new drawing in the same element. */
    adopt() {}

    height() {
      return pixels(this.options.height, this.host.parentElement ? this.host.parentElement.clientHeight : 0) || 200;
    }

    isEmpty() {
      return !this.data.getNumberOfRows();
    }

    say(message) {
      this.frame.append(element("div", "gc-message", message));
    }

    /** Draw for the frame's size of now. */
    render() {
      this.size = { width: this.frame.clientWidth, height: this.frame.clientHeight };
      if (!this.size.width) {
        return; // hidden: drawn when it gets a size
      }
      tooltip.hide();
      this.renderLegend();
      this.drawn = Plotly.react(this.plot, this.traces(), this.fullLayout(), CONFIG);
      if (!this.listening) {
        this.listening = true;
        this.listen();
        this.drawn.then(() => owners.get(this.host) === this && this.emit("ready"));
      }
    }

    fullLayout() {
      const { width, height } = this.size;
      return {
        width,
        height,
        autosize: false,
        font: { family: FONT, size: TICK_SIZE, color: "#444" },
        separators: ".,",
        showlegend: false,
        hovermode: "closest",
        dragmode: false,
        title: this.titleLayout(),
        ...this.layout(),
      };
    }

    titleLayout() {
      const { left, top } = this.area();
      return {
        text: escaped(shortened(this.options.title || "", Math.floor(this.size.width / 8))),
        font: { size: 14, weight: "bold", color: "#000" },
        x: left / this.size.width,
        xanchor: "left",
        y: 1 - top / 2 / this.size.height,
        yanchor: "middle",
      };
    }

    /** The area of the plot, in pixels, by the option chartArea and, where that says nothing, by `defaultArea`. */
    area() {
      const { width, height } = this.size;
      const given = this.options.chartArea || {};
      const usual = this.defaultArea();
      const left = pixels(given.left, width) ?? usual.left;
      const top = pixels(given.top, height) ?? usual.top;
      return {
        left,
        top,
        width: pixels(given.width, width) ?? width - left - usual.right,
        height: pixels(given.height, height) ?? height - top - usual.bottom,
      };
    }

    legendPosition() {
      const legend = this.options.legend;
      return (typeof legend === "string" ? legend : legend && legend.position) || "right";
    }

    color(index) {
      const colors = this.options.colors || COLORS;
      return colors[index % colors.length];
    }

    renderLegend() {
      if (this.legend) {
        this.legend.remove();
      }
      const box = this.legendBox();
      this.legend = element("div", `gc-legend gc-${this.legendPosition()}`);
      if (this.legendPosition() !== "none") {
        this.legend.append(...this.legendEntries());
        Object.entries(box).forEach(([side, length]) => (this.legend.style[side] = length + "px"));
        this.frame.append(this.legend);
      }
    }

    /** An entry of the legend. Its name is cut where it is too long, and shows in full when the mouse rests on it. */
    legendEntry(label, color, shape) {
      const entry = element("div", "gc-entry");
      const swatch = element("span", `gc-swatch gc-${shape}`);
      swatch.style.background = color;
      entry.append(swatch, element("span", "gc-name", label));
      entry.title = label;
      return entry;
    }

    listen() {
      this.plot.on("plotly_hover", ({ points, event }) => this.hover(points[0], event));
      this.plot.on("plotly_unhover", () => this.unhover());
      this.plot.on("plotly_click", ({ points }) => this.click(points[0]));
      this.plot.addEventListener("mousemove", (event) => tooltip.move(event.clientX, event.clientY));
      this.plot.addEventListener("mouseleave", () => tooltip.hide());
    }

    hover(point, event) {
      const place = this.placeOf(point);
      if (place) {
        tooltip.show(this.pointLines(place), event.clientX, event.clientY);
        this.emit("onmouseover", place);
      }
    }

    unhover() {
      tooltip.hide();
      this.emit("onmouseout", {});
    }

    /** Report a click when plotly is done with it: a listener may remove the chart. */
    click(point) {
      const place = this.placeOf(point);
      if (place) {
        this.selection = [place];
        setTimeout(() => this.emit("select", {}), 0);
      }
    }

    /** Draw again when the frame changes its width; let go of everything when it has left the page. */
    watchSize() {
      this.observer = new ResizeObserver(() => {
        if (!this.frame.isConnected) {
          this.clearChart();
        } else if (this.frame.clientWidth !== this.size.width) {
          this.render();
        }
      });
      this.observer.observe(this.frame);
    }

    release() {
      tooltip.hide();
      if (this.observer) {
        this.observer.disconnect();
      }
      if (this.listening) {
        const plot = this.plot;
        this.drawn.finally(() => Plotly.purge(plot)); // plotly must have finished with a plot before it can let go
      }
    }
  }

  // ---- Pie --------------------------------------------------------------------------------------------------------

  /** Slices clockwise in the order of the rows. Every slice is shown: the page asks for sliceVisibilityThreshold 0. */
  class PieChart extends PlotlyChart {
    values() {
      return this.data.columnValues(1).map((value) => (value > 0 ? value : 0));
    }

    total() {
      return this.values().reduce((sum, value) => sum + value, 0);
    }

    isEmpty() {
      return !(this.total() > 0);
    }

    defaultArea() {
      const margin = this.options.title ? 36 : 20;
      return { left: 20, right: 20, top: margin, bottom: 20 };
    }

    /** The left part of the area for the pie, the right one for the legend. */
    pieWidth() {
      const { width, height } = this.area();
      return this.legendPosition() === "none" ? width : Math.min(height + 20, width * 0.5);
    }

    legendBox() {
      const { left, top, width, height } = this.area();
      const start = left + this.pieWidth() + 16;
      return { left: start, top, width: Math.min(left + width, this.size.width - 8) - start, height };
    }

    legendEntries() {
      return this.data.columnTexts(0).map((label, row) => {
        const entry = this.legendEntry(label, this.color(row), "round");
        entry.title = ""; // the slice's tooltip has the full name
        entry.addEventListener("mouseenter", (event) => this.hover({ label: row }, event));
        entry.addEventListener("mouseleave", () => this.unhover());
        return entry;
      });
    }

    traces() {
      const values = this.values();
      const total = this.total();
      const lined = values.length <= 60 && !values.includes(total); // white lines between slices, where there is room
      const { left, top, height } = this.area();
      const { width: fullWidth, height: fullHeight } = this.size;
      return [{
        type: "pie",
        labels: values.map((_, row) => String(row)), // not the names: plotly would add up slices of one name
        values,
        text: values.map((value) => percentage(value, total)),
        textinfo: "text",
        textposition: "inside",
        insidetextorientation: "horizontal",
        insidetextfont: { color: "#fff", size: 12 },
        hoverinfo: "none",
        hole: this.options.pieHole || 0,
        sort: false,
        direction: "clockwise",
        marker: { colors: values.map((_, row) => this.color(row)), line: { color: "#fff", width: lined ? 1 : 0 } },
        domain: {
          x: [left / fullWidth, (left + this.pieWidth()) / fullWidth],
          y: [1 - (top + height) / fullHeight, 1 - top / fullHeight],
        },
      }];
    }

    layout() {
      return { margin: { l: 0, r: 0, t: 0, b: 0 }, uniformtext: { mode: "hide", minsize: 10 } };
    }

    placeOf(point) {
      return { row: Number(point.label), column: null };
    }

    pointLines({ row }) {
      const value = this.data.getFormattedValue(row, 1);
      const share = percentage(this.values()[row], this.total());
      const text = (this.options.tooltip || {}).text || "both";
      const shown = { percentage: share, value }[text] || `${value} (${share})`;
      return [[{ text: this.data.getFormattedValue(row, 0) }], [{ text: shown, bold: true }]];
    }
  }

  // ---- Charts with axes -------------------------------------------------------------------------------------------

  /** Rows along a horizontal axis (names, or numbers), one series for each data column. */
  class AxesChart extends PlotlyChart {
    build(previous) {
      this.series = this.data.dataColumns();
      this.discrete = this.data.columns[0].type !== "number";
      super.build(previous);
    }

    /** How a series is drawn: "bars" or "line". */
    seriesType() {
      return "bars";
    }

    seriesAxis() {
      return 0;
    }

    bargap() {
      return 0.382;
    }

    fillOpacity() {
      return 1;
    }

    render() {
      this.ticks = this.discrete ? namedTicks(this.data.columnTexts(0), this.usualWidth()) : undefined;
      super.render();
    }

    usualWidth() {
      return this.frame.clientWidth * (this.legendPosition() === "right" ? 0.7 : 0.8);
    }

    defaultArea() {
      const { width } = this.size;
      const position = this.legendPosition();
      const ticks = this.ticks ? this.ticks.depth : 20;
      return {
        left: Math.max(70, width * 0.1),
        right: position === "right" ? Math.max(120, width * 0.18) + this.rightAxisWidth() : Math.max(20, width * 0.08),
        top: this.options.title ? 50 : 20,
        bottom: 12 + ticks + ((this.options.hAxis || {}).title ? 24 : 0) + (position === "bottom" ? 44 : 0),
      };
    }

    legendBox() {
      const { left, top, width, height } = this.area();
      if (this.legendPosition() === "bottom") {
        return { left, width, top: this.size.height - 42, height: 40 };
      }
      const start = left + width + this.rightAxisWidth() + 16;
      return { left: start, top, width: this.size.width - start - 4, height };
    }

    legendEntries() {
      return this.series.map(({ label }, index) => {
        return this.legendEntry(label, this.color(index), this.seriesType(index) === "line" ? "line" : "square");
      });
    }

    hasRightAxis() {
      return this.series.some((_, index) => this.seriesAxis(index) === 1);
    }

    rightAxisWidth() {
      return this.hasRightAxis() ? 56 : 0;
    }

    positions() {
      return this.discrete ? this.data.rows.map((_, row) => row) : this.data.columnValues(0);
    }

    traces() {
      return this.series.map((_, index) => (this.seriesType(index) === "line" ? this.line(index) : this.bars(index)));
    }

    bars(index) {
      return {
        type: "bar",
        x: this.positions(),
        y: this.data.columnValues(this.series[index].column),
        yaxis: this.seriesAxis(index) ? "y2" : "y",
        meta: index,
        hoverinfo: "none",
        marker: { color: this.color(index), opacity: this.fillOpacity(), line: { width: 0 } },
      };
    }

    line(index) {
      return {
        type: "scatter",
        mode: this.data.getNumberOfRows() > 1 ? "lines" : "markers",
        x: this.positions(),
        y: this.data.columnValues(this.series[index].column),
        yaxis: this.seriesAxis(index) ? "y2" : "y",
        meta: index,
        hoverinfo: "none",
        line: { color: this.color(index), width: 2 },
      };
    }

    layout() {
      const { left, top, width, height } = this.area();
      const margin = { l: left, t: top, r: this.size.width - left - width, b: this.size.height - top - height };
      return {
        margin: { ...margin, autoexpand: false },
        barmode: this.barmode(),
        bargap: this.bargap(),
        xaxis: { ...this.horizontalAxis(), ...this.axisTitle(this.options.hAxis, 8) },
        yaxis: { ...this.verticalAxis(0), ...this.axisTitle(this.options.vAxis, 12) },
        ...(this.hasRightAxis() && { yaxis2: this.verticalAxis(1) }),
      };
    }

    barmode() {
      return this.options.isStacked ? "relative" : "group";
    }

    axisTitle(axis, standoff) {
      const text = escaped((axis || {}).title || "");
      return { title: { text, standoff, font: { size: 12, style: "italic", color: "#222" } } };
    }

    horizontalAxis() {
      const axis = this.discrete ? this.ticks.axis : { ...NUMBERS, gridcolor: "#e6e6e6" };
      return { fixedrange: true, zeroline: false, ...axis };
    }

    verticalAxis(side) {
      const axis = (this.options.vAxes || {})[side] || {};
      const right = side ? { overlaying: "y", side: "right", showgrid: false, tickmode: "auto" } : {};
      const reach = Number.isFinite(axis.maxValue) ? { autorangeoptions: { include: axis.maxValue } } : {};
      return {
        ...NUMBERS,
        fixedrange: true,
        rangemode: "tozero",
        ticklabelstandoff: 4,
        gridcolor: "#ccc",
        zerolinecolor: "#333",
        zerolinewidth: 1,
        ...right,
        ...reach,
      };
    }

    placeOf(point) {
      const index = point.data.meta;
      return this.series[index] && { row: point.pointNumber, column: this.series[index].column };
    }

    pointLines({ row, column }) {
      const series = this.series.find((one) => one.column === column);
      const value = this.data.getFormattedValue(row, column);
      return this.data.tooltipLines(row, series.tooltip) || [
        [{ text: this.data.getFormattedValue(row, 0), bold: true }],
        [{ text: series.label + ": " }, { text: value, bold: true }],
      ];
    }
  }

  const NUMBERS = { type: "linear", exponentformat: "none", separatethousands: true, automargin: false };

  /**
   * Ticks for rows with names, at the positions 0, 1, 2, … so that two rows of one name stay two: {axis, depth}, depth
   * being the height they need. Slanted where they are too wide for their place, and left out where too many.
   */
  function namedTicks(names, width) {
    const texts = names.map((name) => shortened(name, 24));
    const place = width / names.length;
    const widest = Math.max(...texts.map(textWidth));
    const slanted = widest + 10 > place;
    const step = slanted ? Math.ceil((TICK_SIZE * 1.8) / place) : 1;
    const rows = texts.map((_, row) => row).filter((row) => row % step === 0);
    const axis = {
      type: "linear",
      range: [-0.5, names.length - 0.5],
      tickmode: "array",
      tickvals: rows,
      ticktext: rows.map((row) => escaped(texts[row])),
      tickangle: slanted ? 30 : 0,
      showgrid: false,
    };
    return { axis, depth: slanted ? widest / 2 + 20 : 20 };
  }

  class ColumnChart extends AxesChart {}

  /** Bars without gaps; where they are not stacked, with a line along their tops. */
  class SteppedAreaChart extends AxesChart {
    bargap() {
      return 0;
    }

    barmode() {
      return this.options.isStacked ? "relative" : "overlay";
    }

    fillOpacity() {
      return this.options.areaOpacity ?? 0.3;
    }

    traces() {
      const areas = super.traces();
      return this.options.isStacked ? areas : [...areas, ...this.series.map((_, index) => this.outline(index))];
    }

    /** The line along the tops of a series; broken between the steps where the option connectSteps is false. */
    outline(index) {
      const gap = this.options.connectSteps === false;
      const x = [];
      const y = [];
      this.data.columnValues(this.series[index].column).forEach((value, row) => {
        x.push(row - 0.5, row + 0.5, ...(gap ? [null] : []));
        y.push(value, value, ...(gap ? [null] : []));
      });
      const line = { color: this.color(index), width: 2 };
      return { type: "scatter", mode: "lines", x, y, line, hoverinfo: "skip" };
    }
  }

  /** Bars and lines, each series on the left axis or on the right one. */
  class ComboChart extends AxesChart {
    seriesOptions(index) {
      return (this.options.series || {})[index] || {};
    }

    seriesType(index) {
      return this.seriesOptions(index).type || this.options.seriesType || "line";
    }

    seriesAxis(index) {
      return this.seriesOptions(index).targetAxisIndex || 0;
    }
  }

  /** Lines; with the option explorer, a range along the horizontal axis is chosen with the mouse. */
  class LineChart extends AxesChart {
    seriesType() {
      return "line";
    }

    /** Smallest and largest number of the horizontal axis. */
    domain() {
      const numbers = this.positions().filter(Number.isFinite);
      const low = numbers.reduce((a, b) => Math.min(a, b), Infinity);
      const high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
      return low < high ? [low, high] : [low - 0.5, low + 0.5];
    }

    /** The page draws anew after each change of the window's size: the same curve keeps the range that was chosen. */
    adopt(previous) {
      const same = previous instanceof LineChart && previous.view
        && previous.options.title === this.options.title
        && previous.data.getNumberOfRows() === this.data.getNumberOfRows()
        && String(previous.domain()) === String(this.domain());
      this.view = same ? previous.view : undefined;
    }

    render() {
      this.rememberView();
      super.render();
    }

    /** Keep what the chart shows now: {area, range}. It is still asked for when another chart has taken its place. */
    rememberView() {
      if (this.listening && this.plot.layout) {
        this.view = { area: this.area(), range: this.plot.layout.xaxis.range.slice() };
      }
    }

    release() {
      this.rememberView();
      super.release();
      this.listening = false;
    }

    layout() {
      return { ...super.layout(), dragmode: this.options.explorer ? "zoom" : false, shapes: this.selectedPoints() };
    }

    horizontalAxis() {
      const range = this.view ? this.view.range : this.domain();
      const [minallowed, maxallowed] = this.domain();
      const bounds = this.options.explorer ? { fixedrange: false, minallowed, maxallowed } : {};
      return { ...super.horizontalAxis(), ...bounds, range };
    }

    listen() {
      super.listen();
      if (this.options.explorer) {
        this.plot.on("plotly_doubleclick", () => this.showAll());
        this.plot.addEventListener("contextmenu", (event) => {
          event.preventDefault();
          this.showAll();
        });
      }
    }

    showAll() {
      Plotly.relayout(this.plot, { "xaxis.range": this.domain() });
    }

    setSelection(selection) {
      super.setSelection(selection);
      if (this.listening && owners.get(this.host) === this) {
        Plotly.relayout(this.plot, { shapes: this.selectedPoints() });
      }
    }

    /** A ring around each selected point. */
    selectedPoints() {
      return this.selection.filter(({ row, column }) => this.data.rows[row] && column).map(({ row, column }) => ({
        type: "circle",
        xsizemode: "pixel",
        ysizemode: "pixel",
        xanchor: this.positions()[row],
        yanchor: this.data.getValue(row, column),
        x0: -5,
        x1: 5,
        y0: -5,
        y1: 5,
        line: { width: 2, color: this.color(this.series.findIndex((one) => one.column === column)) },
        fillcolor: "#fff",
      }));
    }

    getChartLayoutInterface() {
      this.rememberView();
      const { area, range } = this.view || { area: { left: 0, top: 0, width: 1, height: 1 }, range: [0, 1] };
      const valueAt = (x) => {
        const share = Number(((x - area.left) / area.width).toFixed(9)); // exactly 0 and 1 at the ends of the area
        return range[0] * (1 - share) + range[1] * share;
      };
      return { getChartAreaBoundingBox: () => ({ ...area }), getHAxisValue: valueAt };
    }
  }

  // ---- Timeline ---------------------------------------------------------------------------------------------------

  const LABELLED_BARS = 2000; // with more bars than this, labels in them would make plotly slow

  /** Bars from a start to an end (milliseconds), in a row for each name of the first column. */
  class Timeline extends PlotlyChart {
    build(previous) {
      const roles = this.data.columns.map((column, index) => ({ ...column, index }));
      const [group, name, start, end] = roles.filter((column) => column.role !== "tooltip").map(({ index }) => index);
      const tip = roles.find((column) => column.role === "tooltip");
      this.bars = this.data.rows.map((_, row) => ({
        row,
        group: this.data.getFormattedValue(row, group),
        name: this.data.getFormattedValue(row, name),
        start: this.data.getValue(row, start),
        end: this.data.getValue(row, end),
        tip: tip && tip.index,
      }));
      this.origin = this.bars.reduce((least, bar) => Math.min(least, bar.start), Infinity);
      this.lanes = placeInLanes(this.bars);
      super.build(previous);
    }

    height() {
      return Math.max(super.height(), this.lanes * 24 + 60);
    }

    defaultArea() {
      return { left: 16, right: 16, top: 8, bottom: 44 };
    }

    legendPosition() {
      return "none";
    }

    legendBox() {
      return {};
    }

    /** Bars of one name have one color. */
    colors() {
      const names = new Map();
      this.bars.forEach(({ name }) => names.has(name) || names.set(name, this.color(names.size)));
      return this.bars.map(({ name }) => names.get(name));
    }

    traces() {
      const colors = this.colors();
      const labelled = this.bars.length <= LABELLED_BARS;
      return [{
        type: "bar",
        orientation: "h",
        base: this.bars.map((bar) => bar.start - this.origin),
        x: this.bars.map((bar) => Math.max(bar.end - bar.start, 0)),
        y: this.bars.map((bar) => bar.lane),
        marker: { color: colors, line: { color: colors, width: 0.5 } },
        hoverinfo: "none",
        ...(labelled && {
          text: this.bars.map((bar) => escaped(shortened(bar.name, 60))),
          textposition: "inside",
          insidetextanchor: "middle",
          textangle: 0,
          insidetextfont: { color: "#fff" },
        }),
      }];
    }

    layout() {
      const { left, top, width, height } = this.area();
      const margin = { l: left, t: top, r: this.size.width - left - width, b: this.size.height - top - height };
      const title = { text: "Time since the first start (ms)", standoff: 8, font: { size: 12, style: "italic" } };
      return {
        margin: { ...margin, autoexpand: false },
        bargap: 0.2,
        uniformtext: { mode: "hide", minsize: 10 },
        dragmode: "zoom",
        xaxis: { ...NUMBERS, zeroline: false, gridcolor: "#e6e6e6", title },
        yaxis: { fixedrange: true, range: [this.lanes - 0.5, -0.5], visible: false },
      };
    }

    listen() {
      super.listen();
      this.plot.on("plotly_doubleclick", () => Plotly.relayout(this.plot, { "xaxis.autorange": true }));
    }

    placeOf(point) {
      return { row: point.pointNumber, column: null };
    }

    pointLines({ row }) {
      const bar = this.bars[row];
      const time = (value) => formatted(value - this.origin);
      return [
        ...(this.data.tooltipLines(row, bar.tip) || [[{ text: bar.name, bold: true }]]),
        [{ text: `${time(bar.start)} to ${time(bar.end)} ms` }],
      ];
    }
  }

  /** Give each bar its `lane`: a group has one lane, and more only where its bars overlap. Returns their number. */
  function placeInLanes(bars) {
    const groups = new Map();
    bars.forEach((bar) => groups.set(bar.group, [...(groups.get(bar.group) || []), bar]));
    let lanes = 0;
    groups.forEach((members) => {
      const ends = []; // of the last bar in each lane of the group
      members.sort((one, other) => one.start - other.start).forEach((bar) => {
        const free = ends.findIndex((end) => end <= bar.start);
        bar.lane = lanes + (free < 0 ? ends.length : free);
        ends[bar.lane - lanes] = bar.end;
      });
      lanes += ends.length;
    });
    return lanes;
  }

  // ---- Table ------------------------------------------------------------------------------------------------------

  const STYLES = ["background-color", "color", "font-weight", "text-align"]; // what a cell's style may set

  /** A table of HTML, sorted by a click on a column's name, in pages. */
  class Table extends Chart {
    build() {
      const { sortColumn, sortAscending = true } = this.options;
      this.columns = this.data.columns.map((column, index) => ({ ...column, index })).filter(({ role }) => !role);
      this.order = this.data.rows.map((_, row) => row);
      this.page = 0;
      this.box = this.host.appendChild(element("div", "gc-scroll"));
      if (typeof sortColumn === "number") {
        this.sort(sortColumn, sortAscending);
      } else {
        this.render();
      }
      this.emit("ready");
    }

    sort(column, ascending) {
      this.sorted = { column, ascending };
      const sign = ascending ? 1 : -1;
      const value = (row) => this.data.getValue(row, column);
      this.order.sort((one, other) => sign * compared(value(one), value(other)));
      this.page = 0;
      this.render();
    }

    pageSize() {
      return this.options.page === "enable" ? this.options.pageSize || 10 : Infinity;
    }

    render() {
      const size = this.pageSize();
      const first = this.page ? this.page * size : 0;
      const table = element("table", "gc-table");
      const body = element("tbody");
      table.append(this.head(), body);
      body.append(...this.order.slice(first, first + size).map((row) => this.row(row)));
      this.box.replaceChildren(table);
      if (this.order.length > size) {
        this.box.append(this.pager(Math.ceil(this.order.length / size)));
      }
      this.makeRoom();
    }

    /** The page gives the table of the Overview a fixed height: let its place grow where the rows need more. */
    makeRoom() {
      const parent = this.host.parentElement;
      if (parent && this.options.height === "100%") {
        parent.style.minHeight = this.box.offsetHeight + "px";
      }
    }

    head() {
      const head = element("thead");
      const row = head.appendChild(element("tr"));
      this.columns.forEach(({ label, index }) => {
        const { column, ascending } = this.sorted || {};
        const mark = ascending ? " ▲" : " ▼";
        const cell = row.appendChild(element("th", "", label + (column === index ? mark : "")));
        cell.addEventListener("click", () => this.sort(index, column === index ? !ascending : true));
      });
      return head;
    }

    row(row) {
      const line = element("tr");
      this.columns.forEach(({ type, index }) => {
        const text = this.data.getFormattedValue(row, index);
        const cell = line.appendChild(element("td", type === "number" ? "gc-number" : ""));
        if (this.options.allowHtml) {
          cell.append(plainElements(text));
          setPlainStyle(cell, this.data.getProperty(row, index, "style"));
        } else {
          cell.textContent = text;
        }
      });
      return line;
    }

    pager(pages) {
      const box = element("div", "gc-pages");
      const button = (text, page) => {
        const node = box.appendChild(element("button", "", text));
        node.disabled = page < 0 || page >= pages;
        node.addEventListener("click", () => {
          this.page = page;
          this.render();
        });
      };
      button("◀", this.page - 1);
      box.append(`${this.page + 1} / ${pages}`);
      button("▶", this.page + 1);
      return box;
    }
  }

  /** Order of two cells: numbers by size, everything else as text, nothing first. */
  function compared(one, other) {
    if (typeof one === "number" && typeof other === "number") {
      return one - other;
    }
    return formatted(one).localeCompare(formatted(other));
  }

  /** Set the harmless part of a style given as text. */
  function setPlainStyle(cell, text) {
    const given = element("span").style;
    given.cssText = text || "";
    STYLES.forEach((name) => cell.style.setProperty(name, given.getPropertyValue(name)));
  }

  // ---- The interface ----------------------------------------------------------------------------------------------

  const events = {
    addListener(chart, name, listener) {
      chart.listeners[name] = [...(chart.listeners[name] || []), listener];
    },
  };

  addStyle();
  window.google = {
    charts: { load: () => Promise.resolve() },
    visualization: {
      DataTable, arrayToDataTable, events,
      PieChart, SteppedAreaChart, ColumnChart, LineChart, ComboChart, Timeline, Table,
    },
  };
})();
