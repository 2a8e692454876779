package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// This file is the admin console: the commands that weir executes itself, with the names of
// PgBouncer's. The protocols decode commands and encode answers.

// adminDatabases are the database names of the console: weir's own, and the one that tools
// for PgBouncer use.
var adminDatabases = []string{"weir", "pgbouncer"}

// IsAdminDatabase reports whether a database is the console.
func IsAdminDatabase(name string) bool { return slices.Contains(adminDatabases, name) }

// An Answer is the console's answer to a command.
type Answer struct {
	// Tag is the command's name.
	Tag string
	// Table is what a command shows; nil for commands that do something.
	Table *sight.Table
	// Notice is a warning about the command, such as of a name that may be mistyped, or "".
	Notice string
	// Then, unless it is nil, must be called when the answer has been sent.
	Then func()
}

// A Refusal is the reason why the console does not execute a command.
type Refusal struct {
	Message, Hint string
	Unknown       bool // there is no such command
	// Code is the SQLSTATE. The default depends on Unknown.
	Code string
}

func (r *Refusal) Error() string { return r.Message }

func refuse(format string, args ...any) error { return &Refusal{Message: fmt.Sprintf(format, args...)} }

// A Side is what the console needs from one side of the proxy.
type Side interface {
	// Upstream is the address of the database server, and Database the database there
	// that weir's own user connects to, or "".
	Upstream() string
	// Hosts are the hosts that connections may go to.
	Hosts() upstream.Config
	Database() string
	// LetGo closes idle connections to the server that belong to no pool.
	LetGo()
	// Options are the current settings that both sides have; Settings are those of this side
	// alone.
	Options() *session.Options
	Settings() []Setting
	// Show answers SHOW what if only this side has it; ok is false if it does not.
	Show(ctx context.Context, what string) (t sight.Table, ok bool)
	// Shows lists what Show knows.
	Shows() []string
}

// A Setting is one row of SHOW CONFIG.
type Setting struct {
	Key            string
	Value, Default any
	// Fixed settings cannot be changed by a reload.
	Fixed bool
}

// Command executes one command of the console, which may take as long as ctx
// allows: PAUSE waits for transactions. Its error is a *Refusal, or says that the
// state could not be collected.
func (s *Server[L]) Command(ctx context.Context, text string) (Answer, error) {
	words := splitCommand(text)
	if len(words) == 0 {
		return Answer{}, nil
	}
	verb := strings.ToUpper(words[0])
	if verb == "HELP" {
		verb, words = "SHOW", []string{"SHOW", "HELP"}
	}
	if verb == "SHOW" {
		what := "HELP"
		if len(words) > 1 {
			what = strings.ToUpper(strings.Join(words[1:], " "))
		}
		ctx, cancel := context.WithTimeout(ctx, showPatience)
		defer cancel()
		t, err := s.show(ctx, what)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Tag: verb, Table: &t}, nil
	}
	return s.Control.run(ctx, verb, words[1:], text)
}

// An Operator is the client that gives commands at the console.
type Operator struct{ User, Client string }

// Audited writes a command to the audit log, if it does something or was refused.
func (who Operator) Audited(audit *sight.Audit, engine, text string, a Answer, err error) {
	if a.Table == nil && (a.Tag != "" || err != nil) {
		audit.Command(engine, who.User, who.Client, text, err)
	}
}

// showPatience bounds the time for collecting what is shown.
const showPatience = 5 * time.Second

func unknownCommand(text string) error {
	return &Refusal{Message: "unknown command of the weir console: " + text, Hint: "SHOW HELP lists the commands.", Unknown: true}
}

// splitCommand splits a command into words, without its semicolon. Quotes keep a
// name with spaces together, with its case.
func splitCommand(text string) (words []string) {
	for text = strings.TrimSpace(text); text != "" && text != ";"; text = strings.TrimSpace(text) {
		if q := text[0]; q == '"' || q == '\'' || q == '`' {
			if end := strings.IndexByte(text[1:], q); end >= 0 {
				words = append(words, text[1:1+end])
				text = text[end+2:]
				continue
			}
		}
		end := strings.IndexAny(text, " \t\r\n;")
		switch {
		case end < 0:
			end = len(text)
		case end == 0: // a semicolon
			text = text[1:]
			continue
		}
		words = append(words, text[:end])
		text = text[end:]
	}
	return words
}

