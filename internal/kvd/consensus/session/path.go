package session

// path decides, for each strong write, whether to try the fast path. It trusts
// measured times alone: the fast path halves the latency where round trips are
// long, and costs more messages, so on a local network it is the slower one.
// Every probe-th write takes the other way, so that a change is noticed.
type path struct {
	fast, slow float64 // moving averages of nanoseconds from issue to outcome
	count      uint64
}

const (
	probe    = 64
	weight   = 0.1 // of a new sample
	gain     = 0.9 // the fast path must take less than this share of the time
	longTrip = 1e6 // nanoseconds: from this round trip on, the fast path is tried first
)

// choose reports whether the write goes the fast way. The choice of a first
// try stands for the retries.
func (p *path) choose(s *Session, o *op) bool {
	switch s.cfg.Fast {
	case Always:
		return true
	case Never:
		return false
	case Auto:
	}
	if o.tries > 1 {
		return o.fast
	}
	p.count++
	better := p.fast < p.slow*gain
	if p.fast == 0 || p.slow == 0 {
		l := s.peer(s.leader)
		better = l != nil && l.rtt >= longTrip
	}
	if p.count%probe == 0 {
		return !better
	}
	return better
}

// took learns how long a write needed. One that tried the fast path and was
// answered by the commit counts for the fast path: it is what trying costs.
func (p *path) took(o *op, now int64) {
	if o.kind != strongWrite || o.tries != 1 {
		return
	}
	d := float64(now - o.issued)
	avg := &p.slow
	if o.fast {
		avg = &p.fast
	}
	if *avg == 0 {
		*avg = d
	} else {
		*avg += weight * (d - *avg)
	}
}
