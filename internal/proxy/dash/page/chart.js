// A line chart of the last two minutes, in SVG.

const spanMs = 120e3;
// gapMs is the distance of two points over which no line is drawn: nobody
// watched in between.
const gapMs = 3000;
const height = 150;
const margin = { left: 52, right: 8, top: 10, bottom: 20 };

export class LineChart {
  // series: [{ label, color: 1 to 5, value: point => number }]; a decades chart
  // has a logarithmic axis, so that one spike does not flatten the rest.
  constructor(parent, { title, unit, format, series, decades = false }) {
    this.format = format;
    this.decades = decades;
    this.series = series;
    this.points = [];
    this.pointerX = null;

    const root = add(parent, "div", { class: "chart" });
    const head = add(root, "h2");
    head.append(title + " ");
    add(head, "span").textContent = unit ?? "";
    this.svg = addSVG(root, "svg", { role: "img", "aria-label": title + " over the last two minutes" });
    const legend = add(root, "div", { class: "legend" });
    this.values = series.map((s) => {
      const item = add(legend, "span");
      add(item, "i", { class: "c" + s.color });
      item.append(s.label + " ");
      return add(item, "b");
    });

    this.grid = addSVG(this.svg, "g");
    this.lines = series.map((s) => addSVG(this.svg, "path", { class: "series c" + s.color }));
    this.cursor = addSVG(this.svg, "path", { class: "cursor" });

    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      this.draw();
    }).observe(this.svg);
    this.svg.addEventListener("pointermove", (e) => {
      this.pointerX = e.clientX - this.svg.getBoundingClientRect().left;
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointerX = null;
      this.draw();
    });
  }

  update(points) {
    this.points = points;
    this.draw();
  }

  draw() {
    if (this.width === 0) return;
    const end = this.points.length > 0 ? this.points.at(-1).t : 0;
    const plotWidth = this.width - margin.left - margin.right;
    const plotHeight = height - margin.top - margin.bottom;
    const values = this.points.flatMap((p) => this.series.map((s) => s.value(p)));
    const scale = this.decades ? decadeScale(values) : niceScale(Math.max(0, ...values));
    const x = (t) => margin.left + (1 - (end - t) / spanMs) * plotWidth;
    const y = (v) => margin.top + (1 - scale.height(v)) * plotHeight;

    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.drawGrid(scale, y, plotWidth);
    this.series.forEach((s, i) => this.lines[i].setAttribute("d", linePath(this.points, s.value, x, y, this.decades)));

    const shown = this.pointed(x) ?? this.points.at(-1);
    this.cursor.setAttribute("d", this.pointerX !== null && shown
      ? `M${x(shown.t)} ${margin.top}V${height - margin.bottom}` : "");
    this.series.forEach((s, i) => { this.values[i].textContent = shown ? this.format(s.value(shown)) : ""; });
  }

  // pointed is the point nearest to the pointer.
  pointed(x) {
    if (this.pointerX === null) return undefined;
    let best;
    for (const p of this.points) {
      if (!best || Math.abs(x(p.t) - this.pointerX) < Math.abs(x(best.t) - this.pointerX)) best = p;
    }
    return best;
  }

  drawGrid(scale, y, plotWidth) {
    const key = scale.marks.join() + "/" + this.width;
    if (this.gridKey === key) return;
    this.gridKey = key;
    this.grid.replaceChildren();
    for (const v of scale.marks) {
      const at = Math.round(y(v)) + 0.5;
      addSVG(this.grid, "path", { class: "grid", d: `M${margin.left} ${at}H${margin.left + plotWidth}` });
      addSVG(this.grid, "text", { x: margin.left - 6, y: at + 4, "text-anchor": "end" }).textContent = this.format(v, true);
    }
    const base = height - 5;
    addSVG(this.grid, "text", { x: margin.left, y: base }).textContent = "2 min ago";
    addSVG(this.grid, "text", { x: margin.left + plotWidth / 2, y: base, "text-anchor": "middle" }).textContent = "1 min";
    addSVG(this.grid, "text", { x: margin.left + plotWidth, y: base, "text-anchor": "end" }).textContent = "now";
  }
}

// linePath connects the points, except over a gap in time, and with skipZero
// except where nothing was measured.
function linePath(points, value, x, y, skipZero) {
  let d = "";
  let before = -Infinity;
  for (const p of points) {
    const v = value(p);
    if (v === 0 && skipZero) {
      before = -Infinity;
      continue;
    }
    d += (p.t - before > gapMs ? "M" : "L") + x(p.t).toFixed(1) + " " + y(v).toFixed(1);
    before = p.t;
  }
  return d;
}

// A scale tells the height of a value, 0 to 1, and which values to mark.

// niceScale goes from zero to a round value above v.
function niceScale(v) {
  let top = 1;
  let steps = 1;
  if (v > 0) {
    const power = 10 ** Math.floor(Math.log10(v));
    const round = [[1, 2], [1.5, 3], [2, 2], [3, 3], [4, 2], [5, 2], [6, 3], [8, 2], [10, 2]];
    const [factor, n] = round.find(([f]) => v <= f * power * 1.0001) ?? round.at(-1);
    top = factor * power;
    steps = n;
  }
  return {
    marks: Array.from({ length: steps + 1 }, (_, i) => (top * i) / steps),
    height: (value) => value / top,
  };
}

// decadeScale is logarithmic, from the power of ten below the smallest value to
// the one above the largest. Zero means that
// nothing was measured.
function decadeScale(values) {
  const known = values.filter((v) => v > 0);
  const low = known.length > 0 ? Math.floor(Math.log10(Math.min(...known))) : -1;
  const high = Math.max(low + 1, known.length > 0 ? Math.ceil(Math.log10(Math.max(...known))) : 1);
  return {
    marks: Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i)),
    height: (v) => (v > 0 ? (Math.log10(v) - low) / (high - low) : 0),
  };
}

export function add(parent, name, attributes = {}) {
  return attach(parent, document.createElement(name), attributes);
}

function addSVG(parent, name, attributes = {}) {
  return attach(parent, document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
}

function attach(parent, element, attributes) {
  for (const [k, v] of Object.entries(attributes)) element.setAttribute(k, v);
  parent.append(element);
  return element;
}