// show answers SHOW.
func (s *Server[L]) show(ctx context.Context, what string) (sight.Table, error) {
	fromSnapshot := func(table func(*sight.Snapshot) sight.Table) (sight.Table, error) {
		snap, err := s.Snapshot(ctx)
		if err != nil {
			return sight.Table{}, fmt.Errorf("collect state: %w", err)
		}
		return table(&snap), nil
	}
	o := s.side.Options()
	switch what {
	case "POOLS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table { return snap.PoolsTable(poolMode(o.Mode)) })
	case "DATABASES":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			for _, name := range adminDatabases {
				snap.AddDatabase(sight.DatabaseStatus{Name: name})
			}
			host, port := hostPort(s.Host())
			return snap.DatabasesTable(host, port, poolMode(o.Mode), func(name string) sight.DatabaseLimits { return databaseLimits(o, name) })
		})
	case "USERS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			return snap.UsersTable(func(name string) sight.UserLimits { return userLimits(o, name) })
		})
	case "LISTS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			return snap.ListsTable(snap.Lists(max(0, int(s.Sessions.Load()-s.Consoles.Load())-snap.Clients)))
		})
	case "STATS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			now := snap.Totals()
			return sight.StatsTable(sight.CountNames, sight.Counts(now), sight.Counts(s.stats.averages(now, snap.Uptime)))
		})
	case "STATS_TOTALS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			return sight.CountsTable(sight.CountNames, sight.Counts(snap.Totals()))
		})
	case "STATS_AVERAGES":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			return sight.CountsTable(sight.CountNames, sight.Counts(s.stats.averages(snap.Totals(), snap.Uptime)))
		})
	case "TOTALS":
		return fromSnapshot(func(snap *sight.Snapshot) sight.Table {
			now := snap.Totals()
			return sight.TotalsTable(sight.CountNames, sight.Counts(now), sight.Counts(s.stats.averages(now, snap.Uptime)))
		})
	case "POOL_STATS":
		return fromSnapshot((*sight.Snapshot).PoolStatsTable)
	case "STATE":
		return s.stateTable(), nil
	case "BATCHES":
		return fromSnapshot((*sight.Snapshot).BatchesTable)
	case "STATEMENTS":
		return fromSnapshot((*sight.Snapshot).StatementsTable)
	case "PINS":
		return fromSnapshot((*sight.Snapshot).PinsTable)
	case "CACHE":
		return fromSnapshot((*sight.Snapshot).CacheTable)
	case "CLIENTS":
		return s.clientsTable(ctx)
	case "SERVERS":
		return s.serversTable(ctx)
	case "CONFIG":
		return s.configTable(), nil
	case "HOSTS":
		return s.hostTable(), nil
	case "VERSION":
		return sight.Table{Cols: []string{"version"}, Rows: [][]string{{"weir " + sight.Version}}}, nil
	case "HELP":
		t := sight.Table{Cols: []string{"command"}}
		all := append(s.side.Shows(), "BATCHES", "CACHE", "CLIENTS", "CONFIG", "DATABASES", "HOSTS", "LISTS", "PINS", "POOLS", "POOL_STATS", "SERVERS", "STATE",
			"STATEMENTS", "STATS", "STATS_AVERAGES", "STATS_TOTALS", "TOTALS", "USERS", "VERSION")
		slices.Sort(all)
		for _, c := range all {
			t.Add("SHOW " + c)
		}
		for _, c := range commands {
			t.Add(c)
		}
		return t, nil
	}
	if t, ok := s.side.Show(ctx, what); ok {
		return t, nil
	}
	return sight.Table{}, unknownCommand("SHOW " + what)
}

// poolMode is the mode in PgBouncer's words. In mode auto a client has a backend for
// a transaction, unless its session is pinned.
func poolMode(m session.Mode) string {
	if m == session.ModeAuto {
		return string(session.ModeTransaction)
	}
	return string(m)
}

// Averages are the values of SHOW STATS_AVERAGES.
func Averages[L EventLoop](s *Server[L], snap *sight.Snapshot) map[string]sight.Totals {
	return s.stats.averages(snap.Totals(), snap.Uptime)
}

// stateTable answers SHOW STATE.
func (s *Server[L]) stateTable() sight.Table {
	_, all := s.gates.list()
	t := sight.Table{Cols: []string{"key", "value"}}
	for _, kv := range []struct {
		key string
		on  bool
	}{{"active", !all}, {"paused", all && !s.Suspended()}, {"suspended", s.Suspended()}} {
		t.Add(kv.key, map[bool]string{true: "yes", false: "no"}[kv.on])
	}
	return t
}

// onLoops calls f on each loop in turn, except loops that have ended.
func (s *Server[L]) onLoops(ctx context.Context, f func(l L)) error {
	for _, l := range s.Loops {
		if err := l.Call(ctx, func() { f(l) }); err != nil && !errors.Is(err, netloop.ErrStopped) {
			return err
		}
	}
	return nil
}

