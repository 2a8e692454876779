package measure

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// fakeProc writes a proc file system. Each process has one thread.
func fakeProc(t *testing.T, procs map[int]fakeProcess) procFS {
	t.Helper()
	root := t.TempDir()
	for pid, p := range procs {
		dir := filepath.Join(root, strconv.Itoa(pid))
		files := map[string]string{
			"stat": strconv.Itoa(pid) + " (post (gres) x) S " + strconv.Itoa(p.parent) + " 1 1 0 -1 0 0 0 0 0 " +
				strconv.Itoa(p.user) + " " + strconv.Itoa(p.system) + " " + strconv.Itoa(p.childUser) + " " + strconv.Itoa(p.childSystem) + " 20 0 1 0 55",
			"status": "Name:\tpostgres\nVmHWM:\t  900 kB\nVmRSS:\t     " + strconv.Itoa(p.rss) + " kB\nRssAnon:\t " + strconv.Itoa(p.anon) +
				" kB\nThreads:\t1\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n",
			"io": "rchar: 9\nwchar: 9\nsyscr: 11\nsyscw: 22\n",
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return procFS(root)
}

type fakeProcess struct {
	parent, user, system, childUser, childSystem int
	rss, anon                                    int // kB
}

func TestTreeAddsDescendantsAndCollectedChildren(t *testing.T) {
	p := fakeProc(t, map[int]fakeProcess{
		10: {parent: 1, user: 100, system: 50, childUser: 1000, childSystem: 500, rss: 120, anon: 20},
		11: {parent: 10, user: 7, system: 3, rss: 110, anon: 10},
		12: {parent: 11, user: 1, system: 1, rss: 105, anon: 5},
		20: {parent: 1, user: 9999, system: 9999, rss: 1, anon: 1},
	})
	u, err := p.tree(10)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	check("user seconds", u.UserSeconds, 11.08)    // (100+1000+7+1) ticks of 10 ms
	check("system seconds", u.SystemSeconds, 5.54) // (50+500+3+1)
	check("RSS", float64(u.RSSBytes), (20+10+5+100)*1024)
	check("processes", float64(u.Processes), 3)
	check("voluntary", float64(u.Voluntary), 21)
	check("read calls", float64(u.ReadCalls), 33)
	if !u.CallsKnown {
		t.Error("calls are readable, yet unknown")
	}
}

func TestProcessThatIsNotThere(t *testing.T) {
	p := fakeProc(t, nil)
	if _, err := p.process(5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v, want one that matches fs.ErrNotExist", err)
	}
	if _, err := p.tree(5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tree: error = %v, want one that matches fs.ErrNotExist", err)
	}
}

func TestUsageSince(t *testing.T) {
	before := Usage{UserSeconds: 1, SystemSeconds: 2, Voluntary: 10, RSSBytes: 5, CallsKnown: true, ReadCalls: 4}
	after := Usage{UserSeconds: 1.5, SystemSeconds: 2.25, Voluntary: 8, RSSBytes: 9, CallsKnown: true, ReadCalls: 10}
	d := after.Since(before)
	if d.CPUSeconds() != 0.75 || d.Voluntary != 0 || d.RSSBytes != 9 || d.ReadCalls != 6 {
		t.Errorf("delta = %+v", d)
	}
	after.CallsKnown = false
	if after.Since(before).CallsKnown {
		t.Error("a delta with one unknown end is known")
	}
}

func TestSelfCountsOwnWork(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no proc file system here")
	}
	before, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	// Work until the kernel has counted it; a stuck counter runs into the
	// test's own timeout.
	x := 1.0
	for {
		for range 100_000 {
			x = math.Sqrt(x + 1)
		}
		now, err := Self()
		if err != nil {
			t.Fatal(err)
		}
		if d := now.Since(before); d.CPUSeconds() > 0.005 {
			if d.RSSBytes == 0 || d.PeakRSSBytes < d.RSSBytes/2 || d.Threads == 0 || d.Processes != 1 {
				t.Errorf("usage = %+v (%v)", d, x)
			}
			return
		}
	}
}

func TestTreeFollowsRealChildren(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no proc file system here")
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no sleep command here")
	}
	u, err := Tree(os.Getpid())
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if u.Processes < 2 {
		t.Errorf("tree has %d processes, want this one and its child", u.Processes)
	}
}

func TestClockIsMonotonic(t *testing.T) {
	c := NewClock()
	a := c.Now()
	b := c.Now()
	if a < 0 || b < a {
		t.Errorf("readings %d, %d go backwards", a, b)
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("1 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"))
	f.Add([]byte("VmRSS:\t 10 kB\nThreads:\t3\nvoluntary_ctxt_switches: 9\n"))
	f.Add([]byte("syscr: 3\nsyscw: 4\n"))
	f.Add([]byte("some avg10=1.50 avg60=0 avg300=0 total=9\nfull avg10=0.00\n"))
	f.Add([]byte("0.10 0.20 0.30 2/333 4444\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		parseStat(b)
		parseStatus(b)
		parseIO(b)
		parsePressure(string(b))
		parseLoadavg(string(b))
		parseCPUInfo(string(b))
		Meminfo(string(b), "MemTotal")
		parseOSRelease(string(b))
	})
}

func TestParsersNameWhatIsWrong(t *testing.T) {
	for name, err := range map[string]error{
		"stat without a name":   second(parseStat([]byte("12 S 1"))),
		"stat cut short":        second(parseStat([]byte("12 (x) S 1 2"))),
		"stat with words":       second(parseStat([]byte("1 (a) S x 2 3 4 5 6 7 8 9 10 11 12 13 14 15"))),
		"status with words":     second(parseStatus([]byte("VmRSS: many kB\n"))),
		"io with words":         second(parseIO([]byte("syscr: few\n"))),
		"pressure without some": second(parsePressure("full avg10=1")),
		"pressure out of order": second(parsePressure("some avg60=1 avg10=2")),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }
