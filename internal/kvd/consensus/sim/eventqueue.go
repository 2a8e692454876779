package sim

// event is a function to call at a virtual time.
type event struct {
	at    int64 // nanoseconds since the start of the world
	order uint64
	do    func()
}

// eventQueue is a binary heap of events by time. Events of the same time are in the order in
// which they were added.
type eventQueue struct {
	events  []event
	planned uint64
}

func (a *eventQueue) less(i, j int) bool {
	x, y := &a.events[i], &a.events[j]
	return x.at < y.at || x.at == y.at && x.order < y.order
}

func (a *eventQueue) push(at int64, do func()) {
	a.planned++
	a.events = append(a.events, event{at, a.planned, do})
	for i := len(a.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !a.less(i, parent) {
			return
		}
		a.events[i], a.events[parent] = a.events[parent], a.events[i]
		i = parent
	}
}

func (a *eventQueue) empty() bool { return len(a.events) == 0 }

func (a *eventQueue) pop() event {
	e := a.events[0]
	last := len(a.events) - 1
	a.events[0], a.events[last] = a.events[last], event{}
	a.events = a.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if a.less(child, least) {
				least = child
			}
		}
		if least == i {
			return e
		}
		a.events[i], a.events[least] = a.events[least], a.events[i]
		i = least
	}
}
