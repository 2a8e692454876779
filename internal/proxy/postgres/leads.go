package postgres

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// leads reports whether what a client sends after the message of n bytes at p, without
// waiting for its answer, relies on it: the message begins a transaction or changes the
// session's settings, or runs something that does.
func (rt *router) leads(typ byte, n int, p []byte) bool {
	if n > len(p) || n < pgwire.HeaderLen {
		return false
	}
	c, body := rt.c, p[pgwire.HeaderLen:n]
	var sql string
	switch typ {
	case pgwire.ClientQuery:
		b, err := pgwire.ParseQuery(body)
		if err != nil {
			return false
		}
		sql = text(b)
	case pgwire.ClientParse:
		m, err := pgwire.ParseParse(body)
		if err != nil {
			return false
		}
		sql = text(m.SQL)
	case pgwire.ClientBind:
		_, at, ok := cstr(body, 0)
		if !ok {
			return false
		}
		name, _, ok := cstr(body, at)
		st := c.stmts.named(name)
		return ok && st != nil && leading(&st.info.Statement)
	default:
		return false
	}
	if len(sql) > maxScanned {
		return false
	}
	info := c.texts.scan(sql)
	s := info.Statement
	if typ == pgwire.ClientQuery && s.Count > 1 && endsOutside(sql) {
		s.Verb, s.Effects = sqlscan.VerbOther, s.Effects&^sqlscan.EffTx // it leaves no transaction open
	}
	return leading(&s)
}

// endsOutside reports whether a text of several statements, some of which control transactions,
// certainly ends outside of one if it succeeds.
func endsOutside(sql string) bool {
	if !sqlscan.Divisible(sql) {
		return false
	}
	outside := true
	for t := sqlscan.WordsOf(sql); !t.Done(); {
		verb, ok := t.Next()
		chain, atomic := false, false
		for last := verb; ok; {
			var w sqlscan.Word
			w, ok = t.Next()
			chain = chain || w.Is("chain") && last.Is("and") || w.Is("to") || w.Is("prepared")
			atomic = atomic || w.Is("atomic")
			last = w
		}
		switch {
		case atomic: // semicolons in a body end nothing
			return false
		case verb.Is("begin"), verb.Is("start"):
			outside = false
		case verb.Is("commit"), verb.Is("end"), verb.Is("rollback"), verb.Is("abort"):
			outside = outside || !chain
		case verb.Is("prepare"):
			return false // PREPARE TRANSACTION ends it, but leaves something behind
		}
	}
	return outside
}

// leadingEffects are the effects on the session that later statements rely on: another
// search_path, role, or meaning of a table's name, a lock, a channel. If a cursor or a prepared
// statement is missing, that is an error where it is used.
const leadingEffects = sqlscan.EffAdvisory | sqlscan.EffListen | sqlscan.EffSetUnknown | sqlscan.EffRole | sqlscan.EffSetConfig | sqlscan.EffTouch | sqlscan.EffTemp | sqlscan.EffDiscardAll

// leading is leads for a statement, or a text of several.
func leading(s *sqlscan.Statement) bool {
	switch {
	case s.Verb == sqlscan.VerbBegin, s.Count > 1 && s.Effects.Has(sqlscan.EffTx), s.Effects.Has(leadingEffects):
		return true
	case s.Effects.Has(sqlscan.EffSet):
		return slices.ContainsFunc(clauses(s), func(set sqlscan.SetClause) bool { return !set.Local })
	}
	return false
}
