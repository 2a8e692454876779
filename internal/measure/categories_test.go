package measure

import (
	"bytes"
	"math"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// stacks makes a CPU profile. Each key is a stack written from root to leaf, with
// ">" between frames; each value is the CPU time in ms.
func stacks(in map[string]int64) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for stack, ms := range in {
		s := &profile.Sample{Value: []int64{1, ms * 1e6}}
		for _, name := range strings.Split(stack, ">") {
			loc := &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
			s.Location = append([]*profile.Location{loc}, s.Location...)
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func TestBreakdownCategories(t *testing.T) {
	const sys = ">internal/runtime/syscall/linux.Syscall6"
	for stack, want := range map[string]string{
		"main.main>net.(*conn).Write>internal/poll.(*FD).Write>syscall.write" + sys:                                           "system calls and network I/O",
		"runtime.mcall>runtime.findRunnable>runtime.netpoll>internal/runtime/syscall.EpollWait" + sys:                         "epoll and netpoll",
		"main.main>golang.org/x/sys/unix.EpollWait>golang.org/x/sys/unix.Syscall6" + sys:                                      "system calls and network I/O",
		"runtime.mcall>runtime.park_m>runtime.schedule>runtime.findRunnable":                                                  "scheduler",
		"runtime.mcall>runtime.schedule>runtime.stopm>runtime.notesleep>runtime.futex":                                        "locks and futex",
		"main.main>main.f>runtime.makeslice>runtime.mallocgc>runtime.memclrNoHeapPointers":                                    "garbage collection and allocation",
		"runtime.gcBgMarkWorker>runtime.gcDrain>runtime.scanobject":                                                           "garbage collection and allocation",
		"main.main>github.com/jackc/pgx/v5.(*Conn).Query>runtime.memmove":                                                     "driver and protocol",
		"github.com/weirdb/weir/internal/proxy.(*session).serve>github.com/weirdb/weir/internal/wire/pgwire.Next":             "driver and protocol",
		"github.com/weirdb/weir/internal/proxy.(*session).serve>runtime.memmove":                                              "proxy session",
		"github.com/weirdb/weir/internal/proxy.(*writeLane).flush>runtime.memmove":                                            "batching",
		"github.com/weirdb/weir/internal/proxy.(*session).serve>github.com/weirdb/weir/batch.(*Batcher[go.shape.int]).Submit": "batching",
		"github.com/weirdb/weir/internal/proxy.(*session).serve>github.com/weirdb/weir/internal/proxy/sqlscan.Verb":           "sql scan",
		"main.main>crypto/tls.(*Conn).Write>crypto/internal/fips140/aes.encrypt":                                              "crypto and TLS",
		"main.main>strconv.ParseInt":             "application",
		"example.com/strange.f>strconv.ParseInt": "other",
	} {
		b, err := DefaultRules().Breakdown(stacks(map[string]int64{stack: 10}))
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Categories[0]; got.Name != want || got.Exclusive != 1 {
			t.Errorf("%s\n  is %q (%v), want %q", stack, got.Name, got.Exclusive, want)
		}
	}
}

func TestBreakdownSharesAddUp(t *testing.T) {
	b, err := DefaultRules().Breakdown(stacks(map[string]int64{
		"main.main>syscall.write":                             30,
		"main.main>runtime.mallocgc":                          20,
		"runtime.schedule":                                    10,
		"example.com/strange.f":                               25,
		"main.main>main.f":                                    15,
		"main.main>runtime.mallocgc>runtime.futex":            7,
		"main.main>github.com/jackc/pgx/v5.Q>runtime.memmove": 3,
	}))
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, c := range b.Categories {
		sum += c.Exclusive
		if c.Cumulative < c.Exclusive {
			t.Errorf("%s: cumulative %v is below exclusive %v", c.Name, c.Cumulative, c.Exclusive)
		}
	}
	if math.Abs(sum-1) > 1e-12 {
		t.Errorf("exclusive shares add up to %v, want 1", sum)
	}
	for _, c := range b.Categories {
		if c.Name == "garbage collection and allocation" && (c.Exclusive != 20.0/110 || c.Cumulative != 27.0/110) {
			t.Errorf("allocation = %+v, want 20/110 of its own and 27/110 with what it waited for", c)
		}
	}
	if len(b.Unmatched) != 1 || b.Unmatched[0].Function != "example.com/strange.f" {
		t.Errorf("unmatched = %+v", b.Unmatched)
	}
}

func TestBreakdownOfARealProfile(t *testing.T) {
	var buf bytes.Buffer
	if err := pprof.StartCPUProfile(&buf); err != nil {
		t.Skipf("profiler is in use: %v", err)
	}
	before, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	// 100 ms of CPU time is ten samples at the profiler's 100 Hz.
	var h Hist
	for done := false; !done; {
		for i := range int64(200_000) {
			h.Record(i)
		}
		now, err := Self()
		if err != nil {
			t.Fatal(err)
		}
		done = now.Since(before).CPUSeconds() > 0.1
	}
	pprof.StopCPUProfile()
	p, err := profile.Parse(&buf)
	if err != nil {
		t.Fatal(err)
	}
	b, err := DefaultRules().Breakdown(p)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, c := range b.Categories {
		sum += c.Exclusive
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("exclusive shares add up to %v, want 1", sum)
	}
	sites, err := TopSites(p, "cpu", 3)
	if err != nil || len(sites) == 0 {
		t.Errorf("top sites = %v, %v", sites, err)
	}
}

func TestTopSitesCountsRecursionOnce(t *testing.T) {
	sites, err := TopSites(stacks(map[string]int64{"main.f>main.f>main.f": 4, "main.f>main.g": 6}), "cpu", 5)
	if err != nil {
		t.Fatal(err)
	}
	if sites[0].Function != "main.g" || sites[0].Flat != .6 || sites[1].Cumulative != 1 {
		t.Errorf("sites = %+v", sites)
	}
	if _, err := TopSites(stacks(nil), "inuse_space", 5); err == nil {
		t.Error("a sample type that is not there was accepted")
	}
}

func TestParseRulesNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "no rules",
		"# c\n\nscheduler\n": "line 3",
		"a: ^x\nb: (":        "line 2",
		"other: ^x":          "line 1",
	} {
		if _, err := ParseRules(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRules(%q): %v, want mention of %q", text, err, want)
		}
	}
}

func FuzzParseRules(f *testing.F) {
	f.Add(defaultRules)
	f.Add("a: ^x\n")
	f.Fuzz(func(_ *testing.T, text string) {
		if r, err := ParseRules(text); err == nil {
			r.match("main.main")
		}
	})
}
