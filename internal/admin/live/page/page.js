// The live page: panels as the product describes them, history, then a stream of what
// is new.

import { LineChart, add, lowerBound } from "./chart.js";
import { formats, percent } from "./format.js";
import { Table } from "./table.js";

const spans = { "2m": 120e3, "10m": 600e3, "1h": 3600e3, "6h": 21600e3 };
const fineSpanMs = 600e3;

const page = {
  panels: null,
  span: "10m",
  data: { every: 1000, t: [], v: {} },
  detail: null,
  paused: false,
  charts: [],
  tiles: [],
  tables: new Map(),
};

await start();

async function start() {
  page.panels = await json("panels.json");
  const { tiles, charts, links, actions } = page.panels;
  page.tiles = tiles.map(tile);
  page.charts = charts.map((c) => new LineChart(byId("charts"), { ...c, format: formats[c.format] }));
  for (const path of [...(links ?? []), "metrics", "healthz", "readyz", "debug/pprof/"]) {
    add(byId("links"), "a", { href: path }).textContent = path;
    byId("links").append(" ");
  }
  (actions ?? []).forEach(action);
  tools();
  await load();
  if (Date.now() - (page.data.t[0] ?? Date.now()) < spans["2m"]) document.querySelector('[data-span="2m"]').click(); // a young process
  const stream = new EventSource("events");
  let lost = false;
  stream.addEventListener("open", () => {
    if (lost) load(); // what was missed
    lost = false;
  });
  stream.addEventListener("tick", (e) => tick(JSON.parse(e.data)));
  stream.addEventListener("error", () => {
    lost = true;
    setStatus("lost", "connection lost, trying again");
  });
}

async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// load fetches the points of the span that is shown.
async function load() {
  const span = page.span;
  const data = await json("history.json?span=" + (spans[span] <= fineSpanMs ? "10m" : span));
  if (span !== page.span) return; // another was asked for meanwhile
  page.data = data;
  page.loaded = Date.now();
  draw();
}

function tick({ t, v, detail }) {
  page.detail = detail;
  if (v && (page.data.t.length === 0 || t > page.data.t.at(-1))) {
    if (page.data.every === 1000) append(page.data, t, v);
    else if (Date.now() - page.loaded > page.data.every) load();
  }
  page.now = v;
  setStatus("live", page.paused ? "paused" : "live");
  draw();
}

function append(data, t, v) {
  const old = lowerBound(data.t, t - fineSpanMs);
  data.t.push(t);
  data.t.splice(0, old);
  for (const { key } of page.panels.series) {
    const list = (data.v[key] ??= []);
    list.push(v[key] ?? null);
    list.splice(0, old);
  }
}

function draw() {
  if (page.paused || document.hidden) return;
  for (const c of page.charts) c.show(page.data, spans[page.span]);
  if (page.now) for (const t of page.tiles) t(page.now);
  if (page.detail) drawDetail(page.detail);
}

function drawDetail({ facts, problems, tables }) {
  byId("facts").textContent = (facts ?? []).join(" · ");
  const box = byId("problems");
  const text = (problems ?? []).join("\n");
  if (box.dataset.text !== text) { // an alert is read out when it changes
    box.dataset.text = text;
    box.replaceChildren();
    for (const p of problems ?? []) add(box, "p").textContent = p;
  }
  for (const t of tables ?? []) {
    let table = page.tables.get(t.title);
    if (!table) page.tables.set(t.title, (table = new Table(byId("tables"), t)));
    table.show(t, byId("filter").value.trim().toLowerCase());
  }
}

// action adds a button that posts to a path.
function action({ label, path }) {
  const button = add(byId("actions"), "button", { type: "button" });
  button.textContent = label;
  button.addEventListener("click", async () => {
    const answer = await fetch(path, { method: "POST", headers: { "X-Weir-Action": "1" } });
    byId("said").textContent = answer.ok ? "" : await answer.text();
  });
}

function tile({ label, key, format, per, parts, note, alarm }) {
  const root = add(byId("tiles"), "div", { class: "tile" });
  add(root, "div", { class: "name" }).textContent = label;
  const value = add(root, "div", { class: "value" });
  const more = add(root, "div", { class: "more" });
  value.textContent = "–";
  more.textContent = note ?? "";
  return (now) => {
    const v = now[key];
    const known = v !== null && v !== undefined;
    const [number, unit] = known ? formats[format](v).split(" ") : ["–"];
    value.textContent = number;
    const behind = [unit, per].filter(Boolean).join("");
    if (behind) add(value, "small").textContent = " " + behind;
    if (parts) {
      more.textContent = parts.map((p) => {
        const part = now[p.key];
        if (part === null || part === undefined) return "";
        if (p.format === "share") return v > 0 ? `${percent(part / v)} ${p.label}` : "";
        return `${formats[p.format](part)} ${p.label}`;
      }).filter(Boolean).join(", ");
    }
    root.classList.toggle("alarm", alarm > 0 && known && v > alarm);
  };
}

function tools() {
  const buttons = [...byId("spans").querySelectorAll("button")];
  const show = (span) => {
    page.span = span;
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.span === span));
    load();
  };
  for (const b of buttons) b.addEventListener("click", () => show(b.dataset.span));
  const pause = () => {
    page.paused = !page.paused;
    byId("pause").setAttribute("aria-pressed", String(page.paused));
    setStatus("live", page.paused ? "paused" : "live");
    draw();
  };
  byId("pause").addEventListener("click", pause);
  const themes = ["auto", "light", "dark"];
  const theme = (step) => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme ?? "auto") + step) % themes.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    byId("theme").textContent = next[0].toUpperCase() + next.slice(1);
    try {
      localStorage.setItem("weir-theme", next);
    } catch {
      // It holds until the page is left.
    }
  };
  theme(0);
  byId("theme").addEventListener("click", () => theme(1));
  const help = () => byId("help").showModal();
  byId("help").addEventListener("close", () => {
    if (document.activeElement?.closest("dialog")) document.activeElement.blur();
  });
  byId("help-open").addEventListener("click", help);
  byId("filter").addEventListener("input", draw);
  byId("filter").addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    e.target.value = "";
    e.target.blur();
    draw();
  });
  document.addEventListener("visibilitychange", draw);
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || byId("help").open || e.target.closest("input")) return;
    const span = Object.keys(spans)[Number(e.key) - 1];
    if (span) return show(span);
    const action = { p: pause, t: () => theme(1), "?": help, j: () => step(1), k: () => step(-1), "/": () => byId("filter").focus() }[e.key];
    if (!action) return;
    e.preventDefault();
    action();
  });
}

// step moves the focus to the next chart or table.
function step(by) {
  const stops = [...document.querySelectorAll(".chart, #tables article")];
  const here = stops.indexOf(document.activeElement?.closest(".chart, #tables article"));
  const next = stops[here < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(stops.length - 1, Math.max(0, here + by))];
  next?.focus();
}

function setStatus(state, text) {
  const s = byId("status");
  if (s.textContent === text) return;
  s.dataset.state = state;
  s.textContent = text;
}

function byId(id) {
  return document.getElementById(id);
}
