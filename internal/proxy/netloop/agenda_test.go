package netloop

import (
	"slices"
	"testing"
	"time"
)

// note is a task that writes its name down, and then does more if it has to.
type note struct {
	name string
	log  *[]string
	then func()
	at   time.Duration
}

func (n *note) Look() {
	*n.log = append(*n.log, n.name)
	if then := n.then; then != nil {
		n.then = nil
		then()
	}
}

func (n *note) Deadline() (time.Duration, bool) { return n.at, n.at > 0 }
func (n *note) Due()                            { *n.log = append(*n.log, "due "+n.name) }

func TestAgendaLooksUntilNothingIsLeft(t *testing.T) {
	var a Agenda
	var log []string
	session, pool, lane := &note{name: "session", log: &log}, &note{name: "pool", log: &log}, &note{name: "lane", log: &log}
	lane.then = func() { a.Pool(pool); a.Lane(lane) } // a group has ended: its backend is free
	pool.then = func() { a.Session(session) }
	a.Lane(lane)
	a.Pool(pool)
	a.Session(session)
	a.Settle(0)
	want := []string{"session", "pool", "lane", "lane", "session", "pool"}
	if !slices.Equal(log, want) {
		t.Errorf("looked at %v\nwant      %v", log, want)
	}
	a.Settle(0)
	if len(log) != len(want) {
		t.Errorf("looked again at %v", log[len(want):])
	}
}

func TestAgendaKeepsTime(t *testing.T) {
	var a Agenda
	var log []string
	if at, ok := a.Alarm(); ok {
		t.Errorf("an empty agenda has an alarm at %v", at)
	}
	for name, at := range map[string]time.Duration{"late": 30, "soon": 10, "never": 0} {
		a.At(&note{name: name, log: &log, at: at})
	}
	if at, ok := a.Alarm(); !ok || at != 10 {
		t.Errorf("alarm at %v, %v; want 10", at, ok)
	}
	a.Settle(9)
	a.Settle(10)
	a.Settle(29)
	if want := []string{"due never", "due soon"}; !slices.Equal(log, want) {
		t.Errorf("called %v, want %v", log, want)
	}
	if at, ok := a.Alarm(); !ok || at != 30 {
		t.Errorf("alarm at %v, %v; want 30", at, ok)
	}
}
