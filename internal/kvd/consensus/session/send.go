package session

import (
	"cmp"
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// switches are the cluster's switches as far as they concern clients.
type switches struct {
	fast       bool
	weakWrites level
	weakReads  level
}

type level uint8

const (
	quorum level = iota
	leader
	nearest
)

// decodeSwitches decodes the byte in wire.NewView that consensus.Switches.Encode produces.
func decodeSwitches(b uint8) switches {
	return switches{fast: b&1 != 0, weakWrites: level(b >> 1 & 3), weakReads: level(b >> 3 & 3)}
}

// Connected notes that messages can be sent to a replica. What was sent there before may be
// lost.
func (s *Session) Connected(now int64, replica uint64) {
	s.now = now
	if s.peer(replica) == nil {
		s.peers = append(s.peers, peer{id: replica})
	}
	s.resend(func(o *op) bool { return o.sent == 0 || s.target(o) == replica })
}

// Disconnected notes that a replica cannot be reached.
func (s *Session) Disconnected(now int64, replica uint64) {
	s.now = now
	for i := range s.peers {
		if s.peers[i].id == replica {
			s.peers = append(s.peers[:i], s.peers[i+1:]...)
			break
		}
	}
	if s.leader == replica {
		s.leader = 0
	}
	s.resend(func(o *op) bool { return o.to == replica })
}

// Distance sets the round trip time to a replica, by which the nearest replica is determined.
func (s *Session) Distance(replica uint64, rtt int64) {
	if p := s.peer(replica); p != nil {
		p.rtt = rtt
	}
}

func (s *Session) peer(id uint64) *peer {
	for i := range s.peers {
		if s.peers[i].id == id {
			return &s.peers[i]
		}
	}
	return nil
}

// nearest returns the connected replica with the shortest round trip, 0 if there is none. It
// changes only when another one is clearly nearer: measurements fluctuate, and the replica that
// has served the session has the state that the session needs.
func (s *Session) nearest() uint64 {
	const clearly, tremble = 0.7, 50e3 // nanoseconds
	best := peer{}
	for _, p := range s.peers {
		if best.id == 0 || p.rtt < best.rtt {
			best = p
		}
	}
	if b := s.peer(s.bound); b == nil || float64(best.rtt) < clearly*float64(b.rtt)-tremble {
		s.bound = best.id
	}
	return s.bound
}

// target returns the replica to which an operation is sent now, 0 if none is known.
func (s *Session) target(o *op) uint64 {
	if !o.atLeader && (o.kind == weakRead || o.kind == weakWrite && s.switches.weakWrites == nearest) {
		return s.nearest()
	}
	if s.leader != 0 && s.peer(s.leader) != nil {
		return s.leader
	}
	if len(s.peers) == 0 {
		return 0
	}
	return s.peers[s.rotation%len(s.peers)].id // a replica that may know the leader
}

// transmit sends an operation to its target.
func (s *Session) transmit(o *op) {
	if s.id == 0 && o.kind != register && (o.after > 0 || o.kind != weakRead && o.kind != strongRead) {
		return // it is sent after the registration: only then can a replica tell which of the session's writes it has
	}
	to := s.target(o)
	if to == 0 {
		return
	}
	o.tries++
	o.sent, o.to = max(s.now, 1), to
	m := wire.Message{Session: s.id, Seq: o.seq, Ack: s.writes.from - 1, View: s.view, Data: o.command}
	switch o.kind {
	case register:
		m = wire.Message{Kind: wire.Register, Count: 1, Request: o.request}
	case strongWrite:
		m.Kind, m.Prior = wire.Strong, s.priorOf(o.seq)
		o.fast = s.switches.fast && !o.silent && !o.final && to == s.leader && s.view > 0 && len(s.peers) > 1 && s.path.choose(s, o)
		m.Bundle = s.bundle(o, to)
		if o.fast && sizeOf(m.Bundle) > maxBundleBytes {
			o.fast = false // it should wait for the log instead
			m.Bundle = s.bundle(o, to)
		}
		s.gathers(o, o.fast)
		if o.final {
			m.Flags = wire.FlagEnd
		}
		if o.fast {
			m.Flags = wire.FlagFast
			o.votes, o.spec = o.votes[:0], nil
			record := m
			record.Kind, record.Flags = wire.Record, 0
			for _, p := range s.peers {
				if p.id != to {
					s.send(p.id, record)
				}
			}
		}
	case weakWrite:
		m.Kind = wire.Weak
		if s.switches.weakWrites == nearest && !o.atLeader {
			m.Flags = wire.FlagNearest
			// So that no earlier write is missing, even if this client dies now.
			m.Bundle = inOrder(bundled(bundled(nil, s.waiting, o.seq), s.gathering, o.seq))
		}
	case strongRead:
		m.Kind, m.Request = wire.Read, o.request
		if o.seq > 0 {
			m.Bundle = s.bundle(o, to)
		}
	case weakRead:
		m.Kind, m.Request, m.Seq = wire.WeakRead, o.request, 0
		m.View, m.Index = s.token.View, s.token.Index
		s.touching(o, func(w *weak) {
			m.Bundle = append(m.Bundle, wire.Write{Seq: w.seq, Command: w.command})
		})
	case wait:
		m = wire.Message{Kind: wire.Stable, Session: s.id, Seq: o.seq, Request: o.request}
	}
	s.send(to, m)
}

// maxBundleBytes limits the commands in the bundle of a fast write. Each such write sends them
// to all replicas again, so that the traffic would grow with the square of the operations in
// flight.
const maxBundleBytes = 64 << 10

func sizeOf(bundle []wire.Write) (n int) {
	for i := range bundle {
		n += len(bundle[i].Command)
	}
	return n
}

// bundle returns the weak writes before o that are not known to be committed and, for the
// witnesses of a fast write, the strong ones that wait for their commit. Writes that were sent
// to the same leader on the same connection are left out if no other replica is asked.
func (s *Session) bundle(o *op, to uint64) []wire.Write {
	if !o.fast && o.tries == 1 && s.switches.weakWrites != nearest && to == s.leader {
		return nil
	}
	var b []wire.Write
	for _, w := range s.unstable {
		if w.seq < o.seq || o.kind == strongRead && w.seq <= o.seq {
			b = append(b, wire.Write{Seq: w.seq, Command: w.command})
		}
	}
	if !o.fast {
		return b
	}
	return inOrder(bundled(b, s.waiting, o.seq))
}

// bundled appends the strong writes of a list before seq to a bundle.
func bundled(b []wire.Write, list []*op, seq uint64) []wire.Write {
	for _, w := range list[:upTo(list, seq)] {
		b = append(b, wire.Write{Seq: w.seq, Strong: true, Command: w.command})
	}
	return b
}

func inOrder(b []wire.Write) []wire.Write {
	slices.SortFunc(b, func(x, y wire.Write) int { return cmp.Compare(x.Seq, y.Seq) })
	return b
}

// touching calls do for each weak write that is not known to be committed, touches what o reads
// and was issued before it.
func (s *Session) touching(o *op, do func(*weak)) {
	if last, known := s.byWeak.by(&o.foot); known && last == 0 {
		return
	}
	for _, w := range s.unstable {
		if w.seq <= o.after && w.foot.Overlaps(&o.foot) {
			do(w)
		}
	}
}

func (s *Session) send(to uint64, m wire.Message) {
	s.sends = append(s.sends, Send{to, m})
}

// resend sends the operations again for which again returns true, in order.
func (s *Session) resend(again func(*op) bool) {
	for o := range s.ops.all() {
		if again(o) {
			s.transmit(o)
		}
	}
}

// resendWeak sends acknowledged weak writes to the leader again: the replica that has them may
// be gone.
func (s *Session) resendWeak(olderThan int64) {
	if s.leader == 0 || s.peer(s.leader) == nil {
		return
	}
	for _, w := range s.unstable {
		if w.sent <= olderThan {
			w.sent = s.now
			s.send(s.leader, wire.Message{Kind: wire.Weak, View: s.view, Session: s.id, Seq: w.seq, Ack: s.writes.from - 1, Data: w.command})
		}
	}
}

// Tick repeats requests that have waited too long for an answer. Call it several times per
// Config.Retry.
func (s *Session) Tick(now int64) {
	s.now = now
	if s.expired || now < s.nextCheck {
		return
	}
	retry := int64(s.cfg.Retry)
	s.nextCheck = now + retry/4
	rotated := false
	for o := range s.ops.all() {
		wait := retry << min(max(o.tries-1, 0), 4)
		if o.sent != 0 && now-o.sent < wait {
			continue
		}
		if o.sent != 0 && !rotated {
			rotated = true
			s.rotation++
			if o.tries > 2 && o.to == s.leader {
				s.leader = 0 // it does not answer: ask the others
			}
		}
		if o.sent != 0 && (o.kind == weakRead || o.kind == weakWrite) {
			o.atLeader = true
			s.strengthen(o)
		}
		s.transmit(o)
	}
	if s.id != 0 {
		s.resendWeak(now - retry)
	}
}

// strengthen makes a weak read, which its replica cannot serve, a strong one.
func (s *Session) strengthen(o *op) {
	if o.kind != weakRead {
		return
	}
	o.kind = strongRead
	s.touching(o, func(w *weak) { o.seq = max(o.seq, w.seq) })
}
