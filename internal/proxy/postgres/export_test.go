package postgres

import (
	"bytes"
	"context"
	"net"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// Scans is how many texts of clients were read.
func (s *Server) Scans(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.scans.n })
	}
	return n
}

// LongestRead is the length of the longest text that a loop itself has read.
func (s *Server) LongestRead(ctx context.Context) (n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n = max(n, l.scans.longest) })
	}
	return n
}

// CancelUnread cancels the statement of a client, if its text is being read away from the loop,
// and reports whether it was.
func (s *Server) CancelUnread(ctx context.Context, id uint32) (did bool) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			if c := l.Clients[id]; c != nil && c.texts.long != nil && !c.texts.long.done {
				did = true
				c.cancel(func() {})
			}
		})
	}
	return did
}

// Donate gives a pool a connection that a login opened to e, and reports whether the
// pool has it then.
func (s *Server) Donate(ctx context.Context, database, user string, e upstream.Endpoint) (kept bool, err error) {
	key := poolKey{database: database, user: user}
	conn, err := s.dialBackend(ctx, key)
	if err != nil {
		return false, err
	}
	conn.endpoint = e
	err = s.Loops[0].Call(ctx, func() {
		p := s.Loops[0].pool(key)
		before := len(p.Backends)
		p.Adopt(conn)
		kept = len(p.Backends) > before
	})
	return kept, err
}

// TableSQL asks what is known of a table.
func TableSQL(name string) string { return tableSQL(name) }

// MetOnLoops is how many logins came to their good end on an event loop alone.
func (s *Server) MetOnLoops(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.met })
	}
	return n
}

// Restless has the channels of clients that listen move after each statement.
func (c *Config) Restless() { c.restless = true }

// ShareKnown has a proxy take from known what the server's functions do, and what its databases
// have.
func (c *Config) ShareKnown(known *catalogue.Known) { c.known = known }

// Lookups are connections on which users are looked up.
type Lookups = core.Lookups[*lookup]

// NewLookups returns none.
func NewLookups() *Lookups { return core.NewLookups((*lookup).close) }

// ShareLookups has a proxy look up users on connections of others, and leave its own to them.
func (c *Config) ShareLookups(idle *Lookups) { c.lookups = idle }

// AuditSoon has each pool check a free connection at the next tick, and returns the number of
// connections that are not checked since their last answer, without those of clients.
func (s *Server) AuditSoon(ctx context.Context) (left int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, p := range l.PoolList {
				p.audits.at = 0
				for _, b := range p.Backends {
					if b.Mode == core.ModeOwn || b.Mode == core.ModeFree && b.auditedAt < b.Answered {
						left++
					}
				}
			}
		})
	}
	return left
}

// Dial connects as to the server.
func (s *Server) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.cfg().Postgres.Dial(ctx, "tcp", address)
}

// ReadTimeout reads a setting in milliseconds.
func ReadTimeout(value string) (time.Duration, bool) { return readTimeout(value) }

// Hold keeps the loops from their work until release is called.
func (s *Server) Hold() (release func()) {
	free := make(chan struct{})
	for _, l := range s.Loops {
		held := make(chan struct{})
		if l.Post(func() { close(held); <-free }) {
			<-held
		}
	}
	return func() { close(free) }
}

// Questions are texts of weir's own, of a table where they are about one, but for those that have
// parameters.
func Questions(table string) map[string]string {
	r := new(catalogue.Known).Reader(catalogue.Database{}, nil)
	all := map[string]string{
		"facts": factsSQL, "superuser's facts": superuserFactsSQL, "audit": auditSQL, "state": stateSQL, "setting": "SELECT " + maySetSQL("work_mem"), "asked": askedSQL, "hub": hubSetup, "role": roleSQL,
		"locks": locksSQL, "channels": channelsSQL, "table": tableSQL(table), "series": serialSQL(table), "builtin": r.Next(),
		"permission": (&changeScope{database: "d", copies: true}).permission(),
		"reset":      setIfReset(session.Setting{Name: "work_mem", Value: "5MB", Literal: true}) + setIfReset(session.Setting{Name: "a.b", Value: "c", Literal: true}),
	}
	answer := func(rows ...string) {
		var list [][][]byte
		for _, columns := range rows {
			list = append(list, bytes.Split([]byte(columns), []byte(" ")))
		}
		r.Feed(list)
	}
	answer("1 set_config", "2 nextval")
	all["scan"] = r.Next()
	answer("tree f 1247 f 1", "tree t 23 t 1", "tree o 96 o 1", "tree r 1259 r 1", "tree w 1259 w 1")
	all["edges"] = r.Next()
	return all
}

// Guards are those texts that have parameters.
func Guards() []string {
	return []string{typesGuardSQL, columnsGuardSQL, domainsGuardSQL, domainsColumnsGuardSQL, serialGuardSQL}
}
