package netloop

import "time"

// An Agenda is what a loop's owner must look at before the turn ends: sessions
// whose held input can be processed, pools with backends to give or to get,
// lanes with a group to send. A task enters itself only once, with the help of a flag that
// its Look resets.
type Agenda struct {
	sessions, pools, lanes []Task
	timed, spare           []Timed
}

// A Task can be on an agenda.
type Task interface {
	// Look does what the task is on the agenda for. It may enter this
	// task, and others, again.
	Look()
}

// A Timed has a time at which it is due.
type Timed interface {
	// Deadline is that time; ok is false when there is none any more.
	Deadline() (at time.Duration, ok bool)
	// Due is called once, when the time has come or there is no deadline any more. It may
	// enter this task and others again.
	Due()
}

// Session, Pool and Lane enter a task; sessions are looked at first, lanes last.
func (a *Agenda) Session(t Task) { a.sessions = append(a.sessions, t) }

// Pool enters a task.
func (a *Agenda) Pool(t Task) { a.pools = append(a.pools, t) }

// Lane enters a task.
func (a *Agenda) Lane(t Task) { a.lanes = append(a.lanes, t) }

// At enters a task that is due at a time.
func (a *Agenda) At(t Timed) { a.timed = append(a.timed, t) }

// Settle calls everything that is due, until no task makes work for another.
func (a *Agenda) Settle(now time.Duration) {
	a.due(now)
	for len(a.sessions) > 0 || len(a.pools) > 0 || len(a.lanes) > 0 {
		lookAt(&a.sessions)
		lookAt(&a.pools)
		lookAt(&a.lanes)
	}
}

func lookAt(list *[]Task) {
	for i := 0; i < len(*list); i++ { // it may grow meanwhile
		t := (*list)[i]
		(*list)[i] = nil
		t.Look()
	}
	*list = (*list)[:0]
}

// due calls the tasks whose time has come.
func (a *Agenda) due(now time.Duration) {
	list := a.timed
	a.timed = a.spare[:0]
	for _, t := range list {
		if at, ok := t.Deadline(); ok && at > now {
			a.timed = append(a.timed, t)
			continue
		}
		t.Due()
	}
	clear(list)
	a.spare = list[:0]
}

// Alarm is the earliest deadline, if there is one.
func (a *Agenda) Alarm() (next time.Duration, ok bool) {
	for _, t := range a.timed {
		if at, open := t.Deadline(); open && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}
