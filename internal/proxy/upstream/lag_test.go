package upstream

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestLag(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	primary, standby := Endpoint{"p:1", "p:1"}, Endpoint{"s:1", "s:1"}
	var tr trail
	look := func(second int, of Endpoint, term, written, applied uint64) Lag {
		found := []Status{
			{Endpoint: standby, Report: Report{Role: RoleStandby, Position: applied}},
			{Endpoint: of, Report: Report{Role: RolePrimary, Term: term, Position: written}},
		}
		tr.measure(at(second), found, of)
		if found[1].Lag.Known {
			t.Errorf("second %d: a primary is behind: %+v", second, found[1].Lag)
		}
		return found[0].Lag
	}
	for _, tt := range []struct {
		second           int
		written, applied uint64
		want             Lag
	}{
		{0, 100, 100, Lag{Known: true}},
		{1, 150, 100, Lag{Known: true, Behind: 50}},                   // written a moment ago
		{2, 150, 100, Lag{Known: true, Behind: 50, For: time.Second}}, // ... and still not there
		{3, 200, 120, Lag{Known: true, Behind: 80, For: 2 * time.Second}},
		{4, 220, 150, Lag{Known: true, Behind: 70, For: time.Second}}, // what it lacks was first seen in second 3
		{5, 220, 230, Lag{Known: true}},                               // asked after the primary
		{600, 220, 220, Lag{Known: true}},                             // nobody writes
		{601, 220, 0, Lag{}},                                          // it does not say
	} {
		if got := look(tt.second, primary, 1, tt.written, tt.applied); got != tt.want {
			t.Errorf("second %d, %d written, %d applied: %+v, want %+v", tt.second, tt.written, tt.applied, got, tt.want)
		}
	}
	if got := look(602, primary, 1, 50, 40); got != (Lag{Known: true, Behind: 10}) {
		t.Errorf("the primary lost what it had: %+v", got)
	}
	if got := look(603, Endpoint{"q:1", "q:1"}, 2, 60, 40); got != (Lag{Known: true, Behind: 20}) {
		t.Errorf("behind another primary: %+v", got)
	}
	for i := range 10 * maxMarks {
		look(1000+i, primary, 3, uint64(1000+i), 1)
	}
	if got := look(1000+10*maxMarks, primary, 3, 1000+10*maxMarks, 1000+10*maxMarks-100); len(tr.marks) > maxMarks || got.For < 80*time.Second || got.For > 100*time.Second {
		t.Errorf("after many looks: %d marks, %+v", len(tr.marks), got)
	}

	found := []Status{
		{Endpoint: standby, Report: Report{Role: RoleStandby, Position: 7}},
		{Endpoint: primary, Report: Report{Role: RolePrimary, Position: 9}, Err: errors.New("no answer")},
	}
	if tr.measure(at(9), found, primary); found[0].Lag.Known {
		t.Errorf("behind a primary that does not answer: %+v", found[0].Lag)
	}
	found = []Status{
		{Endpoint: Endpoint{"old:1", "old:1"}, Report: Report{Role: RolePrimary, Term: 1, Position: 99}},
		{Endpoint: primary, Report: Report{Role: RolePrimary, Term: 2, Position: 9}},
		{Endpoint: standby, Report: Report{Role: RoleStandby, Position: 7}},
	}
	if tr.measure(at(9), found, standby); found[2].Lag.Behind != 2 {
		t.Errorf("behind the primary that was promoted last: %+v", found[2].Lag)
	}
}

// A standby that applies nothing is further behind at each look.
func TestMonitorMeasuresLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, f := watch(t, Config{Hosts: []string{"10.0.0.1:5", "10.0.0.2:5"}, Target: TargetReadWrite})
		f.set("10.0.0.1:5", RolePrimary)
		f.set("10.0.0.2:5", RoleStandby)
		f.reach("10.0.0.1:5", 10)
		f.reach("10.0.0.2:5", 10)
		run(t, m)
		time.Sleep(1500 * time.Millisecond)
		f.reach("10.0.0.1:5", 30)
		time.Sleep(5 * time.Second)
		hosts := m.Hosts()
		if got, want := hosts[1].Lag, (Lag{Known: true, Behind: 20, For: 4 * time.Second}); got != want || hosts[0].Lag.Known {
			t.Errorf("lag %+v and %+v, want %+v of the standby", hosts[0].Lag, got, want)
		}
		f.reach("10.0.0.2:5", 30)
		time.Sleep(time.Second)
		if got := m.Hosts()[1].Lag; got != (Lag{Known: true}) {
			t.Errorf("caught up: %+v", got)
		}
	})
}
