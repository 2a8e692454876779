package demo

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// transcript takes what the demo prints, and tells the address of its page.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	page chan string
	once sync.Once
}

var pageAddress = regexp.MustCompile(`the page: (http://\S+)`)

func (o *transcript) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m := pageAddress.FindSubmatch(p); m != nil {
		o.once.Do(func() { o.page <- string(m[1]) })
	}
	return o.text.Write(p)
}

func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A second demo says at once that the first has the page's address: it starts nothing.
func TestStackRefusesATakenAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for listen, want := range map[string]string{
		taken.Addr().String(): "--listen 127.0.0.1:0 takes a free port",
		"nowhere":             "missing port",
		"0.0.0.0:0":           "not of this machine alone",
	} {
		out := &transcript{page: make(chan string, 1)}
		dir := filepath.Join(t.TempDir(), "out")
		if _, err := Run(t.Context(), Config{Binary: "none", Out: dir, Listen: listen, Stdout: out}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--listen %s: %v, want %q", listen, err, want)
		}
		if _, err := os.Stat(dir); err == nil || out.String() != "" {
			t.Errorf("--listen %s: it began: %v %s", listen, err, out)
		}
	}
}

// Everything is killed once, and every promise holds.
func TestStackHoldsItsPromises(t *testing.T) {
	testkit.Long(t, "runs the whole demo")
	labtest.RequirePostgres(t)
	labtest.RequireNATS(t)
	out := &transcript{page: make(chan string, 1)}
	dir := t.TempDir()
	refused := make(chan int, 1)
	go func() {
		// A request without the page's header, as another site could have it sent.
		resp, err := http.Post(<-out.page+"kill/primary", "text/plain", nil)
		if err != nil {
			refused <- 0
			return
		}
		_ = resp.Body.Close()
		refused <- resp.StatusCode
	}()
	v, err := Run(t.Context(), Config{Binary: labtest.Weir(t), Out: dir, Listen: "127.0.0.1:0", Auto: true, Workers: 4, Stdout: out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if code := <-refused; code != http.StatusForbidden {
		t.Errorf("a stranger's POST: %d", code)
	}
	if !v.Held() || len(v.Promises) != 6 || v.Orders < 50 {
		t.Errorf("%d orders, %+v\n%s", v.Orders, v.Promises, out)
	}
	text := out.String()
	for _, want := range []string{"kill -9 relay-", "kill -9 replica ", "kill -9 proxy-", "kill -9 the primary", "the standby is promoted", "a new standby has caught up", "restored and compared"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing said of %q:\n%s", want, text)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !bytes.Contains(page, []byte("acknowledged orders are kept")) || bytes.Contains(page, []byte(`src="http`)) {
		t.Errorf("the report: %v, %d bytes", err, len(page))
	}
	if profiles, err := filepath.Glob(filepath.Join(dir, "profiles", "*.pprof")); err != nil || len(profiles) != 7 {
		t.Errorf("profiles: %q, %v", profiles, err)
	}
}
