package postgres

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// After a message that fails, the server skips the rest of the unit: a Parse or Close in it
// has no effect. A client may send several units at once. If the first unit defines a name or
// removes it, the meaning of that name in the second unit is unknown until the first has been
// answered:
//
//	Execute of an unknown portal, Parse s1, Sync | Bind s1 ...    no s1 to bind
//	Execute of an unknown portal, Parse s1, Sync | Parse s1 ...   s1 is free
//	Execute of an unknown portal, Close s1, Sync | EXECUTE s1     there is an s1
//	DEALLOCATE s1                                | Bind s1 ...    no s1, if it is the server's
//
// A message that depends on such a name waits. A unit that itself parses what it binds,
// as most do, waits for nothing.

// pendingNames has the names of a client that depend on units which have not been answered. A
// client's units are answered in the order in which they were sent.
type pendingNames struct {
	last    uint64            // number of the last unit that renames
	done    uint64            // ... of the last one that was answered
	renamed map[string]uint64 // names, and the last such unit of each
	unnamed uint64            // of the unnamed statement
}

// renames records that u defines a name, or removes it.
func (s *pendingNames) renames(u *unit, name string) {
	if u.named == 0 {
		s.last++
		u.named = s.last
	}
	if name == "" {
		s.unnamed = u.named
		return
	}
	if s.renamed == nil {
		s.renamed = make(map[string]uint64)
	}
	s.renamed[name] = u.named
}

// by is the last unanswered unit that renames a statement; 0 if there is none.
func (s *pendingNames) by(name string) uint64 {
	n := s.unnamed
	if name != "" {
		n = s.renamed[name]
	}
	if n <= s.done {
		return 0
	}
	return n
}

// settle records that u has been answered, or never will be.
func (s *pendingNames) settle(u *unit) {
	if u.named == 0 {
		return
	}
	s.done = max(s.done, u.named)
	if len(s.renamed) == 0 {
		return
	}
	for _, n := range u.parsed {
		if s.renamed[n.name] <= u.named {
			delete(s.renamed, n.name)
		}
	}
	for _, n := range u.lends {
		if s.renamed[n.name] <= u.named {
			delete(s.renamed, n.name)
		}
	}
	if s.renamed[u.frees] <= u.named {
		delete(s.renamed, u.frees)
	}
}

// answered is called when a unit has been answered.
func (ss *statements) answered(u *unit) {
	if u.failed {
		ss.unparse(u)
	}
	ss.settle(u)
}

// settleAll records that nothing is in flight.
func (s *pendingNames) settleAll() {
	s.done = s.last
	clear(s.renamed)
}

// hangs reports whether the linked client's next message must wait before it can name a
// statement.
func (ss *statements) hangs(name []byte) bool {
	if ss.done == ss.last || ss.c.state == stateCopying {
		return false // the server refuses the message while it receives rows
	}
	n := ss.by(text(cutName(name)))
	return n > 0 && (ss.c.cur == nil || n != ss.c.cur.named)
}

// nameHangs is hangs for a text that may name a statement.
func (ss *statements) nameHangs(info *sqlscan.Statement) bool {
	return bySQL(info, func(name string) bool { return ss.hangs([]byte(name)) })
}

// hangs is the same for a unit that is being collected.
func (u *unit) hangs(c *client, name []byte) bool {
	if c.stmts.done == c.stmts.last {
		return false
	}
	name = cutName(name)
	return c.stmts.by(text(name)) > 0 && !slices.ContainsFunc(u.parsed, func(n parsedName) bool { return n.name == text(name) })
}

// behind is the next renaming of a statement by a later unit of the client, after u, which
// was answered.
func (ss *statements) behind(u *unit, name string) *parsedName {
	c := ss.c
	b := c.link
	if b == nil {
		b = c.reader
	}
	var units []*unit
	if b != nil {
		units = b.Units()
	}
	for _, list := range [2][]*unit{units, c.again} {
		for _, v := range list {
			if v.c != c || v.named <= u.named {
				continue
			}
			if i := slices.IndexFunc(v.parsed, func(n parsedName) bool { return n.name == name }); i >= 0 {
				return &v.parsed[i]
			}
		}
	}
	return nil
}

// mayHaveFailed reports whether the server may be in a failed transaction when it comes to the
// next message: there it refuses every Parse except that of the transaction's end.
func (fw *forwarder) mayHaveFailed() bool {
	c := fw.c
	ahead := c.link.Depth()
	if c.cur != nil {
		ahead--
	}
	switch {
	case c.tx == pgwire.StatusFailed:
		return true
	case ahead == 0:
		return false
	}
	return c.tx != pgwire.StatusIdle || c.link.First(func(u *unit) bool { return u.effects.Has(sqlscan.EffTx) }) != nil
}

// endsTransaction reports whether the server executes a statement in a failed transaction.
func endsTransaction(verb sqlscan.Verb) bool {
	switch verb {
	case sqlscan.VerbCommit, sqlscan.VerbRollback, sqlscan.VerbRollbackTo, sqlscan.VerbPrepareTx:
		return true
	}
	return false
}

// addBarrier makes what the client sends after u wait for its answer.
func (fw *forwarder) addBarrier(u *unit) {
	if !u.barrier {
		u.barrier = true
		fw.barriers++
	}
}

// blocked reports whether a message must wait for the answers to the units in flight: to a
// statement that ends all prepared statements, so that names mean something else
// after it, or to one that resets settings, which weir then restores.
func (fw *forwarder) blocked(typ byte) bool {
	if fw.barriers == 0 {
		return false
	}
	switch typ {
	case pgwire.ClientQuery, pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute, pgwire.ClientFunction:
		u := fw.c.cur
		return u == nil || u.flushedTo > u.expAt && !u.failed
	}
	return false
}
