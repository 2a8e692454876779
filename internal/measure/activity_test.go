package measure

import (
	"os"
	"path/filepath"
	"testing"
)

// proc writes a proc file system with the given files.
func proc(t *testing.T, files map[string]string) procFS {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return procFS(dir)
}

func TestActivityIsTheDifference(t *testing.T) {
	stalls := func(some, full string) string {
		return "some avg10=0.00 avg60=0.00 avg300=0.00 total=" + some + "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=" + full + "\n"
	}
	before := proc(t, map[string]string{
		"stat":            "cpu  100 10 50 1000 20 0 5 7 3 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
		"pressure/cpu":    "some avg10=1.00 avg60=0.00 avg300=0.00 total=1000000\n",
		"pressure/io":     stalls("500000", "100000"),
		"pressure/memory": stalls("0", "0"),
	}).machine()
	after := proc(t, map[string]string{
		"stat":            "cpu  200 20 100 1500 40 2 8 17 3 0\n",
		"pressure/cpu":    "some avg10=1.00 avg60=0.00 avg300=0.00 total=2000000\n",
		"pressure/io":     stalls("1000000", "300000"),
		"pressure/memory": stalls("9000000", "0"),
	}).machine()
	before.at, after.at = 0, 4e9
	got := after.Since(before)
	// user 100, nice 10, system 50, irq 2, softirq 3: 165 ticks of 10 ms.
	want := Activity{
		Seconds: 4, BusySeconds: 1.65, StealSeconds: 0.1, CPUKnown: true,
		CPUWait: 0.25, IOWait: 0.125, IOWaitAll: 0.05, MemoryWait: 1, PressureKnown: true,
	}
	if got != want {
		t.Errorf("activity\n     %+v\nwant %+v", got, want)
	}
	if got := before.Since(before); got != (Activity{}) {
		t.Errorf("nothing lasted no time: %+v", got)
	}
}

func TestActivityKnowsWhatItDoesNotKnow(t *testing.T) {
	bare := proc(t, map[string]string{"stat": "intr 5\n", "pressure/cpu": "some avg10=0.00 total=1\n"}).machine()
	later := bare
	later.at += 1e9
	if got := later.Since(bare); got.CPUKnown || got.PressureKnown {
		t.Errorf("claims to know: %+v", got)
	}
}

func TestReadMachineHere(t *testing.T) {
	a := ReadMachine()
	b := ReadMachine()
	if got := b.Since(a); got.Seconds <= 0 || got.CPUWait > 1 {
		t.Errorf("activity = %+v", got)
	}
}

func FuzzParseMachine(f *testing.F) {
	f.Add("cpu  1 2 3 4 5 6 7 8 9 10\n")
	f.Add("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull total=3\n")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := parseCPUTicks(s); err == nil && s[:3] != "cpu" {
			t.Errorf("no processor times, yet read: %q", s)
		}
		if some, full, err := parseStalls(s); err != nil && (some != 0 || full != 0) {
			t.Errorf("%q: %d, %d with %v", s, some, full, err)
		}
	})
}
