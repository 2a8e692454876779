package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
)

type testRun struct{ core.Run }

// A groupLane is a side's lane; what its loop looks at is counted.
type groupLane struct {
	core.Lane[*testBackend, *testUnit, *testRun]
	loop   netloop.Loop
	agenda netloop.Agenda
	late   int
	looks  int
}

func (ln *groupLane) Look() { ln.Awake(); ln.looks++ }

func newLane(lanes int, window time.Duration) *groupLane {
	ln := new(groupLane)
	o := session.Options{WriteLanes: lanes, MaxClients: 100, GroupLimit: core.MaxGroup}
	ln.Init(ln, core.LaneConfig(&o, window, 1, 1<<20), &ln.loop, &ln.agenda, &ln.late)
	return ln
}

func (ln *groupLane) at(ms int) { ln.loop.Now = time.Duration(ms) * time.Millisecond }

func (ln *groupLane) push(t *testing.T, n int) {
	t.Helper()
	for range n {
		if err := ln.Push(new(testUnit), 10); err != nil {
			t.Fatal(err)
		}
	}
}

// start sends the group that may go, of the wanted number of writes.
func (ln *groupLane) start(t *testing.T, want int) (*testBackend, *testRun) {
	t.Helper()
	if !ln.Take() || len(ln.Taken) != want {
		t.Fatalf("a group of %d, want %d", len(ln.Taken), want)
	}
	b, r := new(testBackend), new(testRun)
	r.Sent = true
	ln.Begin(b, r, &r.Run, len(ln.Taken))
	return b, r
}

// A group has no more members than the options allow.
func TestLaneKeepsTheGroupLimit(t *testing.T) {
	t.Parallel()
	o := session.Options{WriteLanes: 1, MaxClients: 100, GroupLimit: 2}.WithDefaults()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	q := batch.NewQueue[int](core.LaneConfig(&o, 0, 10, 1<<20))
	for i := range 5 {
		if err := q.Push(0, i, 1); err != nil {
			t.Fatal(err)
		}
	}
	group, _ := q.Take(0, nil)
	if len(group) != 2 {
		t.Errorf("a group of %d, want 2", len(group))
	}
	o.GroupLimit = core.MaxGroup + 1
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--group-limit 257: want at most 256") {
		t.Errorf("a limit past what weir joins: %v", err)
	}
}

// Writes gather while all of the lane's places are taken, and are looked at once a turn.
func TestLaneGroups(t *testing.T) {
	t.Parallel()
	ln := newLane(1, 0)
	ln.push(t, 3)
	if ln.agenda.Settle(0); ln.looks != 1 {
		t.Errorf("the lane was looked at %d times for three writes", ln.looks)
	}
	b, r := ln.start(t, 3)
	ln.push(t, 2)
	if ln.Take() {
		t.Error("a second group goes while the only place is taken")
	}
	if ln.IdleFor(time.Hour) != 0 {
		t.Error("a lane with writes in it is idle")
	}
	ln.End(b, &r.Run)
	b, r = ln.start(t, 2)
	ln.End(b, &r.Run)
	s := ln.Status()
	if s.Groups != 2 || s.Members != 5 || s.Waiting != 0 || s.InFlight != 0 || s.Limit != core.MaxGroup {
		t.Errorf("%+v", s)
	}
	if got := ln.IdleFor(time.Hour); got != time.Hour {
		t.Errorf("idle for %v", got)
	}
	ln.Queued = true
	if ln.IdleFor(time.Hour) != 0 {
		t.Error("a lane that waits for a backend is idle")
	}
}

// A group without members left gives up its place, and the waiting writes are considered.
func TestLaneWithoutMembers(t *testing.T) {
	t.Parallel()
	ln := newLane(1, 0)
	ln.push(t, 1)
	ln.agenda.Settle(0)
	if !ln.Take() {
		t.Fatal("the group may go")
	}
	ln.push(t, 1)
	ln.None()
	if ln.agenda.Settle(0); ln.looks != 2 {
		t.Errorf("%d looks, want 2", ln.looks)
	}
	ln.start(t, 1)
}

