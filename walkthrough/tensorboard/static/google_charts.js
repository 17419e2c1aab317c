/*
 * The part of the Google Charts interface that the page of torch-tb-profiler 0.4.3 uses, drawn by plotly.js on this
 * machine: nothing is fetched. plotly.js (the global `Plotly`) is loaded by the page before this file.
 *
 * google.charts          load
 * google.visualization   DataTable, arrayToDataTable, events.addListener (ready, select), PieChart, SteppedAreaChart,
 *                        ColumnChart, LineChart, ComboChart, Timeline, Table
 *
 * Names of kernels, operators and runs come out of traces that strangers may have written. plotly reads some tags in
 * every text, so each text goes through `escaped`; of HTML tooltips only the text is kept; cells of tables are text.
 */
(() => {
  "use strict";

  const FONT = "Roboto, Arial, sans-serif";
  const COLORS = [
    "#3366CC", "#DC3912", "#FF9900", "#109618", "#990099", "#3B3EAC", "#0099C6", "#DD4477", "#66AA00", "#B82E2E",
    "#316395", "#994499", "#22AA99", "#AAAA11", "#6633CC", "#E67300", "#8B0707", "#329262", "#5574A6", "#651067",
  ];
  const CONFIG = { displayModeBar: false, doubleClick: false, showTips: false, typesetMath: false };
  const STYLE = `
    .gc-chart { width: 100%; color: #757575; font: 14px ${FONT}; text-align: center; }
    .gc-scroll { overflow: auto; }
    .gc-table { width: 100%; border-collapse: collapse; background: #fff; color: #000; font: 13px/17px ${FONT}; }
    .gc-table th, .gc-table td { padding: 3px 5px; border: 1px solid #eee; text-align: left; }
    .gc-table th { position: sticky; top: 0; background: #f0f0f0; border-color: #ccc; text-align: center;
      cursor: pointer; user-select: none; }
    .gc-table td.gc-number { text-align: right; white-space: nowrap; }
    .gc-table tbody tr:hover td { background: #d6e9f8 !important; }
  `;

  // ---- Text -------------------------------------------------------------------------------------------------------

  /** Text that plotly shows as it is, with its tags, its entities and its "%{…}". */
  function escaped(text) {
    return String(text).replace(/[&<>%]/g, (character) => `&#${character.codePointAt(0)};`);
  }

  /** A name for a legend, a tick or a bar: escaped, its middle left out where it is long; tooltips have it whole. */
  function shortened(name) {
    const all = Array.from(name);
    return escaped(all.length > 32 ? [...all.slice(0, 24), "…", ...all.slice(-7)].join("") : name);
  }

  /** A tooltip's lines as plotly draws them, which it does not break itself. */
  function hoverText(...lines) {
    return lines.flatMap((line) => line.split("\n")).flatMap((line) => line.match(/.{1,40}/gu) || []).map(escaped)
      .join("<br>");
  }

  /** A value as Google's charts write it: numbers with commas and at most three decimals. */
  function formatted(value) {
    const isNumber = typeof value === "number";
    return isNumber ? value.toLocaleString("en-US", { maximumFractionDigits: 3 }) : String(value ?? "");
  }

  /** Shortened names, those that occur again with a number, because plotly takes two of one name for one. */
  function distinct(names) {
    const seen = new Map();
    return names.map(shortened).map((text) => {
      seen.set(text, (seen.get(text) || 0) + 1);
      return seen.get(text) > 1 ? `${text} (${seen.get(text)})` : text;
    });
  }

  /** The text of an HTML text, in lines. It is parsed in a document in which no script runs and nothing is loaded. */
  function htmlText(html) {
    const { body } = new DOMParser().parseFromString(String(html), "text/html");
    body.querySelectorAll("br").forEach((node) => node.replaceWith("\n"));
    return body.textContent;
  }

  function element(name, className = "", text = "") {
    const node = document.createElement(name);
    node.className = className;
    node.textContent = text;
    return node;
  }

  /** An axis of plotly's, with numbers as Google's charts write them. */
  function axis(title = "") {
    const text = { text: escaped(title), font: { size: 12 } };
    return { exponentformat: "none", separatethousands: true, automargin: true, title: text };
  }

  // ---- Data -------------------------------------------------------------------------------------------------------

  /** A table of typed columns. A cell is kept as {v: value, f: its text if given, style: as the page sets it}. */
  class DataTable {
    columns = [];
    rows = [];

    /** addColumn({type, label, role, p}) or addColumn(type, label). */
    addColumn(type, label) {
      const column = typeof type === "object" ? type : { type, label };
      this.columns.push({ ...column, label: column.label ?? "", index: this.columns.length });
    }

    addRow(cells) {
      this.rows.push(this.columns.map((_, column) => cellOf(cells[column])));
    }

    addRows(rows) {
      rows.forEach((row) => this.addRow(row));
    }

    setProperty(row, column, name, value) {
      this.rows[row][column][name] = value;
    }

    text(row, column) {
      const { v, f } = this.rows[row][column];
      return String(f ?? formatted(v));
    }

    values(column) {
      return this.rows.map((cells) => cells[column].v);
    }

    texts(column) {
      return this.rows.map((_, row) => this.text(row, column));
    }

    /** The columns of numbers to draw, each with the column of its tooltips, if any. */
    series() {
      return this.columns.filter(({ role, index }) => index && !role).map((column) => {
        const next = this.columns[column.index + 1];
        return { ...column, tooltip: next?.role === "tooltip" ? next : undefined };
      });
    }

    /** The text that a column of tooltips gives a row; "" where it gives none. */
    tooltip(row, column) {
      const value = column && this.rows[row][column.index].v;
      return value === null || value === undefined ? "" : column.p?.html ? htmlText(value) : String(value);
    }
  }

  function cellOf(given) {
    const isCell = given !== null && typeof given === "object" && ("v" in given || "f" in given);
    return isCell ? { v: given.v, f: given.f } : { v: given };
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

  const drawnIn = new WeakMap(); // an element of the page -> the chart in it

  class Chart {
    listeners = {};
    selection = [];

    constructor(host) {
      this.host = host;
    }

    emit(name) {
      (this.listeners[name] || []).forEach((listener) => listener({}));
    }

    getSelection() {
      return this.selection;
    }

    /** Draw in the element; what another chart has drawn there before goes away. */
    draw(data, options = {}) {
      drawnIn.get(this.host)?.clearChart();
      drawnIn.set(this.host, this);
      Object.assign(this, { data, options });
      this.plot = element("div", "gc-chart", this.isEmpty() ? "No data" : "");
      this.plot.style.height = this.height() + "px";
      this.host.replaceChildren(this.plot);
      if (!this.isEmpty()) {
        this.drawn = Plotly.newPlot(this.plot, this.traces(), { ...this.usualLayout(), ...this.layout() }, CONFIG);
        this.drawn.then(() => this.isShown && this.listen());
      }
    }

    get isShown() {
      return drawnIn.get(this.host) === this;
    }

    clearChart() {
      if (this.isShown) {
        drawnIn.delete(this.host);
        this.observer?.disconnect();
        this.drawn?.then(() => Plotly.purge(this.plot)); // plotly cannot end a chart that it still draws
        this.host.replaceChildren();
      }
    }

    isEmpty() {
      return !this.data.rows.length;
    }

    height() {
      return this.options.height || 300;
    }

    usualLayout() {
      const { title, legend } = this.options;
      return {
        font: { family: FONT, size: 12, color: "#444" },
        margin: { l: 16, r: 16, t: title ? 44 : 16, b: 16 },
        title: { text: escaped(title || ""), font: { size: 14 }, x: 0.02 },
        showlegend: legend !== "none",
        legend: { y: 0.5 },
        hovermode: "closest",
        hoverlabel: { align: "left", namelength: -1, bgcolor: "#fff", font: { color: "#000" } },
        dragmode: false,
      };
    }

    color(index) {
      const colors = this.options.colors || COLORS;
      return colors[index % colors.length];
    }

    listen() {
      this.plot.on("plotly_click", ({ points: [point] }) => {
        this.selection = [{ row: point.pointNumber, column: point.data.meta ?? null }];
        setTimeout(() => this.emit("select"), 0); // when plotly is done with the click: a listener may remove the chart
      });
      let width = this.plot.clientWidth;
      this.observer = new ResizeObserver(() => {
        if (![0, width].includes(this.plot.clientWidth)) {
          width = this.plot.clientWidth;
          Plotly.Plots.resize(this.plot);
        }
      });
      this.observer.observe(this.plot);
      this.whole = this.plot.layout.xaxis?.range?.slice();
      this.emit("ready");
    }

    showAll() {
      Plotly.relayout(this.plot, { "xaxis.range": this.whole });
    }
  }

  /** Slices clockwise in the order of the rows. */
  class PieChart extends Chart {
    isEmpty() {
      return !this.data.values(1).some((value) => value > 0);
    }

    traces() {
      const values = this.data.values(1).map((value) => (value > 0 ? value : 0));
      return [{
        type: "pie",
        labels: distinct(this.data.texts(0)),
        values,
        hole: this.options.pieHole,
        sort: false,
        direction: "clockwise",
        textinfo: "percent",
        textposition: "inside",
        insidetextorientation: "horizontal",
        insidetextfont: { color: "#fff" },
        hoverinfo: this.options.tooltip?.text === "percentage" ? "text+percent" : "text+value+percent",
        hovertext: this.data.texts(0).map((name) => hoverText(name)),
        marker: { colors: values.map((_, row) => this.color(row)) },
      }];
    }

    layout() {
      return { uniformtext: { mode: "hide", minsize: 10 } };
    }
  }

  // ---- Charts with axes -------------------------------------------------------------------------------------------

  /** Rows along a horizontal axis (names, or numbers), one series for each data column. */
  class ColumnChart extends Chart {
    bargap = 0.382;
    opacity = 1;

    /** How a series is drawn: {type: "bars" or "line", targetAxisIndex: 1 for the axis on the right}. */
    style() {
      return { type: "bars" };
    }

    isNamed() {
      return this.data.columns[0].type !== "number";
    }

    positions() {
      return this.isNamed() ? distinct(this.data.texts(0)) : this.data.values(0);
    }

    traces() {
      return this.data.series().map(({ index: column, label, tooltip }, index) => {
        const { type, targetAxisIndex } = this.style(index);
        return {
          type: type === "line" ? "scatter" : "bar",
          mode: this.data.rows.length > 1 ? "lines" : "markers",
          name: shortened(label),
          x: this.positions(),
          y: this.data.values(column),
          yaxis: targetAxisIndex ? "y2" : "y",
          meta: column,
          hoverinfo: tooltip ? "text" : "x+y+name",
          hovertext: tooltip && this.data.rows.map((_, row) => hoverText(this.data.tooltip(row, tooltip))),
          line: { color: this.color(index) },
          marker: { color: this.color(index), opacity: this.opacity },
        };
      });
    }

    layout() {
      const { isStacked, hAxis, vAxis } = this.options;
      const vertical = { fixedrange: true, rangemode: "tozero", zerolinecolor: "#333" };
      return {
        barmode: isStacked ? "relative" : this.opacity < 1 ? "overlay" : "group",
        bargap: this.bargap,
        xaxis: {
          ...axis(hAxis?.title), fixedrange: true, zeroline: false, type: this.isNamed() ? "category" : "linear",
        },
        yaxis: { ...axis(vAxis?.title), ...vertical },
        yaxis2: { ...axis(), ...vertical, overlaying: "y", side: "right", showgrid: false, tickmode: "auto" },
        legend: { orientation: "h", x: 0.5, xanchor: "center", y: 0, yref: "container", yanchor: "bottom" },
      };
    }
  }

  /** Bars without gaps; one in front of the other where they are not stacked. */
  class SteppedAreaChart extends ColumnChart {
    bargap = 0;
    opacity = 0.8;
  }

  /** Bars and lines, each series on the left axis or on the right one. */
  class ComboChart extends ColumnChart {
    style(index) {
      return { type: this.options.seriesType, ...this.options.series?.[index] };
    }
  }

  /** Lines, of which a range along the horizontal axis is chosen with the mouse. */
  class LineChart extends ColumnChart {
    style() {
      return { type: "line" };
    }

    layout() {
      const layout = super.layout();
      return { ...layout, dragmode: "zoom", xaxis: { ...layout.xaxis, fixedrange: false } };
    }

    listen() {
      super.listen();
      this.plot.on("plotly_doubleclick", () => this.showAll());
      this.plot.addEventListener("contextmenu", (event) => {
        event.preventDefault();
        this.showAll();
      });
    }

    /** A ring around each selected point. Ranges are given with them: plotly cannot find them once rings have gone. */
    setSelection(selection = []) {
      const size = { xsizemode: "pixel", ysizemode: "pixel", x0: -5, x1: 5, y0: -5, y1: 5 };
      const shapes = selection.map(({ row, column }) => ({
        type: "circle",
        ...size,
        xanchor: this.data.rows[row][0].v,
        yanchor: this.data.rows[row][column].v,
        fillcolor: "#fff",
        line: { color: this.color(column - 1) },
      }));
      this.drawn?.then(() => {
        if (this.isShown) {
          const { xaxis, yaxis } = this.plot.layout;
          Plotly.relayout(this.plot, { shapes, "xaxis.range": xaxis.range, "yaxis.range": yaxis.range });
        }
      });
    }

    /** The horizontal axis as an area from 0 to 1. Still asked for when another chart has taken this one's place. */
    getChartLayoutInterface() {
      this.range = this.plot.layout?.xaxis.range.slice() ?? this.range;
      const [low, high] = this.range;
      return {
        getChartAreaBoundingBox: () => ({ left: 0, top: 0, width: 1, height: 1 }),
        getHAxisValue: (x) => low * (1 - x) + high * x,
      };
    }
  }

  // ---- Timeline ---------------------------------------------------------------------------------------------------

  const MOST_LABELLED = 2000; // bars: labels in more would make plotly slow

  /** Bars from a start to an end (milliseconds), in a row for each name of the first column, where none overlap. */
  class Timeline extends Chart {
    height() {
      return Math.max(super.height(), new Set(this.data.values(0)).size * 24 + 60);
    }

    traces() {
      const columns = this.data.columns.filter(({ role }) => !role);
      const [rows, names, start, end] = columns.map(({ index }) => this.data.values(index));
      const tooltips = this.data.columns.find(({ role }) => role === "tooltip");
      const origin = start.reduce((least, time) => Math.min(least, time), Infinity);
      const colors = new Map([...new Set(names)].map((name, index) => [name, this.color(index)]));
      return [{
        type: "bar",
        orientation: "h",
        base: start.map((time) => time - origin),
        x: end.map((time, row) => Math.max(time - start[row], 0)),
        y: rows,
        marker: { color: names.map((name) => colors.get(name)) },
        hoverinfo: "text",
        hovertext: names.map((name, row) => hoverText(this.data.tooltip(row, tooltips) || name,
          `${formatted(start[row] - origin)} to ${formatted(end[row] - origin)} ms`)),
        text: names.length > MOST_LABELLED ? undefined : names.map(shortened),
        textposition: "inside",
        insidetextanchor: "middle",
        textangle: 0,
        insidetextfont: { color: "#fff" },
      }];
    }

    layout() {
      return {
        showlegend: false,
        bargap: 0.2,
        uniformtext: { mode: "hide", minsize: 10 },
        dragmode: "zoom",
        xaxis: { ...axis("Time since the first start (ms)"), zeroline: false },
        yaxis: { type: "category", autorange: "reversed", fixedrange: true, visible: false },
      };
    }

    listen() {
      super.listen();
      this.plot.on("plotly_doubleclick", () => this.showAll());
    }
  }

  // ---- Table ------------------------------------------------------------------------------------------------------

  /** A table of HTML, sorted by a click on a column's name. */
  class Table {
    constructor(host) {
      this.host = host;
    }

    draw(data, options) {
      this.data = data;
      this.columns = data.columns.filter(({ role }) => !role);
      this.table = element("table", "gc-table");
      const box = element("div", "gc-scroll");
      box.append(this.table);
      this.host.replaceChildren(box);
      this.show(options.sortColumn, options.sortAscending);
      // the page gives the table of the Overview a fixed height: its place grows where the rows need more
      this.host.parentElement.style.minHeight = box.offsetHeight + "px";
    }

    /** Show the rows, sorted by a column if one is given. */
    show(sorted, ascending = true) {
      const order = this.data.rows.map((_, row) => row);
      if (sorted !== undefined) {
        const values = this.data.values(sorted);
        order.sort((one, other) => (ascending ? 1 : -1) * compared(values[one], values[other]));
      }
      const head = this.columns.map(({ label, index }) => {
        const cell = element("th", "", label + (sorted === index ? (ascending ? " ▲" : " ▼") : ""));
        cell.addEventListener("click", () => this.show(index, sorted === index ? !ascending : true));
        return cell;
      });
      const body = order.map((row) => this.columns.map(({ type, index }) => {
        const cell = element("td", type === "number" ? "gc-number" : "", this.data.text(row, index));
        cell.style.cssText = this.data.rows[row][index].style || "";
        return cell;
      }));
      const [thead, tbody] = [["thead", [head]], ["tbody", body]].map(([name, lines]) => {
        const part = element(name);
        lines.forEach((cells) => part.appendChild(element("tr")).append(...cells));
        return part;
      });
      this.table.replaceChildren(thead, tbody);
    }
  }

  /** Order of two cells: numbers by size, everything else as text, nothing first. */
  function compared(one, other) {
    const numbers = typeof one === "number" && typeof other === "number";
    return numbers ? one - other : formatted(one).localeCompare(formatted(other));
  }

  // ---- The interface ----------------------------------------------------------------------------------------------

  const events = { addListener: (chart, name, listener) => (chart.listeners[name] ||= []).push(listener) };

  document.head.append(element("style", "", STYLE));
  window.google = {
    charts: { load: () => Promise.resolve() },
    visualization: {
      DataTable, arrayToDataTable, events,
      PieChart, SteppedAreaChart, ColumnChart, LineChart, ComboChart, Timeline, Table,
    },
  };
})();
