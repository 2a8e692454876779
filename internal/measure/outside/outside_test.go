package outside

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestScriptOfPerf(t *testing.T) {
	p := parseScript([]byte(`postgres  ffffffff81a0b1c2 do_syscall_64 ([kernel.kallsyms])
        postgres      55d0c3a0b1c2 hash_search (/usr/lib/postgresql/15/bin/postgres)
        postgres      55d0c3a0b1c2 hash_search (/usr/lib/postgresql/15/bin/postgres)
 checkpointer wri  7f00aabbccdd [unknown] (/usr/lib/x86_64-linux-gnu/libc.so.6)
 mariadbd      55d0c3a0b1c2 Item::val(int, bool) const (/usr/sbin/mariadbd)
# a comment
half a line
`))
	want := []Function{{"hash_search", "postgres", 2}, {"do_syscall_64", "kernel", 1}, {"unknown", "libc.so.6", 1}, {"Item::val(int, bool) const", "mariadbd", 1}}
	if p.Samples != 5 || len(p.Functions) != len(want) {
		t.Fatalf("%d samples, %+v", p.Samples, p.Functions)
	}
	for i, f := range want[:1] {
		if p.Functions[i] != f {
			t.Errorf("function %d: %+v, want %+v", i, p.Functions[i], f)
		}
	}
	for _, f := range want {
		found := false
		for _, g := range p.Functions {
			found = found || f == g
		}
		if !found {
			t.Errorf("%+v is missing of %+v", f, p.Functions)
		}
	}
	if o := p.ByObject(); len(o) != 4 || o[0].Object != "postgres" || o[0].Samples != 2 {
		t.Errorf("objects %+v", o)
	}
}

func TestSummaryOfStrace(t *testing.T) {
	calls, err := parseSummary([]byte(`% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 52.10    0.010420          10      1042        12 futex
 47.90    0.009580           3      3000           write
------ ----------- ----------- --------- --------- ----------------
100.00    0.020000           4      4042        12 total
`))
	if err != nil || len(calls) != 2 || calls[0] != (Call{"futex", 1042, 12, .01042}) || calls[1] != (Call{"write", 3000, 0, .00958}) {
		t.Errorf("%+v, %v", calls, err)
	}
	if _, err := parseSummary([]byte(" 1.0 x 3 4 write\n")); err == nil {
		t.Error("a line without a number of seconds was taken")
	}
}

func TestToolsThatAreNotThere(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Perf(t.Context(), []int{os.Getpid()}, time.Millisecond); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install linux-perf") {
		t.Errorf("perf: %v", err)
	}
	if _, err := Strace(t.Context(), os.Getpid()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install strace") {
		t.Errorf("strace: %v", err)
	}
}

// usable skips where a tool is not installed or may not be used.
func usable(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrMissing) {
		t.Skipf("the machine does not have it: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestStraceCountsOurOwnCalls(t *testing.T) {
	trace, err := Strace(t.Context(), os.Getpid())
	usable(t, err)
	const n = 300
	for range n {
		if _, err := os.Stat("/"); err != nil {
			t.Error(err)
		}
	}
	calls, err := trace.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var stats int64
	for _, c := range calls {
		if strings.Contains(c.Name, "stat") {
			stats += c.Calls
		}
	}
	if stats < n {
		t.Errorf("%d calls of stat were counted, and %d made: %+v", stats, n, calls)
	}
	if _, err := Strace(t.Context(), 1<<30); err == nil {
		t.Error("a process that is not there was traced")
	}
}

func TestPerfSeesWhoWorks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			runtime.Gosched()
		}
	}()
	p, err := Perf(t.Context(), []int{os.Getpid()}, 500*time.Millisecond)
	usable(t, err)
	if p.Samples == 0 || len(p.Functions) == 0 || p.Functions[0].Samples == 0 {
		t.Errorf("a process that worked for half a second: %+v", p)
	}
}
