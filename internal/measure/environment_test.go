package measure

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadEnvironmentIsComplete(t *testing.T) {
	e := ReadEnvironment()
	if err := e.Validate(); err != nil {
		t.Errorf("own environment refused: %v", err)
	}
}

func TestEnvironmentValidateNamesWhatIsMissing(t *testing.T) {
	var none *Environment
	if err := none.Validate(); err == nil {
		t.Error("a missing environment was accepted")
	}
	err := (&Environment{CPU: "x", Cores: 2, Kernel: "6", Time: time.Unix(1, 0)}).Validate()
	if err == nil || !strings.Contains(err.Error(), "command") || strings.Contains(err.Error(), "kernel") {
		t.Errorf("error = %v, want one that names the command alone", err)
	}
}

func TestRedactCommand(t *testing.T) {
	got := RedactCommand([]string{
		"weir", "--dsn", "postgres://bob:se@cret@db:5432/x?sslmode=disable", "--password", "hunter2",
		"--db-password=hunter2", "host=db password='two words' user=bob", "mysql://root@127.0.0.1/x", "--plan=mini",
	})
	want := []string{
		"weir", "--dsn", "postgres://bob:***@db:5432/x?sslmode=disable", "--password", "***",
		"--db-password=***", "host=db password=*** user=bob", "mysql://root@127.0.0.1/x", "--plan=mini",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestParseEnvironmentFiles(t *testing.T) {
	model, hv := parseCPUInfo("processor\t: 0\nmodel name\t: Fast   CPU @ 3GHz\nflags\t\t: fpu hypervisor sse\nmodel name\t: other\n")
	if model != "Fast CPU @ 3GHz" || !hv {
		t.Errorf("cpu = %q, hypervisor = %v", model, hv)
	}
	if got := Meminfo("MemFree: 1 kB\nMemTotal:       2048 kB\n", "MemTotal"); got != 2<<20 {
		t.Errorf("memory = %d", got)
	}
	if got := parseOSRelease("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"); got != "Debian GNU/Linux 12" {
		t.Errorf("os = %q", got)
	}
	if v, err := parsePressure("some avg10=6.25 avg60=1.00 avg300=0.10 total=99\n"); err != nil || v != 6.25 {
		t.Errorf("pressure = %v, %v", v, err)
	}
	if load, run, err := parseLoadavg("1.50 1.00 0.50 3/120 999\n"); err != nil || load != 1.5 || run != 3 {
		t.Errorf("load = %v, runnable = %d, %v", load, run, err)
	}
}

func TestCalibrateFlush(t *testing.T) {
	f, err := CalibrateFlush(t.Context(), t.TempDir(), time.Hour, 20)
	if err != nil {
		t.Fatal(err)
	}
	if f.Count != 20 || f.Bytes != 8192 || f.P50Ns <= 0 || f.P50Ns > f.P99Ns || f.P99Ns > f.MaxNs {
		t.Errorf("calibration = %+v", f)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := CalibrateFlush(cancelled, t.TempDir(), time.Hour, 20); err == nil {
		t.Error("a calibration that measured nothing was returned")
	}
	if _, err := CalibrateFlush(t.Context(), "/does/not/exist", time.Hour, 1); err == nil {
		t.Error("a missing directory was accepted")
	}
}
