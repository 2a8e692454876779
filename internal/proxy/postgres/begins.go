package postgres

import (
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// begins reports whether the message of n bytes at p begins a transaction, or runs what
// does; with several statements in a text, whether one of them has to do with that.
func (rt *router) begins(typ byte, n int, p []byte) bool {
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
		return ok && st != nil && beginsTx(&st.info.Statement)
	default:
		return false
	}
	if len(sql) > maxScanned {
		return false
	}
	info := c.texts.scan(sql)
	return beginsTx(&info.Statement)
}

func beginsTx(s *sqlscan.Statement) bool {
	return s.Verb == sqlscan.VerbBegin || s.Count > 1 && s.Effects.Has(sqlscan.EffTx)
}
