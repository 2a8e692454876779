// The live page: one event stream in, tiles, charts and tables out.

import { LineChart, add } from "./chart.js";
import { age, bytes, count, ms, ns, percent } from "./format.js";

const spanMs = 120e3;
const maxStatements = 15;
const maxLanes = 12;

const charts = [
  { title: "Statements", unit: "per second, by path", format: count, series: [
    { label: "shared", color: 1, value: (p) => p.shared },
    { label: "grouped", color: 2, value: (p) => p.grouped },
    { label: "alone", color: 3, value: (p) => p.alone },
  ] },
  { title: "Latency", unit: "of each half second", format: ms, decades: true, series: [
    { label: "p50", color: 1, value: (p) => p.p50 },
    { label: "p99", color: 2, value: (p) => p.p99 },
  ] },
  { title: "Clients", unit: "", format: count, series: [
    { label: "connected", color: 5, value: (p) => p.clients },
    { label: "active", color: 1, value: (p) => p.active },
    { label: "waiting", color: 2, value: (p) => p.waiting },
    { label: "pinned", color: 4, value: (p) => p.pinned },
  ] },
  { title: "Server connections", unit: "by what they do", format: count, series: [
    { label: "free", color: 5, value: (p) => p.backends.free },
    { label: "shared", color: 1, value: (p) => p.backends.shared },
    { label: "one client's", color: 3, value: (p) => p.backends.owned },
    { label: "groups", color: 2, value: (p) => p.backends.laned },
  ] },
  { title: "Group size", unit: "mean, statements", format: count, series: [
    { label: "per group", color: 2, value: (p) => p.group_size },
  ] },
  { title: "Write lanes", unit: "", format: count, series: [
    { label: "groups in flight", color: 2, value: (p) => p.in_flight },
    { label: "allowed", color: 5, value: (p) => p.allowed },
    { label: "statements queued", color: 4, value: (p) => p.queued },
  ] },
].map((c) => new LineChart(byId("charts"), c));

const tiles = {
  rate: tile("Statements/s"),
  p50: tile("p50"),
  p99: tile("p99"),
  clients: tile("Clients"),
  waiting: tile("Waiting"),
  group: tile("Group size"),
  errors: tile("Errors/s"),
  busy: tile("Event loops"),
};

let points = [];

const stream = new EventSource("events");
stream.addEventListener("history", (e) => {
  points = JSON.parse(e.data);
  drawCharts();
});
stream.addEventListener("tick", (e) => {
  const { point, state } = JSON.parse(e.data);
  setStatus("live", "live");
  if (point) {
    points.push(point);
    points = points.filter((p) => p.t >= point.t - spanMs);
    drawTiles(point, state);
    drawCharts();
  }
  drawTables(state);
});
stream.addEventListener("error", () => setStatus("lost", "connection lost, trying again"));

function drawCharts() {
  if (!document.hidden) for (const c of charts) c.update(points);
}

function drawTiles(p, s) {
  const total = p.shared + p.grouped + p.alone;
  const share = (v) => (total > 0 ? percent(v / total) : "0 %");
  tiles.rate(count(total), `${share(p.shared)} shared, ${share(p.grouped)} grouped`);
  tiles.p50(ms(p.p50), "median latency");
  tiles.p99(ms(p.p99), "slowest hundredth");
  tiles.clients(count(p.clients), `${count(p.active)} active, ${count(p.pinned)} pinned`);
  const oldest = Math.max(0, ...s.pools.map((pool) => pool.oldest_wait_ns));
  tiles.waiting(count(p.waiting), oldest > 0 ? `oldest ${ns(oldest)}` : "for a connection", oldest > 1e9);
  tiles.group(p.group_size > 0 ? count(p.group_size) : "–", "statements per write");
  tiles.errors(count(p.errors), "from the server");
  tiles.busy(percent(p.busy), `busy, ${bytes(p.bytes_in + p.bytes_out)}/s`, p.busy > 0.95);
}

