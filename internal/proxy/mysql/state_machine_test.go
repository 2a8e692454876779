package mysql

import "testing"

// A client that waits for one thing is not let go by the end of another, and a KILL and
// a question of weir's own end each by itself.
func TestStateEndsWithWhatItWaitsFor(t *testing.T) {
	for _, x := range []struct {
		name         string
		enter, leave []state
		want         state
	}{
		{"a backend", []state{stateWaiting}, []state{stateWaiting}, stateOpen},
		{"a backend, while a late answer comes", []state{stateWaiting}, []state{stateAsking}, stateWaiting},
		{"a file, while a late answer comes", []state{stateSending}, []state{stateAsking}, stateSending},
		{"a question twice", []state{stateAsking, stateAsking}, []state{stateAsking}, stateOpen},
		{"a question during a KILL", []state{stateLeaving, stateAsking}, []state{stateAsking}, stateLeaving},
		{"a KILL during a question", []state{stateLeaving, stateAsking}, []state{stateLeaving}, stateAsking},
		{"both", []state{stateLeaving, stateAsking}, []state{stateLeaving, stateAsking}, stateOpen},
		{"nothing", nil, []state{stateWaiting, stateAsking, stateSending, stateLeaving}, stateOpen},
	} {
		var s state
		for _, to := range x.enter {
			s.enter(to)
		}
		for _, from := range x.leave {
			s.leave(from)
		}
		if s != x.want {
			t.Errorf("%s: state %d, want %d", x.name, s, x.want)
		}
	}
}
