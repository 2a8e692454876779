// Package livetest lets the tests of products check their live pages.
package livetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/testkit/browser"
)

// patience limits a wait; machines may be busy with other tests.
const patience = 2 * time.Minute

// Load calls do again and again, until the history of a process has a few points at which a
// value is above zero. No page is open meanwhile.
func Load(t *testing.T, admin, key string, do func(i int)) {
	t.Helper()
	looked := time.Now()
	for i, end := 0, time.Now().Add(patience); ; i++ {
		do(i)
		time.Sleep(25 * time.Millisecond) // without a pause this would use the whole machine
		if time.Since(looked) < 500*time.Millisecond {
			continue
		}
		looked = time.Now()
		if points(t, admin, key) >= 3 {
			return
		}
		if looked.After(end) {
			t.Fatalf("after %v the history has no load in %s", patience, key)
		}
	}
}

// points returns how many points of the history have a value above zero.
func points(t *testing.T, admin, key string) (n int) {
	t.Helper()
	resp, err := http.Get(admin + "history.json?span=10m")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var history struct{ V map[string][]*float64 }
	if err := json.NewDecoder(resp.Body).Decode(&history); err != nil {
		t.Fatal(err)
	}
	for _, v := range history.V[key] {
		if v != nil && *v > 0 {
			n++
		}
	}
	return n
}

// Page is a live page in a browser.
type Page struct {
	*browser.Page
	t    *testing.T
	name string // of screenshots
}

// Desktop and phone are the window sizes in which pages are checked.
var (
	desktop = browser.View{Width: 1280, Height: 900}
	phone   = browser.View{Width: 390, Height: 844, Phone: true}
)

// Open opens the page at an admin address, which ends with a slash.
func Open(t *testing.T, b *browser.Browser, admin, name string) *Page {
	t.Helper()
	p := &Page{b.Open(admin, desktop), t, name}
	p.Await("live", `document.getElementById("status")?.textContent === "live"`)
	return p
}

// HasPoints fails the test if a chart has no line.
func (p *Page) HasPoints(charts ...string) {
	p.t.Helper()
	drawn := browser.Eval[map[string]int](p.Page, `Object.fromEntries([...document.querySelectorAll(".chart")].map((c) =>
  [c.getAttribute("aria-label"), Math.max(...[...c.querySelectorAll(".series")].map((s) => (s.getAttribute("d") ?? "").split(/[ML]/).length - 1))]))`)
	for _, title := range charts {
		found := false
		for label, n := range drawn {
			if rest, ok := strings.CutPrefix(label, title); ok && strings.HasPrefix(strings.TrimLeft(rest, ","), ":") || strings.HasPrefix(label, title+", ") {
				if found = true; n == 0 {
					p.t.Errorf("chart %s is empty", title)
				}
			}
		}
		if !found {
			p.t.Errorf("there is no chart %s among %v", title, drawn)
		}
	}
}

// HasRows waits until a table contains a text in its rows.
func (p *Page) HasRows(table, text string) {
	p.t.Helper()
	p.Await(fmt.Sprintf("%q in table %s", text, table), fmt.Sprintf(`[...document.querySelectorAll("#tables article")].some((a) =>
  a.querySelector("h2").textContent === %q && a.querySelector("tbody").textContent.toLowerCase().includes(%q.toLowerCase()))`, table, text))
}

// Works uses the page by keyboard, and checks it on a phone and in dark mode.
func (p *Page) Works() {
	p.t.Helper()
	fits := func(where string) {
		p.t.Helper()
		if wide := p.Overflow(); wide != "" {
			p.t.Errorf("%s: the page is wider than the window: %s", where, wide)
		}
	}
	fits("desktop")
	p.Keep(p.name + "-light")
	if low := p.contrast(); len(low) > 0 {
		p.t.Errorf("light: too little contrast: %q", low)
	}
	p.Look(browser.View{Width: desktop.Width, Height: desktop.Height, Dark: true})
	p.Keep(p.name + "-dark")
	if low := p.contrast(); len(low) > 0 {
		p.t.Errorf("dark: too little contrast: %q", low)
	}
	p.Look(phone)
	fits("phone")
	p.Keep(p.name + "-phone")
	p.Look(desktop)

	p.Press("?")
	p.Await("the list of keys", `document.getElementById("help").open`)
	p.Press("Escape")
	p.Await("the list is closed", `!document.getElementById("help").open`)
	p.Press("t", "t")
	p.Await("dark colours", `getComputedStyle(document.documentElement).colorScheme === "dark"`)
	p.Press("t")
	p.Press("3")
	p.Await("an hour", `document.querySelector('[data-span="1h"]').getAttribute("aria-pressed") === "true" && document.querySelector(".chart svg").textContent.includes("1 h ago")`)
	p.Press("2")
	p.Press("j", "ArrowLeft")
	p.Await("the values of a moment", `document.activeElement.classList.contains("chart") && document.activeElement.querySelector("time").textContent !== ""`)
	p.Press("p")
	p.Await("a pause", `document.getElementById("status").textContent === "paused"`)
	p.Press("p")
	p.Press("/", "z", "q", "z", "q")
	p.Await("filtered tables", `document.getElementById("tables").textContent.includes("Nothing here matches the filter")`)
	p.Press("Escape")
	// A focused statement keeps the focus while new values arrive.
	if browser.Eval[bool](p.Page, `(() => {
  const statement = document.querySelector("#tables td.sql");
  statement?.focus();
  window.ticks = 0;
  new EventSource("events").addEventListener("tick", () => window.ticks++);
  return statement !== null;
})()`) {
		p.Await("new values", `window.ticks >= 3`)
		if !browser.Eval[bool](p.Page, `document.activeElement.matches("td.sql")`) {
			p.t.Error("a statement lost the focus when new values arrived")
		}
	}
	// Controls have names for screen readers, and are in the order of the page.
	if got := browser.Eval[[]string](p.Page, `[...document.querySelectorAll("button, a[href], input, [tabindex='0']")].filter((e) =>
  !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels?.length || e.title)).map((e) => e.outerHTML.slice(0, 80))`); len(got) > 0 {
		p.t.Errorf("without a name: %q", got)
	}
	if got := browser.Eval[int](p.Page, `document.querySelectorAll("[tabindex]:not([tabindex='0']):not([tabindex='-1'])").length`); got > 0 {
		p.t.Errorf("%d elements change the order of the tabulator", got)
	}
}

// contrast returns texts whose color is too similar to the background: a contrast below 4.5 to
// 1, the minimum of WCAG 2.2 AA.
func (p *Page) contrast() []string {
	p.t.Helper()
	return browser.Eval[[]string](p.Page, `(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (c) => { if (!known.has(c)) known.set(c, drawn(c)); return known.get(c); };
  const drawn = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return rgba("#fff"); };
  const out = new Set();
  for (const e of document.body.querySelectorAll("*")) {
    if (e.closest("dialog, .skip, noscript") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgba(e.closest("svg") ? style.fill : style.color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.add(ratio.toFixed(2) + " " + e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 30));
  }
  return [...out].slice(0, 10);
})()`)
}
