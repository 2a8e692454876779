package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rooted returns an examiner of a machine with the given files.
func rooted(t *testing.T, files map[string]string) *examiner {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &examiner{Config{Dir: t.TempDir(), Root: root, Patience: 5 * time.Second}}
}

func TestChecksOfMachinesThatAreMadeUp(t *testing.T) {
	quota := func(e *examiner) Check { return e.quota(context.Background()) }
	memory := func(e *examiner) Check { return e.memory(context.Background()) }
	pressure := func(e *examiner) Check { return e.pressure(context.Background()) }
	counters := func(e *examiner) Check { return e.processCounters(context.Background()) }
	for _, tc := range []struct {
		name   string
		check  func(*examiner) Check
		files  map[string]string
		state  State
		detail string
	}{
		{"no groups", quota, nil, No, "the kernel has none"},
		{"version 2, no limit", quota, map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, Yes, "version 2, no limit"},
		{"version 2, limited", quota, map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n"}, Limited, "limited to 50000 of each 100000 us"},
		{"version 2, root group", quota, map[string]string{"proc/self/cgroup": "0::/\n"}, Yes, "version 2"},
		{"version 1, no limit", quota, map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/a\n0::/x\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n"}, Yes, "version 1, no limit"},
		{"version 1, limited", quota, map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "20000\n"}, Limited, "limited to 20000 us"},

		{"memory", memory, map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"}, Yes, "8.0 GiB, 4.0 GiB available"},
		{"little memory", memory, map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1000 kB\n"}, Limited, "8.0 GiB, 0.0 GiB"},
		{"no memory figures", memory, nil, No, "cannot be found out"},
		{"broken memory figures", memory, map[string]string{"proc/meminfo": "MemTotal: many kB\n"}, No, "cannot be found out"},

		{"pressure", pressure, map[string]string{"proc/pressure/cpu": "some avg10=12.50 avg60=0.00 avg300=0.00 total=5\n"}, Yes, "during 12.50 % of the last ten seconds"},
		{"no pressure", pressure, nil, No, "keeps no pressure figures"},

		{"all counters", counters, map[string]string{"proc/self/stat": "1", "proc/self/status": "1", "proc/self/io": "1", "proc/self/schedstat": "1"}, Yes, "stat, status, io, schedstat"},
		{"some counters", counters, map[string]string{"proc/self/stat": "1", "proc/self/status": "1"}, Limited, "without io, schedstat"},
		{"no counters", counters, nil, No, "no /proc/self/stat"},
	} {
		got := tc.check(rooted(t, tc.files))
		if got.State != tc.state || !strings.Contains(got.Detail, tc.detail) {
			t.Errorf("%s: %s, %q; want %s with %q", tc.name, got.State, got.Detail, tc.state, tc.detail)
		}
	}
}

func TestExamineThisMachine(t *testing.T) {
	got, err := Examine(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, c := range got {
		if c.Name == "" || c.Detail == "" || c.For == "" || c.State != Yes && c.State != Limited && c.State != No {
			t.Errorf("incomplete: %+v", c)
		}
		if seen[c.Name] {
			t.Errorf("%s twice", c.Name)
		}
		seen[c.Name] = true
		// Any machine that these tests run on has these.
		if (c.Name == "loopback" || c.Name == "clock") && c.State == No {
			t.Errorf("%+v", c)
		}
	}
	if len(got) != 22 {
		t.Errorf("%d checks", len(got))
	}
}

func TestToolsThatAreNotThere(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	got, err := Examine(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range got {
		switch c.Name {
		case "perf", "strace", "bpftrace", "netem":
			if c.State != No || c.Hint == "" && c.Detail == "not installed" {
				t.Errorf("%+v", c)
			}
		}
	}
}

func TestExamineStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := Examine(ctx, Config{}); !errors.Is(err, context.Canceled) || len(got) != 0 {
		t.Errorf("%d checks, %v", len(got), err)
	}
}

func TestToolsThatHangAreLeft(t *testing.T) {
	e := rooted(t, nil)
	e.Patience = 50 * time.Millisecond
	if _, err := e.command(t.Context(), nil, "sleep", "60"); err == nil || !strings.Contains(err.Error(), "no end within") {
		t.Errorf("error = %v", err)
	}
}

func FuzzCgroupPath(f *testing.F) {
	f.Add("3:cpu,cpuacct:/a\n0::/x\n")
	f.Add("0::/\n")
	f.Fuzz(func(t *testing.T, s string) {
		if version, _ := cgroupPath(s); version != "1" && version != "2" {
			t.Errorf("version %q", version)
		}
	})
}