// With a window the lane waits for it, on the agenda once.
func TestLaneWindow(t *testing.T) {
	t.Parallel()
	ln := newLane(2, 10*time.Millisecond)
	ln.at(100)
	ln.push(t, 1)
	ln.agenda.Settle(ln.loop.Now)
	for range 2 {
		if ln.Ready() {
			t.Error("the window is open still")
		}
	}
	at, ok := ln.agenda.Alarm()
	if !ok || at != 110*time.Millisecond {
		t.Errorf("the window ends at %v, %v", at, ok)
	}
	ln.at(110)
	if ln.agenda.Settle(ln.loop.Now); ln.looks != 2 {
		t.Errorf("%d looks, want one when the write came and one when the window ended", ln.looks)
	}
	ln.start(t, 1)
}

// Writes that were taken and are not sent with their group do not count as under way.
func TestLaneWithMembersThatAreNotSent(t *testing.T) {
	t.Parallel()
	ln := newLane(1, 0)
	ln.push(t, 5)
	if !ln.Take() {
		t.Fatal("the group may go")
	}
	b, r := new(testBackend), new(testRun)
	ln.Begin(b, r, &r.Run, 3) // two have left
	ln.Unsent(&r.Run, 1)
	ln.push(t, 1) // waits again
	ln.End(b, &r.Run)
	if !ln.Take() {
		t.Fatal("the group may go")
	}
	ln.None()
	ln.push(t, 1)
	ln.start(t, 1)
	if s := ln.Status(); s.Groups != 2 || s.Members != 3 {
		t.Errorf("%d writes in %d groups", s.Members, s.Groups)
	}
	defer func() {
		if recover() == nil {
			t.Error("more than one is under way")
		}
	}()
	ln.Q.Done(0, 2, 0)
}

// A run that takes long gives its place to those that wait, on a bounded number of
// backends; it frees no other when it ends.
func TestLaneRelief(t *testing.T) {
	t.Parallel()
	ln := newLane(1, 0)
	ln.push(t, 1)
	b, r := ln.start(t, 1)
	ln.at(60)
	ln.Relieve(1)
	if ln.late != 0 {
		t.Error("nobody waits, and a run is late")
	}
	ln.push(t, 1)
	ln.Relieve(0)
	if ln.late != 0 {
		t.Error("a place was given away without a slot")
	}
	r.Sent = false
	ln.Relieve(1)
	if ln.late != 0 {
		t.Error("a run is late that has not been sent")
	}
	r.Sent = true
	ln.Relieve(1)
	if ln.late != 1 {
		t.Fatal("the run is not late after 60 ms")
	}
	b2, r2 := ln.start(t, 1)
	ln.push(t, 1)
	ln.at(200)
	ln.Relieve(1)
	if ln.late != 1 {
		t.Error("more runs are late than there are slots")
	}
	ln.End(b, &r.Run)
	if ln.late != 0 || ln.Take() {
		t.Error("the late run has freed the place of the other")
	}
	ln.End(b2, &r2.Run)
	ln.start(t, 1)
}

// An idleLane has been idle for so long.
type idleLane struct {
	idle     time.Duration
	relieved int
}

func (l *idleLane) IdleFor(time.Duration) time.Duration { return l.idle }
func (l *idleLane) Relieve(int)                         { l.relieved++ }

// Lanes that are not used go: after a while, or when there are too many.
func TestLanes(t *testing.T) {
	t.Parallel()
	ls := make(core.Lanes[int, *idleLane])
	busy := new(idleLane)
	ls.Add(0, 0, busy)
	for i := 1; i < 1000; i++ {
		ls.Add(0, i, &idleLane{idle: time.Second})
	}
	if len(ls) != 1000 {
		t.Fatalf("%d lanes", len(ls))
	}
	ls.Add(0, 1000, &idleLane{idle: time.Hour})
	if len(ls) != 2 || ls[0] != busy || ls[1000] == nil {
		t.Errorf("%d lanes are kept, want the busy one and the new one", len(ls))
	}
	ls.Tick(0, 1)
	if len(ls) != 1 || busy.relieved != 1 {
		t.Errorf("%d lanes after a tick, the busy one relieved %d times", len(ls), busy.relieved)
	}
}
