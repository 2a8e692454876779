// Package browser drives a headless Chromium in tests, over the DevTools protocol on a pair of
// pipes, to check the layout of a page and its reactions to keys.
package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience limits every wait; machines may be busy with other tests.
const patience = 2 * time.Minute

// Path returns the path of the browser, or "".
func Path() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Browser is one headless browser.
type Browser struct {
	t   *testing.T
	in  io.Writer
	err bytes.Buffer
	dir string // of screenshots; "": none are kept

	mu      sync.Mutex
	next    int
	answers map[int]chan answer
	ended   chan struct{}
}

type answer struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start starts a browser, which ends with the test. If none is installed, the test is skipped;
// in CI, where make setup installs one, it fails.
func Start(t *testing.T) *Browser {
	t.Helper()
	path := Path()
	if path == "" {
		const missing = "no chromium in PATH: CI=true make setup installs it"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	fromUs, toBrowser := pipe(t)
	fromBrowser, toUs := pipe(t)
	dir := filepath.Join(t.TempDir(), "profile")
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-crash-reporter", "--user-data-dir="+dir,
		"--remote-debugging-pipe", "about:blank")
	b := &Browser{t: t, dir: os.Getenv("WEIR_SCREENSHOTS"), in: toBrowser, answers: make(map[int]chan answer), ended: make(chan struct{})}
	cmd.ExtraFiles = []*os.File{fromUs, toUs} // 3 and 4
	cmd.Stderr = &b.err
	cmd.WaitDelay = time.Second                           // its children may keep standard error open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that they end with it
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	_, _ = fromUs.Close(), toUs.Close() // the browser has them
	go b.read(fromBrowser)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
		<-b.ended
		_, _ = toBrowser.Close(), fromBrowser.Close()
	})
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// read distributes responses; events are ignored.
func (b *Browser) read(from io.Reader) {
	defer close(b.ended)
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var a answer
		if json.Unmarshal(text[:len(text)-1], &a) != nil || a.ID == 0 {
			continue
		}
		b.mu.Lock()
		to := b.answers[a.ID]
		delete(b.answers, a.ID)
		b.mu.Unlock()
		if to != nil {
			to <- a
		}
	}
}

// call calls a method of the browser, or of one of its pages.
func (b *Browser) call(session, method string, params, result any) {
	b.t.Helper()
	to := make(chan answer, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.answers[id] = to
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	if session != "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": session})
	}
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		b.t.Fatalf("browser: %s: %v\n%s", method, err, b.tail())
	}
	select {
	case a := <-to:
		if a.Error != nil {
			b.t.Fatalf("browser: %s: %s", method, a.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(a.Result, result); err != nil {
				b.t.Fatalf("browser: %s: %v in %.300s", method, err, a.Result)
			}
		}
	case <-b.ended:
		b.t.Fatalf("browser: %s: it has ended\n%s", method, b.tail())
	case <-time.After(patience):
		b.t.Fatalf("browser: %s: no answer for %v", method, patience)
	}
}

// tail returns the browser's output after it has ended.
func (b *Browser) tail() string {
	select {
	case <-b.ended:
		return b.err.String()
	default:
		return ""
	}
}

// View is the size and kind of screen for a page.
type View struct {
	Width, Height int
	Phone         bool // a small touch screen
	Dark          bool
}

// Page is a page in the browser.
type Page struct {
	b       *Browser
	session string
}

// Open opens a page.
func (b *Browser) Open(url string, v View) *Page {
	b.t.Helper()
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p := &Page{b, attached.SessionID}
	p.b.call(p.session, "Page.enable", map[string]any{}, nil)
	p.b.call(p.session, "Runtime.enable", map[string]any{}, nil)
	p.Look(v)
	p.b.call(p.session, "Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// Look changes the view of the page.
func (p *Page) Look(v View) {
	p.b.t.Helper()
	scale := 1
	if v.Phone {
		scale = 2
	}
	scheme := "light"
	if v.Dark {
		scheme = "dark"
	}
	p.b.call(p.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": v.Height, "deviceScaleFactor": scale, "mobile": v.Phone}, nil)
	p.b.call(p.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Eval evaluates an expression, which may be a promise, and returns its value.
func Eval[T any](p *Page, expression string) T {
	p.b.t.Helper()
	var out struct {
		Result struct {
			Value       json.RawMessage
			Description string
		}
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	p.b.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if e := out.ExceptionDetails; e != nil {
		p.b.t.Fatalf("browser: %s\n%s %s", expression, e.Text, e.Exception.Description)
	}
	var v T
	if len(out.Result.Value) > 0 {
		if err := json.Unmarshal(out.Result.Value, &v); err != nil {
			p.b.t.Fatalf("browser: %s: %v in %s", expression, err, out.Result.Value)
		}
	}
	return v
}

// Await waits until an expression is true; what describes it.
func (p *Page) Await(what, expression string) {
	p.b.t.Helper()
	for end := time.Now().Add(patience); ; {
		if Eval[bool](p, "Boolean("+expression+")") {
			return
		}
		if time.Now().After(end) {
			p.b.t.Fatalf("browser: after %v still not: %s (%s)\n%s", patience, what, expression, Eval[string](p, "document.body.innerText.slice(0, 2000)"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Press presses keys, one after the other: a letter, or a name such as Tab.
func (p *Page) Press(keys ...string) {
	p.b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
		if len(key) == 1 {
			down["text"] = key
		} else if key == "Enter" {
			down["text"] = "\r"
		}
		p.b.call(p.session, "Input.dispatchKeyEvent", down, nil)
		p.b.call(p.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
	}
}

// Picture returns the whole page as PNG.
func (p *Page) Picture() []byte {
	p.b.t.Helper()
	var out struct{ Data string }
	p.b.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &out)
	png, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		p.b.t.Fatal(err)
	}
	return png
}

// Keep writes a screenshot of the page to the directory in WEIR_SCREENSHOTS, if that is set.
func (p *Page) Keep(name string) {
	p.b.t.Helper()
	if p.b.dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(p.b.dir, strings.TrimSuffix(name, ".png")+".png"), p.Picture(), 0o644); err != nil {
		p.b.t.Fatal(err)
	}
}

// Overflow returns what is wider than the window, or "": on a phone it would require scrolling
// sideways.
func (p *Page) Overflow() string {
	p.b.t.Helper()
	return Eval[string](p, `(() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide <= 0) return "";
  const out = [...document.body.querySelectorAll("*")].filter((e) => !e.closest(".scroll *") && e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5);
  return wide + " px: " + out.map((e) => e.tagName + "#" + e.id + "." + e.className).join(", ");
})()`)
}
