package rulercmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/ruler/doctor"
)

func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	var checks []doctor.Check
	if out := program.Run(t, "doctor", "--dir", dir, "--json"); json.Unmarshal([]byte(out), &checks) != nil {
		t.Fatalf("no JSON: %s", out)
	}
	names := make(map[string]doctor.Check)
	for _, c := range checks {
		names[c.Name] = c
	}
	for _, want := range []string{"perf", "eBPF", "BTF", "strace", "cgroups", "pressure", "netem", "PostgreSQL", "MariaDB", "NATS", "Redis", "RabbitMQ", "Kafka", "versitygw", "open files", "clock", "fsync", "timer"} {
		if _, ok := names[want]; !ok {
			t.Errorf("says nothing of %s", want)
		}
	}
	if c := names["fsync"]; c.State == doctor.No || !strings.Contains(c.Detail, dir) {
		t.Errorf("fsync of %s: %+v", dir, c)
	}
	text := program.Run(t, "doctor", "--dir", dir)
	if strings.Count(text, "\n") < len(checks) || !strings.Contains(text, " do not.\n") {
		t.Errorf("%s", text)
	}
	if out := program.Run(t, "doctor", "--dir", "/nowhere/at/all"); !strings.Contains(out, "\nno       fsync") {
		t.Errorf("%s", out)
	}
}

func TestDoctorLines(t *testing.T) {
	var b strings.Builder
	err := check.Print(&b, []doctor.Check{
		{Name: "clock", State: doctor.Yes, Detail: "tsc", For: "every figure"},
		{Name: "perf", State: doctor.No, Detail: "not installed", For: "profiles", Hint: "apt-get install linux-perf"},
		{Name: "open files", State: doctor.Limited, Detail: "1024", For: "many clients"},
	})
	want := `yes      clock       tsc
no       perf        not installed
                     for profiles; apt-get install linux-perf
limited  open files  1024
                     for many clients

1 of 3 work, 1 with limits, 1 do not.
`
	if err != nil || b.String() != want {
		t.Errorf("%v, printed\n%s\nwant\n%s", err, b.String(), want)
	}
}
