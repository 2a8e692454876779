package session

// path decides for each strong write whether to try the fast path. It relies on measured times
// only: the fast path halves the latency where round trips are long, but it needs more
// messages, so that it is slower on a local network. Every probe-th write takes the other path,
// to notice changes.
type path struct {
	fast, slow float64 // moving averages of the time from issue to outcome, in nanoseconds
	count      uint64
}

const (
	probe    = 64
	weight   = 0.1 // of a new sample
	gain     = 0.9 // the fast path must take less than this share of the time
	longTrip = 1e6 // in nanoseconds: from this round trip on, the fast path is tried first
)

// choose reports whether a write takes the fast path. Retries keep the choice of the first try.
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

// took records how long a write took. A write that tried the fast path and was answered by the
// commit counts for the fast path, because that is the cost of trying.
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
