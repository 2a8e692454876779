package postgres

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// leads reports whether what a client sends behind the message of n bytes at p, without
// waiting for its answer, relies on it: the message begins a transaction or changes the
// session's settings, or runs what does.
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
	return leading(&info.Statement)
}

// leadingEffects are those for the session: another search_path, role, or meaning of a
// table's name, a lock, a channel that is listened to. That a cursor or a prepared statement
// is missing shows where it is used.
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