function drawTables(s) {
  const sides = s.sides ?? [];
  const both = sides.length > 1; // then each row says whose it is
  const where = sides.map((side) => `${both ? side.title + " " : ""}${side.listen} → ${side.server}`);
  byId("where").textContent = [...where, `weir ${s.version}`, `up ${age(s.uptime_seconds)}`].join(" · ");
  const heading = both ? ["Side:text"] : [];
  const side = (row) => (both ? [{ text: sides.find((x) => x.engine === row.engine)?.title ?? row.engine }] : []);

  const busiest = [...s.statements]
    .sort((a, b) => b.per_second - a.per_second || b.runs - a.runs).slice(0, maxStatements);
  table("statements", [...heading, "/s", "total", "grouped", "errors", "cost", "Statement:text"], busiest.map((st) => [
    ...side(st), count(st.per_second), count(st.runs), st.runs > 0 ? percent(st.grouped / st.runs) : "",
    count(st.errors), st.cost_ns > 0 ? ns(st.cost_ns) : "", { sql: st.text },
  ]), "No statement yet.");

  table("pools", [...heading, "Database:text", "User:text", "clients", "active", "waiting", "connections", "free", "shared", "one client's", "groups",
    "p50", "p99", "errors", "timeouts"], s.pools.map((p) => {
    const b = p.backends;
    return [...side(p), { text: p.database }, { text: p.user }, count(p.clients), count(p.active), count(p.waiting),
      `${b.free + b.shared + b.owned + b.laned} of ${p.size}`, b.free, b.shared, b.owned, b.laned,
      ns(p.latency_ns.p50), ns(p.latency_ns.p99), count(p.errors), count(p.timeouts)];
  }), "No client has logged in yet.");

  const lanes = [...s.lanes].sort((a, b) => b.members - a.members).slice(0, maxLanes);
  table("lanes", [...heading, "Kind:text", "window", "groups", "mean size", "largest", "in flight", "queued", "wait p50", "flush p50", "run apart",
    "Statement:text"], lanes.map((l) => [
    ...side(l), { text: l.kind }, l.window_ns > 0 ? ns(l.window_ns) : "auto", count(l.groups), l.groups > 0 ? count(l.members / l.groups) : "",
    count(l.size_max), `${l.in_flight} of ${l.allowed}`, count(l.waiting), ns(l.wait_p50_ns), ns(l.flush_p50_ns),
    count(l.fallbacks), { sql: l.text },
  ]), "No write asked for a group yet: put /* batch */ in front of one, or start weir with --batch auto.");

  const pins = new Map();
  for (const p of s.pools) for (const [cause, n] of Object.entries(p.pins ?? {})) pins.set(cause, (pins.get(cause) ?? 0) + n);
  const most = Math.max(1, ...pins.values());
  table("pins", ["Cause:text", "pins", ""], [...pins].sort((a, b) => b[1] - a[1]).map(([cause, n]) => [
    { text: cause.replaceAll("_", " ") }, count(n), { share: n / most },
  ]), "No session needed a connection of its own.");

  const sum = (key) => s.pools.reduce((total, p) => total + p[key], 0);
  table("totals", ["What:text", ""], [
    ["logins", count(s.logins.accepted)],
    ["logins failed / refused", `${count(s.logins.failed)} / ${count(s.logins.refused)}`],
    ["statements shared / grouped / alone", `${count(sum("shared"))} / ${count(sum("grouped"))} / ${count(sum("alone"))}`],
    ["errors of the server", count(sum("errors"))],
    ["queue timeouts", count(sum("timeouts"))],
    ["run again apart", count(sum("reruns"))],
    ["settings replayed", count(sum("replays"))],
    ["hints not understood", count(s.bad_hints)],
    ["protocol errors", count(s.protocol_errors)],
    ["bytes in / out", `${bytes(s.bytes_in)} / ${bytes(s.bytes_out)}`],
  ].map(([name, value]) => [{ text: name }, value]));
}

// table fills a table. A heading "Name:text" is left-aligned. Cells are text,
// or objects of one key: text, sql or share.
function table(id, headings, rows, empty) {
  const t = byId(id);
  if (t.matches(":hover") && t.rows.length > 0 && id === "statements") return; // somebody reads
  const head = document.createElement("tr");
  for (const h of headings) {
    const [name, kind] = h.split(":");
    add(head, "th", { scope: "col", class: kind ?? "" }).textContent = name;
  }
  const body = rows.map((cells) => {
    const tr = document.createElement("tr");
    for (const c of cells) cell(tr, c);
    return tr;
  });
  if (rows.length === 0) {
    const tr = document.createElement("tr");
    add(tr, "td", { class: "none", colspan: headings.length }).textContent = empty;
    body.push(tr);
    t.replaceChildren(...body);
    return;
  }
  t.replaceChildren(head, ...body);
}

function cell(tr, c) {
  if (typeof c !== "object") {
    add(tr, "td").textContent = c;
  } else if ("share" in c) {
    add(add(tr, "td", { class: "bar" }), "meter", { value: c.share, "aria-hidden": "true" });
  } else if ("sql" in c) {
    add(tr, "td", { class: "sql", title: c.sql }).textContent = c.sql;
  } else {
    add(tr, "td", { class: "text" }).textContent = c.text;
  }
}

function tile(name) {
  const root = add(byId("tiles"), "div", { class: "tile" });
  add(root, "div", { class: "name" }).textContent = name;
  const value = add(root, "div", { class: "value" });
  const more = add(root, "div", { class: "more" });
  value.textContent = "–";
  return (text, detail, alarm = false) => {
    const [number, unit] = text.split(" ");
    value.textContent = number;
    if (unit) add(value, "small").textContent = " " + unit;
    more.textContent = detail;
    root.classList.toggle("alarm", alarm);
  };
}

function setStatus(state, text) {
  const s = byId("status");
  if (s.dataset.state === state) return;
  s.dataset.state = state;
  s.textContent = text;
}

function byId(id) {
  return document.getElementById(id);
}
