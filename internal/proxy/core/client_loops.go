package core

import "sync"

// ClientLoops maps the ids of clients to their loops. Safe for concurrent use.
type ClientLoops[L comparable] struct {
	mu    sync.Mutex
	loops map[uint32]L // guarded by mu
}

// Register gives a client of a loop an id that others can name it by, one of those that pick
// proposes.
func (o *ClientLoops[L]) Register(l L, pick func() uint32) uint32 {
	var none L
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if id := pick(); id != 0 && o.loops[id] == none {
			o.set(id, l)
			return id
		}
	}
}

// Owner returns the loop of the client with an id; ok is false if there is none.
func (o *ClientLoops[L]) Owner(id uint32) (l L, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, ok = o.loops[id]
	return l, ok
}

// Forget frees a client's id.
func (o *ClientLoops[L]) Forget(id uint32) {
	o.mu.Lock()
	delete(o.loops, id)
	o.mu.Unlock()
}

// RegisterAs gives a client of a loop the id that it had in another process; false if
// another client has it here.
func (o *ClientLoops[L]) RegisterAs(l L, id uint32) bool {
	var none L
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.loops[id] != none {
		return false
	}
	o.set(id, l)
	return true
}

// set records a client's loop. o.mu is held.
func (o *ClientLoops[L]) set(id uint32, l L) {
	if o.loops == nil {
		o.loops = make(map[uint32]L)
	}
	o.loops[id] = l
}
