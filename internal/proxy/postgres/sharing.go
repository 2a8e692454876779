package postgres

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// sharing pipelines the reads of several clients on a pool's backends.
type sharing struct {
	p    *pool
	lost core.SetLosses // of backends before these settings were applied on them

	// unread are the settings in which a backend was refused, because weir would misread
	// texts in its client_encoding; nil if there are none.
	unread *session.Set
}

// run sends a shared read on a pipeline, or queues it for one.
func (s *sharing) run(u *unit) {
	p := s.p
	c := u.c
	p.Stats.Reads++
	u.read = true
	p.Watch() // what is sent now must not be held up for long
	if c.inflight > 1 {
		c.reader.send(u) // behind its own earlier ones
		return
	}
	if u.stalled(p.l.Now) {
		p.alone.queue(u)
		return
	}
	if len(p.Reads) == 0 {
		if b := s.pipeline(c.set, u.shape); b != nil {
			c.reader = b
			b.send(u)
			return
		}
		s.unread = nil // feed answers it
	}
	if crowded(p) {
		p.Stats.Limited[core.LimitWaiting]++
		p.l.Post(func() { // when its message was consumed
			if u.c == c && !u.Left() {
				c.lost(u, full(p))
			}
		})
		return
	}
	s.queue(u)
}

// runAlone runs a read that may not share a pipeline: it is slow or long, or weir does not
// know it yet. Its client does not own the backend meanwhile, so if the read waits for a
// lock, it can wait in weir instead (lockProbe).
func (s *sharing) runAlone(u *unit) {
	p := s.p
	u.read = true
	u.c.reader = nil
	if u.stalled(p.l.Now) {
		p.alone.queue(u)
		return
	}
	p.Enqueue(waiter{Unit: u})
}

// queue queues a read for a pipeline.
func (s *sharing) queue(u *unit) {
	p := s.p
	u.c.reader = nil
	p.Reads = append(p.Reads, u)
	p.Watch()
	p.Wake()
}

// feed moves queued reads to pipelines that have room.
func (s *sharing) feed() {
	p := s.p
	done := 0
	for done < len(p.Reads) {
		u := p.Reads[done]
		if u.Left() {
			done++
			continue
		}
		if p.catalogue.outgrew(u) {
			p.Enqueue(waiter{Unit: u})
			done++
			continue
		}
		b := s.pipeline(u.c.set, u.shape)
		if b == nil {
			break
		}
		u.c.reader = b
		b.send(u)
		p.Watch()
		done++
	}
	p.Reads.Skip(done)
	if set := s.unread; set != nil {
		s.unread = nil
		s.fail(set, misread()) // at once: otherwise they would be tried again, for ever
	}
}

// pipeline returns a backend on which a read in the given settings may be sent
// now: the shared one with the shortest queue, or a free one, which becomes shared, while
// there are fewer than the limit. On machines with few processors it is the first one that is
// not yet deep in cheap reads, so that each write, wake-up and read carries as many as possible.
func (s *sharing) pipeline(set *session.Set, sh *sight.Shape) *backend {
	p := s.p
	deep := 0
	if p.l.Pressed() && sh != nil {
		deep = core.Deep(sh.Cost())
	}
	var best *backend
	starving := p.Starving()
	for i, b := range p.Shared.Backends {
		if i == 0 && starving {
			continue // it gets no more, for a client that needs a backend alone
		}
		if b.set == set && b.bytewise && b.Depth() < core.MaxPipeline && b.Feedable() && (best == nil || b.Depth() < best.Depth()) {
			best = b
		}
		if best != nil && best.Depth() < deep {
			return best
		}
	}
	if p.MayShareMore(p.ReadLanes) {
		if b := p.take(set, nil); b != nil {
			p.Shared.Add(b, &b.Conn)
			if b.in(set, b.app) {
				if b.bytewise {
					return b
				}
				p.release(b)
				s.unread = set
				return nil
			}
			b.prepare(set, b.app, func(err *pgwire.Error) {
				p.release(b) // and taken again by the waiting reads, in their settings
				if err == nil {
					delete(s.lost, set)
				} else if !b.died(err) || !s.again(set, b) {
					s.fail(set, refused(err))
				}
			})
		}
	}
	return best
}

// again makes the queued reads in the given settings wait for another backend, since b is
// lost. It returns false if that has happened too often.
func (s *sharing) again(set *session.Set, b *backend) bool {
	if s.p.l.Draining() || !s.lost.Again(set, s.p.l.Now, b.Born) {
		return false
	}
	s.p.Wake()
	return true
}

// fail answers the queued reads in the given settings.
func (s *sharing) fail(set *session.Set, e *pgwire.Error) {
	p := s.p
	p.Reads.Drop(func(u *unit) bool {
		if !u.Left() {
			if u.c.set != set {
				return false
			}
			u.c.lost(u, e)
		}
		return true
	})
}

// end removes a busy backend from the pipelines and moves all reads but the
// head elsewhere.
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
		p.Apart.Haunt(&b.Conn)
		n := p.l.moveOut(u)
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
		s.requeue(n)
	}
	p.Watch()
	p.Wake()
}

// requeue queues a read that was moved.
func (s *sharing) requeue(u *unit) {
	p := s.p
	if u.shape != nil && u.shape.Stalled(p.l.Now) {
		p.alone.queue(u)
		return
	}
	s.queue(u)
}
