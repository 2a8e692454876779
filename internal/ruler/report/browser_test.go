package report

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The probe runs in the page and says which texts of a chart touch each other or
// lie outside of it, and whether the page is wider than its window.
const probe = `<script>
addEventListener("load", () => {
  const said = [];
  const name = (t) => JSON.stringify(t.textContent.slice(0, 40));
  for (const svg of document.querySelectorAll("svg.chart")) {
    const chart = svg.querySelector("title")?.textContent ?? svg.getAttribute("aria-labelledby");
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent !== "" && t.textContent !== "–").map((t) => ({ t, r: t.getBoundingClientRect() }));
    for (const { t, r } of texts)
      if (r.left < frame.left - 3 || r.right > frame.right + 3 || r.top < frame.top - 3 || r.bottom > frame.bottom + 3)
        said.push(chart + ": " + name(t) + " leaves the chart");
    texts.sort((a, b) => a.r.left - b.r.left);
    for (let i = 0; i < texts.length; i++)
      for (let j = i + 1; j < texts.length && texts[j].r.left < texts[i].r.right - 1.5; j++) {
        const a = texts[i].r, b = texts[j].r;
        // The boxes of letters are higher than the letters.
        if (Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5)
          said.push(chart + ": " + name(texts[i].t) + " touches " + name(texts[j].t));
      }
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) said.push("the page is " + document.documentElement.scrollWidth + " wide in a window of " + innerWidth);
  const out = document.createElement("pre");
  out.id = "said";
  out.textContent = "charts: " + document.querySelectorAll("svg.chart").length + "\n" + said.join("\n");
  document.body.append(out);
});
</script>`

var said = regexp.MustCompile(`(?s)<pre id="said">charts: (\d+)\n(.*?)</pre>`)

// TestNoTextTouchesAnotherInABrowser lays the gallery out in a real browser,
// since only that knows how wide text is.
func TestNoTextTouchesAnotherInABrowser(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("no chromium in PATH: apt-get install --no-install-recommends chromium")
	}
	var page bytes.Buffer
	if err := gallery().Write(&page, FormatHTML); err != nil {
		t.Fatal(err)
	}
	charts := 0
	for _, s := range gallery().Sections {
		charts += len(s.Charts)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "gallery.html")
	if err := os.WriteFile(path, bytes.Replace(page.Bytes(), []byte("</body>"), []byte(probe+"</body>"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{1100, 600} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir="+filepath.Join(dir, fmt.Sprint("profile", width)),
			fmt.Sprintf("--window-size=%d,2000", width), "--virtual-time-budget=4000", "--dump-dom", "file://"+path)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
		m := said.FindSubmatch(out)
		if m == nil {
			t.Fatalf("the probe said nothing in %d bytes\n%s", len(out), stderr.String())
		}
		if string(m[1]) != fmt.Sprint(charts) {
			t.Errorf("%s charts were laid out, want %d", m[1], charts)
		}
		for line := range strings.Lines(html.UnescapeString(string(m[2]))) {
			t.Errorf("%d wide: %s", width, strings.TrimSpace(line))
		}
	}
}
