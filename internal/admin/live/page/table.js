// A table that can be sorted and filtered, and is left alone while it is read.

import { add } from "./chart.js";
import { formats } from "./format.js";

let number = 0;

export class Table {
  constructor(parent, { title, wide }) {
    const id = "table-" + ++number;
    const root = add(parent, "article", { tabindex: "-1", "aria-labelledby": id, class: wide ? "wide" : "" });
    add(root, "h2", { id }).textContent = title;
    this.table = add(add(root, "div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": id }), "table", { "aria-labelledby": id });
    this.head = add(add(this.table, "thead"), "tr");
    this.body = add(this.table, "tbody");
    this.sort = null; // { column, down }
  }

  show(t, filter) {
    this.last = [t, filter];
    if (this.body.matches(":hover, :focus-within") && this.shown === filter + t.columns.length) return; // it is being read
    this.shown = filter + t.columns.length;
    this.drawHead(t);
    let rows = t.rows ?? [];
    if (filter) rows = rows.filter((cells) => cells.some((c) => (c.s ?? "").toLowerCase().includes(filter)));
    if (this.sort) {
      const { column, down } = this.sort;
      const order = (a, b) => (a.v !== undefined || b.v !== undefined ? (a.v ?? -Infinity) - (b.v ?? -Infinity) : (a.s ?? "").localeCompare(b.s ?? ""));
      rows = [...rows].sort((a, b) => (down ? -1 : 1) * order(a[column], b[column]));
    }
    this.body.replaceChildren(...rows.map((cells) => {
      const tr = document.createElement("tr");
      cells.forEach((c, i) => cell(tr, c, t.columns[i]?.text));
      return tr;
    }));
    if (rows.length === 0) {
      const said = (t.rows ?? []).length > 0 ? "Nothing here matches the filter." : t.empty || "Nothing yet.";
      add(add(this.body, "tr"), "td", { class: "none", colspan: t.columns.length }).textContent = said;
    }
    this.head.hidden = (t.rows ?? []).length === 0 || t.columns.every((c) => c.name === "");
  }

  // drawHead draws the headings where they are others than before, so that one keeps
  // the focus.
  drawHead({ columns }) {
    const key = JSON.stringify([columns, this.sort]);
    if (this.headKey === key) return;
    this.headKey = key;
    const focused = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
    this.head.replaceChildren();
    columns.forEach((c, i) => {
      const th = add(this.head, "th", { scope: "col", class: c.text ? "text" : "" });
      if (this.sort?.column === i) th.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      if (c.name === "") return;
      const button = add(th, "button", { type: "button", title: c.help ?? "" });
      button.textContent = c.name + (this.sort?.column === i ? (this.sort.down ? " ↓" : " ↑") : "");
      button.addEventListener("click", () => {
        const down = this.sort?.column === i ? !this.sort.down : !c.text;
        this.sort = { column: i, down };
        this.shown = null;
        this.show(...this.last);
      });
    });
    if (focused >= 0) this.head.querySelectorAll("button")[focused]?.focus();
  }
}

function cell(tr, c, text) {
  const bad = c.bad ? " bad" : "";
  if (c.bar) {
    const td = add(tr, "td", { class: "bar" });
    add(td, "meter", { value: c.v ?? 0, "aria-label": formats.percent(c.v ?? 0) });
  } else if (c.code) {
    add(tr, "td", { class: "sql" + bad, title: c.s ?? "", tabindex: "0" }).textContent = c.s ?? "";
  } else if (c.f) {
    add(tr, "td", { class: (text ? "text" : "") + bad }).textContent = c.v === undefined ? "" : formats[c.f](c.v);
  } else if (c.link) {
    add(add(tr, "td", { class: "text" }), "a", { href: c.s, target: "_blank", rel: "noopener" }).textContent = c.s;
  } else {
    add(tr, "td", { class: (text ? "text" : "") + bad }).textContent = c.s ?? "";
  }
}
