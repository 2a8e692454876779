package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeSource does ten things a second.
type fakeSource struct {
	looks, details atomic.Int64
	down           atomic.Bool
}

func (f *fakeSource) Sample(_ context.Context, s *Sample) error {
	if f.down.Load() {
		return errors.New("it is stopping")
	}
	s.Rate("things", 10*float64(f.looks.Add(1)))
	s.Level("level", 3)
	return nil
}

func (f *fakeSource) Detail(context.Context) (Detail, error) {
	f.details.Add(1)
	if f.down.Load() {
		return Detail{}, errors.New("it is stopping")
	}
	return Detail{Facts: []string{"a fact"}, Tables: []Table{{Title: "Things", Columns: Columns(":Name", "n"), Rows: [][]Cell{{Text("one"), Number(1)}}}}}, nil
}

func fakePage() Page {
	return Page{
		Title: "weir fake", Series: []Series{{Key: "things"}, {Key: "level"}},
		Tiles:  []Tile{{Label: "Things", Key: "things", Format: Count, Parts: []Part{{"level", Count, "deep"}}}},
		Charts: []Chart{{Title: "Things", Format: Count, Lines: []Line{{"things", "per second", 1}}}},
		Links:  []string{"more.json"},
	}
}

func newTestServer(source Source) (*Server, *http.ServeMux) {
	s := New(Config{Page: fakePage(), Source: source, Log: slog.New(slog.DiscardHandler)})
	mux := http.NewServeMux()
	s.Register(mux)
	return s, mux
}

func get(mux http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	mux.ServeHTTP(w, r)
	return w
}

// A page that is opened later shows the past, and recording costs the tables nothing.
func TestRecordsThoughNobodyWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{}
		s, mux := newTestServer(source)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx)
		}()
		time.Sleep(15*time.Minute + time.Second/2)
		source.down.Store(true) // a gap
		time.Sleep(5 * time.Second)
		source.down.Store(false)
		time.Sleep(2 * time.Hour)
		if n := source.details.Load(); n != 0 {
			t.Errorf("tables were made %d times, and nobody looked", n)
		}
		fine := read(t, get(mux, "/history.json").Body.Bytes())
		if len(fine.T) != finePoints || *fine.V["things"][0] != 10 || *fine.V["level"][0] != 3 {
			t.Errorf("ten minutes: %d points, %v", len(fine.T), *fine.V["things"][0])
		}
		if got := read(t, get(mux, "/history.json?span=6h").Body.Bytes()); len(got.T) < 800 || len(got.T) > 811 {
			t.Errorf("2 h 15 min: %d points", len(got.T))
		}

		v := s.sampler.join() // is told at once
		var e event
		if err := json.Unmarshal(<-v.events, &e); err != nil || e.T != fine.T[len(fine.T)-1] || *e.V["things"] != 10 || e.Detail.Facts[0] != "a fact" {
			t.Errorf("%+v, %v", e, err)
		}
		source.down.Store(true)
		for e.V != nil { // one may have been on its way
			e = event{}
			if err := json.Unmarshal(<-v.events, &e); err != nil {
				t.Fatal(err)
			}
		}
		if p := e.Detail.Problems; len(p) != 1 || !strings.HasSuffix(p[0], "it is stopping") {
			t.Errorf("problems: %q", p)
		}
		s.sampler.leave(v)
		cancel()
		<-done
	})
}

// event is what a viewer is sent.
type event struct {
	T      int64
	V      map[string]*float64
	Detail struct{ Facts, Problems []string }
}

// A viewer that does not read gets the latest event when it does, and holds up no
// other.
func TestSlowViewerMissesEvents(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(&fakeSource{})
	slow := s.sampler.join()
	for range 3 {
		s.sampler.look(t.Context())
		s.sampler.publish(t.Context())
	}
	var e event
	if err := json.Unmarshal(<-slow.events, &e); err != nil || e.T != s.sampler.sample.at.UnixMilli() {
		t.Errorf("got %+v, %v; want the third sample", e, err)
	}
	select {
	case text := <-slow.events:
		t.Errorf("and another: %s", text)
	default:
	}
}

func TestViewersAreBounded(t *testing.T) {
	t.Parallel()
	s, mux := newTestServer(&fakeSource{})
	for range maxViewers {
		if s.sampler.join() == nil {
			t.Fatal("refused below the bound")
		}
	}
	if w := get(mux, "/events"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("one viewer too many: %d, want 503", w.Code)
	}
}

