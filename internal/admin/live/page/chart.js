// A line chart of values over time, in SVG.

const height = 150;
const margin = { left: 56, right: 10, top: 10, bottom: 20 };

export class LineChart {
  // lines: [{ key, label, color: 1 to 5 }]. A decades chart has a logarithmic axis.
  constructor(parent, { title, unit, format, lines, decades = false }) {
    this.format = format;
    this.decades = decades;
    this.lines = lines;
    this.data = { t: [], v: {} };
    this.spanMs = 600e3;
    this.every = 1000;
    this.pointer = null; // a moment, in ms

    const root = add(parent, "article", { class: "chart", tabindex: "0", "aria-label": `${title}${unit ? ", " + unit : ""}: chart` });
    this.root = root;
    const head = add(root, "h2");
    head.append(title + " ");
    add(head, "span").textContent = unit ?? "";
    this.when = add(head, "time");
    this.svg = addSVG(root, "svg", { "aria-hidden": "true" });
    const legend = add(root, "div", { class: "legend" });
    this.values = lines.map((s) => {
      const item = add(legend, "span");
      add(item, "i", { class: "c" + s.color, "aria-hidden": "true" });
      item.append(s.label + " ");
      return add(item, "b");
    });

    this.grid = addSVG(this.svg, "g");
    this.paths = lines.map((s) => addSVG(this.svg, "path", { class: "series c" + s.color }));
    this.cursor = addSVG(this.svg, "path", { class: "cursor" });

    this.width = 0;
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      this.draw();
    }).observe(this.svg);
    this.svg.addEventListener("pointermove", (e) => {
      const plot = this.width - margin.left - margin.right;
      const share = (e.clientX - this.svg.getBoundingClientRect().left - margin.left) / plot;
      this.point(this.end() - (1 - Math.min(1, Math.max(0, share))) * this.spanMs);
    });
    this.svg.addEventListener("pointerleave", () => this.point(null));
    root.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (step) {
        e.preventDefault();
        const by = Math.max(this.every, this.spanMs / 120);
        this.point(Math.min(this.end(), Math.max(this.end() - this.spanMs, (this.pointer ?? this.end()) + step * by)));
      } else if (e.key === "Escape") {
        this.point(null);
      }
    });
    root.addEventListener("blur", () => this.point(null));
  }

  // show draws data, { every, t: [ms], v: { key: [value or null] } }, of a span.
  show(data, spanMs) {
    this.data = data;
    this.every = data.every;
    this.spanMs = spanMs;
    this.draw();
  }

  point(moment) {
    this.pointer = moment;
    this.draw();
  }

  end() {
    return this.data.t.length > 0 ? this.data.t.at(-1) : Date.now();
  }

  draw() {
    if (this.width === 0) return;
    const { t, v } = this.data;
    const end = this.end();
    const first = lowerBound(t, end - this.spanMs);
    const plotWidth = this.width - margin.left - margin.right;
    const plotHeight = height - margin.top - margin.bottom;
    const scale = this.decades ? decadeScale(this.lines, v, first) : niceScale(this.lines, v, first, this.format.unit);
    const x = (at) => margin.left + (1 - (end - at) / this.spanMs) * plotWidth;
    const y = (value) => margin.top + (1 - scale.height(value)) * plotHeight;

    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.drawGrid(scale, y, plotWidth);
    // More points than pixels are drawn as the highest and lowest of each pixel.
    const per = Math.max(1, Math.floor((t.length - first) / Math.max(1, plotWidth)));
    this.lines.forEach((s, i) => this.paths[i].setAttribute("d", linePath(t, v[s.key] ?? [], first, per, this.every, x, y, this.decades)));

    const shown = this.pointer === null ? t.length - 1 : nearest(t, first, this.pointer);
    const pointed = this.pointer !== null && shown >= 0;
    this.cursor.setAttribute("d", pointed ? `M${x(t[shown]).toFixed(1)} ${margin.top}V${height - margin.bottom}` : "");
    this.when.textContent = pointed ? new Date(t[shown]).toLocaleTimeString() : "";
    this.lines.forEach((s, i) => {
      const value = v[s.key]?.[shown];
      this.values[i].textContent = value === null || value === undefined ? "–" : this.format(value);
    });
  }

  drawGrid(scale, y, plotWidth) {
    const key = [scale.marks.join(), this.width, this.spanMs].join("/");
    if (this.gridKey === key) return;
    this.gridKey = key;
    this.grid.replaceChildren();
    for (const v of scale.marks) {
      const at = Math.round(y(v)) + 0.5;
      addSVG(this.grid, "path", { class: "grid", d: `M${margin.left} ${at}H${margin.left + plotWidth}` });
      addSVG(this.grid, "text", { x: margin.left - 6, y: at + 4, "text-anchor": "end" }).textContent = this.format(v, true);
    }
    const base = height - 5;
    const text = (ms) => (ms >= 3600e3 ? `${ms / 3600e3} h` : `${ms / 60e3} min`);
    addSVG(this.grid, "text", { x: margin.left, y: base }).textContent = text(this.spanMs) + " ago";
    addSVG(this.grid, "text", { x: margin.left + plotWidth / 2, y: base, "text-anchor": "middle" }).textContent = text(this.spanMs / 2);
    addSVG(this.grid, "text", { x: margin.left + plotWidth, y: base, "text-anchor": "end" }).textContent = "now";
  }
}

