package postgres

import (
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A committed group may wait for a synchronous standby, for as long as there is
// none. If such a wait is cancelled, the server answers with success and a warning; but a
// cancel request would end the wait of the whole group. So if a client
// cancels its member of a group, weir itself answers it, in the server's words, once the server
// has confirmed that the group only waits for a standby. Then the group's writes are on the
// primary's disk. The other members continue to wait. A write that runs alone is cancelled by
// the server.
//
//	solo lane  [member][member][marker]   only the marker is not answered: its commit waits
//	rows lane  [INSERT, guard]            no answer comes before the commit, which waits:
//	                                      each member has stored its row, but the output of
//	                                      its RETURNING is unknown
//
// A client may cancel before its group waits. weir asks the server again while the run is in
// flight.

// freeOfStandby answers the client's member of a group as soon as the group waits for a
// standby. It reports whether the client has such a member.
func (c *client) freeOfStandby() bool {
	for _, b := range c.p.Backends {
		r := b.run()
		if r == nil {
			continue
		}
		if u := r.member(b, c); u != nil {
			if !slices.Contains(r.cancelled, u) {
				r.cancelled = append(r.cancelled, u)
			}
			c.responder.cancelled = u // it is not sent again, either
			r.askOfStandby(b)
			return true
		}
	}
	return false
}

// run is the group in flight on the backend, nil if there is none.
func (b *backend) run() *run {
	if b.lane == nil {
		return nil
	}
	return b.lane.Runs[b]
}

// member is the client's part in a run on b from which it can be freed; nil if there is none.
func (r *run) member(b *backend, c *client) *unit {
	mine := func(u *unit) bool { return u.kind == unitClient && u.c == c && !u.failed }
	units := r.units
	if r.rows {
		units = b.Units() // those in r.units may have been answered
	}
	for _, u := range units {
		switch {
		case u.kind == unitRows:
			if m := u.grp.member(mine); m != nil {
				return m
			}
		case mine(u):
			return u
		}
	}
	return nil
}

// askOfStandby asks the server whether the run on b waits for a standby, unless that question or
// something else is known to be in flight.
func (r *run) askOfStandby(b *backend) {
	head := b.Head()
	if b.Depth() == 1 && head.kind == unitClient && b.Cancels == 0 && slices.Contains(r.cancelled, head) {
		r.cancelled = slices.DeleteFunc(r.cancelled, func(u *unit) bool { return u == head })
		b.cancel(head, func() {})
		return
	}
	if r.asks || !r.alone(b) {
		return
	}
	r.asks = true
	sql := own(fmt.Sprintf("SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep'", b.pid))
	b.p.askIn(b.p.settings.Empty(), sql, 1, func(q *unit) {
		r.asks = false
		if len(q.rows) == 0 || b.run() != r || b.Head() != head || !r.alone(b) {
			return // Tick asks again if the run is still in flight
		}
		units := r.units
		if head.kind == unitRows {
			units = []*unit{head}
		}
		r.cancelled = slices.DeleteFunc(r.cancelled, func(u *unit) bool { return free(units, u) })
	})
}

// alone reports whether only one commit of the run is in flight on b. If more were, the
// server could wait for a later group, while this one has failed and its error
// was not read yet.
func (r *run) alone(b *backend) bool {
	if b.Depth() != 1 {
		return false
	}
	kind := b.Head().kind
	return kind == unitRows || kind == unitHidden && !r.rows && r.ln.key.async()
}

// checkStandbys asks again for members whose clients have cancelled them.
func checkStandbys(p *pool) {
	for _, b := range p.Backends {
		if r := b.run(); r != nil && len(r.cancelled) > 0 {
			r.askOfStandby(b)
		}
	}
}

// free answers u, if it is among units, or a member of one of them whose outcome is known.
func free(units []*unit, u *unit) bool {
	for i, v := range units {
		switch {
		case v.kind == unitRows:
			if v.grp.free(u) {
				return true
			}
		case v == u && u.failed:
			return true // answered with the others
		case v == u:
			units[i] = new(unit) // without a client
			if c := u.c; c != nil && !c.s.Closed {
				c.s.Write(notReplicated)
				c.s.Write(u.resp)
				c.responder.grouped(u)
			}
			return true
		}
	}
	return false
}

// member is the member for which is is true, nil if there is none.
func (m *members) member(is func(u *unit) bool) *unit {
	if i := slices.IndexFunc(m.units, is); i >= 0 && !m.settled {
		return m.units[i]
	}
	return nil
}

// leaves calls answer for u if it is a member, and removes it.
func (m *members) leaves(u *unit, answer func(i int)) bool {
	i := slices.Index(m.units, u)
	if i < 0 || m.settled {
		return false
	}
	if c := u.c; c != nil && !c.s.Closed {
		c.s.Write(notReplicated)
		answer(i)
	}
	m.units[i] = new(unit) // without a client
	return true
}

// free implements txnGroup.
func (g *series) free(u *unit) bool {
	return g.err == nil && g.at == len(g.units) && g.leaves(u, func(int) { g.answer(u) })
}

// free implements txnGroup.
func (g *group) free(u *unit) bool {
	if g.err != nil || g.mismatch || g.ln.rows.insert.Returning && len(g.ends) != len(g.units) {
		return false
	}
	return g.leaves(u, func(i int) { g.answer(i, u) })
}

// notReplicated is the server's warning when a wait for a standby is cancelled.
var notReplicated = pgwire.AppendNotice(nil, &pgwire.Error{
	Severity: "WARNING", SeverityRaw: "WARNING", Code: "01000",
	Message: "canceling wait for synchronous replication due to user request",
	Detail:  "The transaction has already committed locally, but might not have been replicated to the standby.",
})
