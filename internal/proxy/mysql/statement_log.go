package mysql

import (
	"strconv"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// follow records what the logs need about the unit's statement; h are its hints.
func (u *unit) follow(c *client, h *sqlscan.Hints, sql string) {
	u.shape.From(h.File, h.Line)
	if h.Trace != "" {
		u.trace = c.l.srv.StatementLog.Spans.Trace(h.Trace)
	}
	if cfg := c.l.cfg; cfg.TellText && (cfg.SlowLog > 0 || u.trace != nil) {
		u.sql = core.ToldText(true, sql)
	}
}

// report logs a slow unit, and records the span of a traced one.
func (u *unit) report(r *sight.Run) {
	p := u.c.p
	st := sight.Statement{
		Engine: Engine, Server: p.l.srv.Upstream(), Database: p.key.database, User: p.key.user, Client: u.c.addr,
		Text: u.sql, Run: *r, Trace: u.trace,
	}
	if u.failed {
		st.Code = strconv.Itoa(int(u.code))
	}
	p.l.srv.StatementLog.Report(&st, u.shape, p.l.cfg.SlowLog)
}
