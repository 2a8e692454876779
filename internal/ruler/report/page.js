"use strict";
// Remember the theme, where the browser lets a file do so.
for (const input of document.querySelectorAll(".themes input")) {
  try {
    if (localStorage.getItem("theme") === input.id) input.checked = true;
    input.addEventListener("change", () => localStorage.setItem("theme", input.id));
  } catch { /* then it is chosen anew each time */ }
}
// Show what a value is at once, in place of the browser's late tooltip.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
for (const svg of document.querySelectorAll("svg.chart")) {
  for (const title of svg.querySelectorAll(":scope title")) {
    if (title.parentNode === svg) continue;
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  svg.addEventListener("pointermove", (e) => {
    const at = e.target.closest("[data-tip]");
    tip.hidden = !at;
    if (!at) return;
    tip.textContent = at.dataset.tip;
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(e.clientX + 12, innerWidth - w - 4)) + "px";
    tip.style.top = (e.clientY + 18 + h > innerHeight ? e.clientY - h - 8 : e.clientY + 18) + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}
// A click on a frame of a flame graph makes it as wide as the graph; a click on
// one above it, or Escape, leads back.
for (const flame of document.querySelectorAll("g.flame")) {
  flame.classList.add("zooms");
  const hint = document.createElement("p");
  hint.className = "note hint";
  hint.textContent = "A click makes a frame as wide as the graph; Escape leads back.";
  flame.closest(".scroll").after(hint);
  const frames = [...flame.children].map((g) => {
    const r = g.querySelector("rect");
    return { g, r, x: +r.getAttribute("x"), w: +r.getAttribute("width") + 0.6, y: +r.getAttribute("y"), name: (g.dataset.tip || "").replace(/: [^:]*$/, "") };
  });
  const whole = frames[0].w;
  const zoom = (to) => {
    const k = whole / to.w;
    for (const f of frames) {
      const above = f.y < to.y && f.x <= to.x + 0.01 && f.x + f.w >= to.x + to.w - 0.01;
      const x = above ? 0 : (f.x - to.x) * k, w = above ? whole : f.w * k;
      const gone = !above && (f.y < to.y || x < -0.1 || x + w > whole + 0.7);
      f.g.style.display = gone ? "none" : "";
      f.g.style.opacity = above && f !== to ? 0.55 : "";
      if (gone) continue;
      f.r.setAttribute("x", x.toFixed(1));
      f.r.setAttribute("width", Math.max(w - 0.6, 0.4).toFixed(1));
      let t = f.g.querySelector("text");
      if (!t) {
        t = document.createElementNS(flame.namespaceURI, "text");
        t.setAttribute("class", "frame");
        t.setAttribute("y", f.y + 12.5);
        f.g.append(t);
      }
      const chars = Math.floor((w - 8) / 7.2), short = f.name.split("/").pop();
      t.setAttribute("x", (x + 4).toFixed(1));
      t.textContent = chars < 3 ? "" : f.name.length <= chars ? f.name : short.length <= chars ? short : short.slice(0, chars - 1) + "…";
    }
  };
  flame.addEventListener("click", (e) => {
    const f = frames.find((f) => f.g.contains(e.target));
    if (f) zoom(f);
  });
  document.addEventListener("keydown", (e) => { if (e.key === "Escape") zoom(frames[0]); });
}