// ClientInfo describes a client.
type ClientInfo struct {
	ID             uint32
	Database, User string // of its pool
	Login          string // the name that it logged in with, if that is not User
	Addr, App      string
	State          string // what it is doing, in weir's words
	Pins           string // why it keeps its backend
	Link           uint32 // the server's number of its backend, or 0
	Prepared       int    // statements
	Since          time.Duration
	LastUsed       time.Duration // when it was last answered, or logged in
	Waiting        time.Duration // since when it waits for a backend, or 0

	Statements, Grouped, Errors uint64
	Received, Sent              uint64 // bytes
	Active                      bool   // something of it is in flight or waits
	Pinned                      bool
}

// ServerInfo describes a backend.
type ServerInfo struct {
	ID         uint32 // the server's number of the connection
	Number     uint32 // weir's own number; 0: there is only the server's
	Address    string // where it is connected to
	Mode       string
	Free       bool
	Retired    bool // it closes when it is free
	Beside     bool // it is not one of the pool's backends
	InFlight   int
	Prepared   int    // statements
	Settings   int    // session settings that differ from those after the login
	Client     uint32 // the client that owns it, or 0
	App        string
	Born, Last time.Duration // when it was opened, and when it last answered
}

// clientState is a client's state in PgBouncer's words.
func (c *ClientInfo) clientState() string {
	switch {
	case c.Waiting > 0:
		return "waiting"
	case c.Active || c.Link != 0:
		return "active"
	}
	return "idle"
}

// clientsTable answers SHOW CLIENTS. The columns from address on are weir's own.
func (s *Server[L]) clientsTable(ctx context.Context) (sight.Table, error) {
	t := sight.Table{Cols: []string{
		"type", "user", "database", "replication", "state", "addr", "port", "local_addr", "local_port", "connect_time", "request_time",
		"wait", "wait_us", "close_needed", "ptr", "link", "remote_pid", "tls", "application_name", "prepared_statements", "id",
		"address", "activity", "pins", "statements", "grouped", "errors", "connected_s",
	}}
	localHost, localPort := hostPort(s.Addr().String())
	err := s.onLoops(ctx, func(l L) {
		now := l.Clock()
		for c := range l.EachClient {
			host, port := hostPort(c.Addr)
			var wait time.Duration
			if c.Waiting > 0 {
				wait = now - c.Waiting
			}
			t.Add("C", cmp.Or(c.Login, c.User), c.Database, "none", c.clientState(), host, port, localHost, localPort, s.clockTime(c.Since), s.clockTime(c.LastUsed),
				int(wait.Seconds()), wait.Microseconds()%1e6, 0, c.ID, blank(c.Link), 0, "", c.App, c.Prepared, c.ID,
				c.Addr, c.State, c.Pins, c.Statements, c.Grouped, c.Errors, int((now - c.Since).Seconds()))
		}
	})
	return t, err
}

// serversTable answers SHOW SERVERS. The columns from mode on are weir's own.
func (s *Server[L]) serversTable(ctx context.Context) (sight.Table, error) {
	t := sight.Table{Cols: []string{
		"type", "user", "database", "replication", "state", "addr", "port", "local_addr", "local_port", "connect_time", "request_time",
		"wait", "wait_us", "close_needed", "ptr", "link", "remote_pid", "tls", "application_name", "prepared_statements", "id",
		"mode", "in_flight", "settings", "age_s",
	}}
	err := s.onLoops(ctx, func(l L) {
		now := l.Clock()
		l.EachServer(func(database, user string, b *ServerInfo) {
			state, closing := "active", 0
			if b.Free {
				state = "idle"
			}
			if b.Retired {
				closing = 1
			}
			host, port := hostPort(b.Address)
			t.Add("S", user, database, "none", state, host, port, "", 0, s.clockTime(b.Born), s.clockTime(b.Last),
				0, 0, closing, b.ID, blank(b.Client), b.ID, "", b.App, b.Prepared, cmp.Or(b.Number, b.ID),
				b.Mode, b.InFlight, b.Settings, int((now - b.Born).Seconds()))
		})
	})
	return t, err
}

// blank is a number as text, or "" for 0.
func blank(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// hostPort splits an address; a Unix socket's host is "unix", as in PgBouncer.
func hostPort(address string) (host, port string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "unix", "0"
	}
	return host, port
}

// clockTime converts a time of the loops' clock to the time of day.
func (s *Server[L]) clockTime(at time.Duration) string {
	return s.began.Add(at).UTC().Format("2006-01-02 15:04:05 UTC")
}
