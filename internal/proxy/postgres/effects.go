package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file follows what a linked client's statements do to its session: settings,
// pins, sequences. Effects are recorded when a statement is sent, and count once its unit
// has succeeded.

// clauses are the SET and RESET of a text.
func clauses(info *sqlscan.Statement) []sqlscan.SetClause {
	if info.Count > 1 {
		return info.Sets
	}
	return []sqlscan.SetClause{info.Set}
}

// dropSequences makes sure that currval and lastval cannot return what another
// session left on the backend that the client has got. If the client's own last
// value is not here either, the server will report that it is not defined, which is
// an error but never a wrong number; from then on weir keeps this pool's writing
// clients on their backends.
func (c *client) dropSequences() {
	b := c.link
	if !b.mixed && (b.lastWriter == nil || b.lastWriter == c) {
		return
	}
	b.lastWriter, b.mixed = nil, false
	b.ask("DISCARD SEQUENCES", func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
}

// forgetSequences applies DISCARD SEQUENCES, which b has executed, to the client's
// other backends: they execute it before they are used again.
func (c *client) forgetSequences(done *backend) {
	for _, b := range c.p.Backends {
		if b != done && b.lastWriter == c {
			b.lastWriter, b.mixed = nil, true
		}
	}
}

// resets reports whether a clause goes back to a session's own default.
func resets(s *sqlscan.SetClause) bool {
	return s.All || s.Reset || s.Default || strings.EqualFold(s.Value, "default")
}
