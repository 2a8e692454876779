package measure

import (
	"testing"

	"github.com/google/pprof/profile"
)

// The functions of a category are those between the leaf and the first frame of another
// category, each counted once for a sample.
func TestFunctionsOfACategory(t *testing.T) {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	made := make(map[string]*profile.Location)
	add := func(v int64, stack ...string) {
		s := &profile.Sample{Value: []int64{1, v}}
		for _, name := range stack {
			if made[name] == nil {
				made[name] = &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
			}
			s.Location = append(s.Location, made[name])
		}
		p.Sample = append(p.Sample, s)
	}
	add(60, "internal/runtime/syscall.Syscall6", "syscall.Syscall", "syscall.write", "syscall.write", "github.com/lib/pq.(*conn).send", "net.(*conn).Write")
	add(30, "internal/runtime/syscall.Syscall6", "syscall.Syscall", "syscall.read", "github.com/lib/pq.(*conn).recv")
	add(10, "main.work", "main.main")
	b, err := DefaultRules().Breakdown(p)
	if err != nil {
		t.Fatal(err)
	}
	calls := b.Categories[0]
	if calls.Name != "system calls and network I/O" || calls.Exclusive != .9 {
		t.Fatalf("first category %+v", calls)
	}
	want := []Site{{"syscall.Syscall", .9, .9, 90}, {"syscall.write", 0, .6, 60}, {"syscall.read", 0, .3, 30}}
	if len(calls.Functions) != len(want) {
		t.Fatalf("functions %+v, want %+v", calls.Functions, want)
	}
	for i := range want {
		if calls.Functions[i] != want[i] {
			t.Errorf("function %d: %+v, want %+v", i, calls.Functions[i], want[i])
		}
	}
	for _, c := range b.Categories {
		var flat float64
		for _, f := range c.Functions {
			flat += f.Flat
		}
		if diff := flat - c.Exclusive; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: functions %v of the category's %v", c.Name, flat, c.Exclusive)
		}
	}
}
