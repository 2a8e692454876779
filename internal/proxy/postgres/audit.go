package postgres

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
)

// This file verifies the proof: from time to time weir checks a connection that is about to
// serve a client for state that weir did not put there. There should
// never be any.

// auditEvery is how often one free backend of a pool is checked.
const auditEvery = 5 * time.Second

// auditSQL returns the settings that the session has changed, and one row for
// each other kind of state.
var auditSQL = own(`SELECT 'setting', pg_catalog.lower(name) FROM pg_catalog.pg_settings WHERE source = 'session'
UNION ALL SELECT 'temporary objects', '' FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.pg_my_temp_schema()
UNION ALL SELECT 'channel', c FROM pg_catalog.pg_listening_channels() c
UNION ALL SELECT 'advisory lock', objid::pg_catalog.text FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()
UNION ALL SELECT 'cursor', name FROM pg_catalog.pg_cursors WHERE is_holdable
UNION ALL SELECT 'prepared statement', name FROM pg_catalog.pg_prepared_statements WHERE from_sql
UNION ALL SELECT 'role', pg_catalog.current_setting('role') WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) v
 WHERE v ~~ 'role=%' AND s.setrole = ANY (ARRAY[0, pg_catalog.quote_ident(session_user)::pg_catalog.regrole::pg_catalog.oid]))`)

// audits are the checks of a pool's free backends.
type audits struct {
	p  *pool
	at time.Duration // when a free backend is checked next
}

// next checks the backend that has been free for longest, unless it was not
// used since its last check.
func (a *audits) next() {
	p := a.p
	if p.l.Now < a.at || len(p.Free) == 0 || len(p.Excl) > 0 || p.l.cfg.Mode != session.ModeAuto {
		return
	}
	a.at = p.l.Now + auditEvery
	at := slices.IndexFunc(p.Free, func(b *backend) bool { return b.auditedAt < b.Answered })
	if at < 0 {
		return
	}
	b := p.Pick(at)
	b.Mode = core.ModeOwn
	b.ask(auditSQL, func(u *unit) {
		b.auditedAt = p.l.Now
		if u.err != nil {
			return
		}
		if state := stray(b.set, p.key.role, u.rows); state != "" {
			p.Stats.Strays++
			b.Doomed = true
			p.l.srv.Log.Error("a server connection held state that should not be there; closed", "pool", p.key.String(), "pid", b.pid, "state", state)
		}
	}).columns = 2
}

// notStray are settings that weir sets apart from what it replays, and those of one
// transaction, which the server continues to report as set by the session.
var notStray = []string{"application_name", "transaction_isolation", "transaction_read_only", "transaction_deferrable"}

// stray names the first state that weir did not put on a backend with the given settings, and
// the role of its startup message; "" if there is none. Values that a reload or the role's
// defaults have set have another source.
func stray(set *session.Set, role string, rows [][][]byte) string {
	for _, row := range rows {
		kind, name := string(row[0]), string(row[1])
		if kind == "setting" {
			if _, ours := set.Get(name); ours || slices.Contains(notStray, name) {
				continue
			}
		}
		if kind == "role" && name == cmp.Or(role, "none") {
			continue
		}
		return strings.TrimSpace(kind + " " + name)
	}
	return ""
}