func TestEventsAreAStream(t *testing.T) {
	t.Parallel()
	s, mux := newTestServer(&fakeSource{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	srv := httptest.NewServer(mux)
	defer srv.Close()
	resp, err := http.Get(srv.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for _, want := range []string{"event: tick\n", `data: {"t":`, "\n"} {
		if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("%q, %v; want %q", line, err, want)
		}
	}
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("Content-Type %q", kind)
	}
	cancel()
	<-done
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s, mux := newTestServer(&fakeSource{})
	for path, want := range map[string]struct{ kind, text string }{
		"/":                       {"text/html", "<title>weir fake</title>"},
		"/page.js":                {"text/javascript", "EventSource"},
		"/theme.js":               {"text/javascript", "localStorage"},
		"/page.css":               {"text/css", "light-dark("},
		"/icon.svg":               {"image/svg+xml", "<svg"},
		"/panels.json":            {"application/json", `"title":"weir fake"`},
		"/history.json?span=1h":   {"application/json", `"every":10000`},
		"/history.json?span=long": {"text/plain", "want a duration"},
		"/nothing":                {"text/plain", "not found"},
	} {
		w := get(mux, path)
		if !strings.HasPrefix(w.Header().Get("Content-Type"), want.kind) || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("GET %s: %d %s\n%.300s", path, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
	// Programs get words where there are any, browsers the page.
	s.cfg.Words = func() string { return "in words" }
	if got := get(mux, "/", "Accept", "*/*").Body.String(); got != "in words\n" {
		t.Errorf("for curl: %q", got)
	}
	if got := get(mux, "/", "Accept", "text/html,*/*").Body.String(); !strings.Contains(got, "page.js") {
		t.Errorf("for a browser: %q", got)
	}
}

// The policy forbids what stands in the page itself; so nothing must.
func TestPageKeepsToItsPolicy(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`(?i)\son[a-z]+\s*=\s*["']|\sstyle\s*=\s*["']|<style|<script(?:[^>]*[^"])?>[^<]|innerHTML|eval\(|https?://`)
	const namespace = "http://www.w3.org/2000/svg" // a name, not an address
	err := fs.WalkDir(files, "page", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if found := inline.FindString(strings.ReplaceAll(string(text), namespace, "")); found != "" {
			t.Errorf("%s contains %q", name, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPagesNameWhatIsRecorded(t *testing.T) {
	t.Parallel()
	for want, break_ := range map[string]func(p *Page){
		`tile Things shows "nothing"`:  func(p *Page) { p.Tiles[0].Parts[0].Key = "nothing" },
		`chart Things shows "nothing"`: func(p *Page) { p.Charts[0].Lines[0].Key = "nothing" },
		`two values are named level`:   func(p *Page) { p.Series[0].Key = "level" },
		`color 9`:                      func(p *Page) { p.Charts[0].Lines[0].Color = 9 },
	} {
		p := fakePage()
		break_(&p)
		if err := p.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestJournalKeepsTheNewestWarnings(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := NewJournal(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}), Apart{Message: "slow", Title: "Slow ones", Columns: []string{"took", "statement"}})
	log := slog.New(j)
	log.Info("nothing to speak of")
	log.Error("once", "a", 1)
	for i := range 3 {
		log.With("part", "x").WithGroup("g").Warn("again", "i", i)
	}
	log.Warn("slow", "took", time.Second, "text", "a secret")
	log.Warn("slow", "text", "a secret", "statement", "select", "took", 2*time.Second)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "msg=once") {
		t.Errorf("passed on: %s", got)
	}
	tables := j.tables()
	if len(tables) != 2 || tables[0].Title != "Slow ones" || len(tables[0].Rows) != 2 || tables[0].Rows[0][1].Value != 2 || tables[0].Rows[0][2] != Code("select") || len(tables[0].Rows[1]) != 3 {
		t.Errorf("apart: %+v", tables)
	}
	rows := tables[1].Rows
	if len(rows) != 2 || rows[0][1].Value != 3 || rows[0][3].Text != "again" || rows[0][4].Text != "part=x g.i=2" || !rows[1][2].Bad {
		t.Errorf("warnings: %+v", rows)
	}
	for i := range 2 * maxNotes {
		log.Warn("number " + string(rune('A'+i)))
	}
	if n := len(j.tables()[1].Rows); n != maxNotes {
		t.Errorf("%d warnings are kept", n)
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal([]Cell{
		Text("a"), Code("SELECT"), Number(0), Number(2.5).Alarm(true), Duration(0), Duration(time.Millisecond), Size(10), Bar(0.5),
		Percentage(1, 4), Percentage(1, 0), Link("http://127.0.0.1:9187/"), Link("javascript:alert(1)"), Link(""),
	})
	const want = `[{"s":"a"},{"s":"SELECT","code":true},{"v":0,"f":"count"},{"v":2.5,"f":"count","bad":true},{},` +
		`{"v":0.001,"f":"seconds"},{"v":10,"f":"bytes"},{"v":0.5,"bar":true},{"v":0.25,"f":"percent"},{},{"s":"http://127.0.0.1:9187/","link":true},{"s":"javascript:alert(1)"},{}]`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	for d, want := range map[time.Duration]string{
		9 * time.Second: "9 s", 61 * time.Second: "1 min", 2*time.Hour + 5*time.Minute: "2 h 5 min", 50 * time.Hour: "2 d 2 h",
	} {
		if got := Age(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

// Another site can send a browser here, but not with the header.
func TestActionsAreOfThePageAlone(t *testing.T) {
	t.Parallel()
	var fails error
	h := Acts(func(*http.Request) error { return fails })
	for _, tt := range []struct {
		header string
		fails  error
		code   int
	}{{"", nil, 403}, {"1", nil, 204}, {"1", errors.New("busy"), 409}} {
		fails = tt.fails
		r := httptest.NewRequest("POST", "/kill", nil)
		if tt.header != "" {
			r.Header.Set(actionHeader, tt.header)
		}
		w := httptest.NewRecorder()
		h(w, r)
		if w.Code != tt.code {
			t.Errorf("%q, %v: %d, want %d", tt.header, tt.fails, w.Code, tt.code)
		}
	}
}

// The page can write every format that a cell may have.
func TestPageKnowsEveryFormat(t *testing.T) {
	source, err := files.ReadFile("page/format.js")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`export const formats = \{ (.*) \};`).FindSubmatch(source)
	if m == nil {
		t.Fatal("format.js exports no formats")
	}
	known := strings.Split(string(m[1]), ", ")
	for _, cell := range []Cell{Number(12345), Whole(12345), Duration(time.Second), Size(1), Percentage(1, 2)} {
		if !slices.Contains(known, string(cell.Format)) {
			t.Errorf("the page knows %q, and not %q", known, cell.Format)
		}
	}
	if out, err := json.Marshal(Whole(12345)); err != nil || string(out) != `{"v":12345,"f":"exact"}` {
		t.Errorf("%s, %v", out, err)
	}
}
