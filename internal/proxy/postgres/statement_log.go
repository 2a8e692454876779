package postgres

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// follow notes what is to be told of a statement of the unit: h are its hints.
func (u *unit) follow(c *client, info *catalogue.Reading, sql string) {
	u.shape.From(info.Hints.File, info.Hints.Line)
	if t := info.Hints.Trace; t != "" {
		u.trace = c.l.srv.StatementLog.Spans.Trace(t)
	}
	if cfg := c.l.cfg; cfg.TellText && (cfg.SlowLog > 0 || u.trace != nil) {
		u.sql = core.ToldText(true, sql)
	}
}

// report tells of a unit that is slow or traced.
func (u *unit) report(r *sight.Run) {
	p := u.c.p
	c := u.c
	st := sight.Statement{
		Engine: Engine, Server: p.l.srv.Upstream(), Database: p.key.database, User: p.key.user, Client: c.addr, App: c.app,
		Text: u.sql, Run: *r, Trace: u.trace,
	}
	if u.err != nil {
		st.Code = u.err.Code
	}
	p.l.srv.StatementLog.Report(&st, u.shape, p.l.cfg.SlowLog)
}
