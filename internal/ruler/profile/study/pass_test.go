package study

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure/outside"
	"github.com/weirdb/weir/internal/ruler/profile"
	"github.com/weirdb/weir/internal/ruler/report"
)

func toolStudy() *Study {
	return &Study{
		Name: "x", Workload: "ping", Rows: 1, Rounds: 1, Tools: []string{toolStrace, toolPerf},
		Axes: Axes{Base: profile.Config{Duration: 400 * time.Millisecond, Warmup: 50 * time.Millisecond}, Concurrency: []int{4}, Cold: true},
	}
}

// A pass says what a tool saw, and how much slower it made what it looked at; where the
// tool is not there, or may not be used, it says that.
func TestPassesUnderTools(t *testing.T) {
	s := toolStudy()
	r, err := sleeping(t, t.Context(), s, "sleep://?latency=1ms", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 2 || len(s.Passes) != 2 || s.Passes[0].Tool != toolStrace || s.Passes[1].Tool != toolPerf {
		t.Fatalf("%d cases, passes %+v", len(r.Cases), s.Passes)
	}
	for _, p := range s.Passes {
		if p.Missing != "" {
			t.Logf("%s: %s", p.Tool, p.Missing)
			continue
		}
		if p.Case != "warm" || p.Plain <= 0 || p.Under <= 0 || p.Ops == 0 {
			t.Errorf("pass of %s: %+v", p.Tool, p)
		}
		if p.Tool == toolStrace && len(p.Calls) == 0 || p.Tool == toolPerf && p.Client == nil {
			t.Errorf("%s saw nothing: %+v", p.Tool, p)
		}
	}
	dir := t.TempDir()
	if none, err := LoadPasses(dir); err != nil || none != nil {
		t.Errorf("passes of an empty directory: %v, %v", none, err)
	}
	if err := SavePasses(dir, s.Passes); err != nil {
		t.Fatal(err)
	}
	back, err := LoadPasses(dir)
	if err != nil || len(back) != 2 || back[0].Plain != s.Passes[0].Plain {
		t.Errorf("read back: %+v, %v", back, err)
	}
	if err := os.WriteFile(dir+"/"+PassesFile, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadPasses(dir); err == nil {
		t.Error("half a file was read")
	}
}

func TestPassesWithoutTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := toolStudy()
	if _, err := sleeping(t, t.Context(), s, "sleep://?latency=1ms", Options{}); err != nil {
		t.Fatal(err)
	}
	for i, install := range []string{"apt-get install strace", "apt-get install linux-perf"} {
		if got := PassSections(s.Passes)[i].Text[0]; !strings.Contains(got, "Left out: ") || !strings.Contains(got, install) {
			t.Errorf("it says: %s", got)
		}
	}
}

func TestPassesAreLaidOut(t *testing.T) {
	seen := &outside.Profile{Seconds: 2, Hz: 199, Samples: 10, Functions: []outside.Function{{Name: "hash_search", Object: "postgres", Samples: 6}, {Name: "do_syscall_64", Object: "kernel", Samples: 4}}}
	sections := PassSections([]Pass{
		{Tool: toolStrace, Engine: "postgres", Case: "warm", Plain: 30_000, Under: 10_000, Ops: 1000, Calls: []outside.Call{{Name: "write", Calls: 2000, Seconds: .5}}},
		{Tool: toolPerf, Engine: "postgres", Case: "warm", Plain: 100, Under: 100, Ops: 200, Client: seen, Server: seen},
		{Tool: toolStrace, Engine: "postgres", Case: "warm"},
	})
	if !strings.Contains(sections[0].Text[0], "3.00 times slower") || sections[0].Tables[0].Rows[0][2].Text != "2.00" {
		t.Errorf("strace: %+v", sections[0])
	}
	if !strings.Contains(sections[1].Text[0], "no difference that one pair could show") || len(sections[1].Tables) != 2 || sections[1].Tables[1].Rows[0][2].Text != "60.0" {
		t.Errorf("perf: %+v", sections[1])
	}
	if !strings.Contains(sections[2].Text[0], "No operation ended") {
		t.Errorf("nothing: %+v", sections[2])
	}
	r, err := sleeping(t, t.Context(), &Study{Name: "x", Workload: "ping", Rows: 1, Rounds: 1, Axes: Axes{Base: profile.Config{Duration: 50 * time.Millisecond}}}, "sleep://?latency=1ms", Options{})
	if err != nil {
		t.Fatal(err)
	}
	doc := Document("x", r)
	doc.Sections = append(doc.Sections, sections[:2]...)
	var b bytes.Buffer
	if err := doc.Write(&b, report.FormatText); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "hash_search") {
		t.Error("the functions of the server are not in the page")
	}
}
