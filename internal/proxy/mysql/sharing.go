package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// sharing pipelines the reads of several clients on a pool's backends.
type sharing struct {
	p    *pool
	lost core.SetLosses // of backends before these settings were applied on them
}

// run sends a shared read on a pipeline, or queues it for one.
func (s *sharing) run(u *unit) {
	p := s.p
	c := u.c
	p.Stats.Reads++
	u.read = true
	if c.inflight > 1 {
		c.reader.send(u) // behind its own earlier ones
		return
	}
	if len(p.Reads) == 0 && (u.shape == nil || !u.shape.Stalled(p.l.Now)) {
		if b := s.pipeline(c.set, u.st); b != nil {
			s.sendOn(b, u)
			return
		}
	}
	if crowded(p) {
		p.Stats.Limited[core.LimitWaiting]++
		p.l.Post(func() { // after its message is consumed
			if u.c == c && !u.Left() {
				c.lost(u, full(p))
			}
		})
		return
	}
	s.again(u)
}

// send sends a shared read whose client has no other in flight.
func (s *sharing) send(u *unit) {
	p := s.p
	c := u.c
	if len(p.Reads) == 0 {
		if b := s.pipeline(c.set, u.st); b != nil {
			s.sendOn(b, u)
			return
		}
	}
	c.reader = nil
	p.Reads = append(p.Reads, u)
	p.Watch()
	p.Wake()
}

// sendOn sends a read on a pipeline, and watches the pipeline for stalls.
func (s *sharing) sendOn(b *backend, u *unit) {
	p := s.p
	u.c.reader = b
	b.send(u)
	p.Watch()
}

// rerun runs a unit again whose answer was withheld.
func (s *sharing) rerun(u *unit) {
	p := s.p
	if u.read && u.Tries == 0 {
		s.again(u)
		return
	}
	p.alone.queue(u)
}

// feed moves queued reads to pipelines that have room. A read that waits for its statement to
// be prepared does not hold up those behind it.
func (s *sharing) feed() {
	p := s.p
	keep := p.Reads[:0]
	for i, u := range p.Reads {
		if u.Left() {
			continue
		}
		if b := s.pipeline(u.c.set, u.st); b != nil {
			s.sendOn(b, u)
			continue
		}
		if u.st == nil || !u.st.learning {
			keep = append(keep, p.Reads[i:]...) // there is no room
			break
		}
		keep = append(keep, u)
	}
	clear(p.Reads[len(keep):])
	p.Reads = keep
}

// pipeline returns a backend on which a read in the given settings can be sent now: the shared
// one with the shortest queue, or a free one that becomes shared while there are fewer than the
// limit.
func (s *sharing) pipeline(set *session.Set, st *stmt) *backend {
	p := s.p
	var best, unlearned *backend
	starving := p.Starving()
	depth := core.MaxPipeline
	if !p.facts.pipelines {
		depth = 1
	}
	for i, b := range p.Shared.Backends {
		if i == 0 && starving {
			continue // let it drain, for a client that needs a backend of its own
		}
		if b.set != set || b.Depth() >= depth || !b.Feedable() {
			continue
		}
		if st != nil && b.prepared[st] == nil {
			unlearned = b
			continue
		}
		if best == nil || b.Depth() < best.Depth() {
			best = b
		}
	}
	if best == nil && unlearned != nil && !st.learning {
		s.teach(unlearned, st)
	}
	if p.MayShareMore(p.ReadLanes) {
		if b := p.take(set, nil); b != nil {
			p.Shared.Add(b, &b.Conn)
			b.lastUser = nil
			if b.set == set && (st == nil || b.prepared[st] != nil) {
				return b
			}
			b.readied(set, st, func(b *backend, err *mywire.Error) {
				lost := b.s.Closed
				p.release(b) // the reads that wait take it again, in their settings
				switch {
				case err == nil:
					delete(s.lost, set)
				case !lost:
					s.fail(set, st, err)
				case !s.elsewhere(set, b):
					s.fail(set, st, errLostUnsent())
				}
			})
		}
	}
	return best
}

// elsewhere makes the queued reads in the given settings wait for another backend, since b is
// lost. It returns false if that has happened too often.
func (s *sharing) elsewhere(set *session.Set, b *backend) bool {
	if s.p.l.Draining() || !s.lost.Again(set, s.p.l.Now, b.Born) {
		return false
	}
	s.p.Wake()
	return true
}

// teach prepares a statement on a shared backend, behind the units in flight.
func (s *sharing) teach(b *backend, st *stmt) {
	p := s.p
	st.learning = true
	b.learn(st, func(err *mywire.Error) {
		st.learning = false
		if err != nil && err.Code != mywire.ErrQueryInterrupted { // weir interrupted it, see stalled
			s.fail(b.set, st, err)
		}
		p.Wake()
	})
}

// fail refuses the queued reads in the given settings, of one statement or, if st is nil, of
// all.
func (s *sharing) fail(set *session.Set, st *stmt, e *mywire.Error) {
	p := s.p
	p.Reads.Drop(func(u *unit) bool {
		if !u.Left() {
			if u.c.set != set || st != nil && u.st != st {
				return false
			}
			u.c.lost(u, e)
		}
		return true
	})
}

// end removes a busy backend from the pipelines, and moves all its reads except the head
// elsewhere.
func (s *sharing) end(b *backend) {
	p := s.p
	p.Shared.Remove(b)
	b.Mode = core.ModeOwn
	waiting := map[*client]bool{}
	if u := b.Head(); u.c != nil {
		waiting[u.c] = true
		u.c.reader = nil
	}
	for _, u := range b.Units()[1:] {
		if u.kind != unitClient || u.c == nil {
			continue
		}
		n := s.moveOut(b, u)
		c := n.c
		if c.s.Closed {
			continue
		}
		c.reader = nil
		if waiting[c] {
			c.again = append(c.again, n) // after the answer to its earlier ones
			continue
		}
		waiting[c] = true
		s.again(n)
	}
	p.Watch()
	p.Wake()
}

// moveOut replaces a unit that was sent to b by a new one for the same client, and returns
// that. weir drops the server's answer to the old one.
func (s *sharing) moveOut(b *backend, u *unit) *unit {
	p := s.p
	p.Apart.Haunt(&b.Conn)
	n := p.l.newUnit(unitClient, u.cmd)
	n.types = u.types
	n.c, n.seq, n.cs, n.st, n.verb, n.shape, n.effects, n.read = u.c, u.seq, u.cs, u.st, u.verb, u.shape, u.effects, u.read
	n.queuedAt, n.retries, n.Tries = u.queuedAt, u.retries, u.Tries
	n.trace, n.sql = u.trace, u.sql
	n.raw, u.raw, n.row, n.generated = u.raw, n.raw, u.row, u.generated
	n.flight, u.flight = u.flight, nil
	u.c, u.shape, u.cs = nil, nil, nil
	return n
}

// again queues a read that was moved, or was hit by a KILL of another statement.
func (s *sharing) again(u *unit) {
	p := s.p
	if u.shape != nil && u.shape.Stalled(p.l.Now) {
		p.alone.queue(u)
		return
	}
	s.send(u)
}