// lowerBound is the place of the first moment that is not before at.
export function lowerBound(t, at) {
  let low = 0;
  let high = t.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (t[mid] < at) low = mid + 1;
    else high = mid;
  }
  return low;
}

function nearest(t, first, at) {
  const i = Math.max(first, lowerBound(t, at));
  if (i >= t.length) return t.length - 1;
  return i > first && at - t[i - 1] < t[i] - at ? i - 1 : i;
}

// linePath connects the points, but for gaps in time and where nothing is known.
function linePath(t, values, first, per, every, x, y, skipZero) {
  let d = "";
  let before = -Infinity;
  const to = (at, v) => {
    d += (at - before > (per + 2) * every ? "M" : "L") + x(at).toFixed(1) + " " + y(v).toFixed(1);
    before = at;
  };
  for (let i = first; i < t.length; i += per) {
    let low = -1;
    let high = -1;
    for (let j = i; j < Math.min(i + per, t.length); j++) {
      if (values[j] === null || values[j] === undefined || (skipZero && values[j] === 0)) continue;
      if (low < 0 || values[j] < values[low]) low = j;
      if (high < 0 || values[j] > values[high]) high = j;
    }
    if (low < 0) {
      if (per === 1) before = -Infinity;
      continue;
    }
    to(t[Math.min(low, high)], values[Math.min(low, high)]);
    if (low !== high) to(t[Math.max(low, high)], values[Math.max(low, high)]);
  }
  // A point alone is drawn as a dot.
  return d.replace(/M([\d.-]+) ([\d.-]+)(?=M|$)/g, "M$1 $2h0.01");
}

function* known(lines, v, first) {
  for (const s of lines) {
    const values = v[s.key] ?? [];
    for (let i = first; i < values.length; i++) if (values[i] > 0) yield values[i];
  }
}

// A scale tells the height of a value, 0 to 1, and which values to mark.

// niceScale goes from zero to a round value above all; unit is what is round: 1000, or
// 1024 for bytes.
function niceScale(lines, v, first, unit = 1000) {
  let most = 0;
  for (const value of known(lines, v, first)) most = Math.max(most, value);
  let top = 1;
  let steps = 1;
  if (most > 0) {
    let power = unit === 1024 ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
    power *= 10 ** Math.floor(Math.log10(most / power));
    const round = [[1, 2], [1.5, 3], [2, 2], [3, 3], [4, 2], [5, 2], [6, 3], [8, 2], [10, 2]];
    const [factor, n] = round.find(([f]) => most <= f * power * 1.0001) ?? round.at(-1);
    top = factor * power;
    steps = n;
  }
  return {
    marks: Array.from({ length: steps + 1 }, (_, i) => (top * i) / steps),
    height: (value) => value / top,
  };
}

// decadeScale is logarithmic, from the power of ten below the smallest value to the
// one above the largest. Zero means that nothing was measured.
function decadeScale(lines, v, first) {
  let least = Infinity;
  let most = 0;
  for (const value of known(lines, v, first)) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  const low = most > 0 ? Math.floor(Math.log10(least)) : -4;
  const high = Math.max(low + 1, most > 0 ? Math.ceil(Math.log10(most)) : -2);
  const step = Math.ceil((high - low) / 5);
  return {
    marks: Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, i) => 10 ** (low + i * step)),
    height: (value) => (value > 0 ? (Math.log10(value) - low) / (high - low) : 0),
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
