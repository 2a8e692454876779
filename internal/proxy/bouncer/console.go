package bouncer

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A console is a client of database pgbouncer.
type console struct {
	d     *authenticator
	conn  net.Conn
	id    uint32
	user  string
	addr  string
	app   string
	admin bool // it may change things, not only look
	since time.Time
}

// openConsole makes the client's session a console session.
func (l *login) openConsole(ctx context.Context, entry *postgres.AcceptedLogin) error {
	c := &console{d: l.d, conn: l.v.Conn, id: l.d.NewID(), user: l.user, addr: l.v.Addr.String(), app: l.startup.app, admin: l.admin, since: time.Now()}
	if l.own() && l.counted == nil {
		if err := l.count(); err != nil {
			return err
		}
		if _, err := pgwire.Authenticate(ctx, l.v.Conn, l.user, pgwire.AuthTrust, pgwire.Secret{}); err != nil {
			return &toldError{err}
		}
	}
	l.d.b.consoleLogins.Add(1)
	entry.Serve = func(context.Context) error {
		l.d.enterConsole(c)
		defer l.d.leaveConsole(c)
		return l.d.b.srv.Way.Serve(l.v.Conn, serverVersion, c.answer)
	}
	return nil
}

func (d *authenticator) enterConsole(c *console) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.consoles[c] = struct{}{}
}

func (d *authenticator) leaveConsole(c *console) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.consoles, c)
}

// hungUp reports whether the client has left, which the goroutine that serves it may not
// have seen yet.
func (c *console) hungUp() bool {
	sc, ok := c.conn.(syscall.Conn)
	if !ok {
		return false // TLS
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	var next [1]byte
	gone := false
	if err := raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), next[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && (n == 0 || next[0] == pgwire.ClientTerminate)
	}); err != nil {
		return true
	}
	return gone
}

// no is the refusal of a command, in PgBouncer's words.
func no(text string) error {
	return &core.Refusal{Message: text, Code: pgwire.CodeProtocolViolation}
}

var (
	errAdmin    = no("admin access needed")
	errReload   = &core.Refusal{Message: "RELOAD failed, see logs for additional details", Code: "F0000"}
	errShutdown = no("pooler is shutting down")
)

// answer runs one command.
func (c *console) answer(ctx context.Context, sql string) (core.Answer, error) {
	c.d.b.consoleQueries.Add(1)
	verb, arg := splitVerb(sql)
	var err error
	a := core.Answer{Tag: verb}
	switch verb {
	case "":
		return core.Answer{}, nil
	case "SHOW":
		t, err := c.show(ctx, arg)
		if err != nil {
			return core.Answer{}, err
		}
		a.Table = &t
		return a, nil
	case "SET":
		a.Tag, err = c.set(arg)
	case "RELOAD", "PAUSE", "RESUME", "SUSPEND", "RECONNECT", "WAIT_CLOSE", "KILL", "KILL_CLIENT", "DISABLE", "ENABLE", "SHUTDOWN":
		if !c.admin {
			return core.Answer{}, errAdmin
		}
		return c.control(ctx, verb, arg)
	default:
		err = no("invalid command '" + strings.TrimSpace(sql) + "', use SHOW HELP;")
	}
	return a, err
}

// splitVerb splits a command after its first word, without quotes and semicolon.
func splitVerb(sql string) (verb, arg string) {
	sql = strings.TrimSpace(strings.TrimRight(strings.TrimSpace(sql), ";"))
	verb, arg, _ = strings.Cut(sql, " ")
	return strings.ToUpper(verb), unquote(strings.TrimSpace(arg))
}

func unquote(s string) string {
	if n := len(s); n > 1 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return strings.ReplaceAll(s[1:n-1], s[:1]+s[:1], s[:1])
	}
	return s
}

// fakes are settings that clients set on any server, and that have no effect here.
var fakes = [][2]string{
	{"client_encoding", "UTF-8"},
	{"default_transaction_isolation", "read committed"},
	{"standard_conforming_strings", "on"},
	{"datestyle", "ISO"},
	{"timezone", "GMT"},
}

// set runs SET key = value.
func (c *console) set(arg string) (tag string, err error) {
	key, value, ok := strings.Cut(arg, "=")
	if !ok {
		if key, value, ok = strings.Cut(arg, " "); ok {
			value = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(value), "to "), "TO ")
		}
	}
	key, value = strings.TrimSpace(key), unquote(strings.TrimSpace(value))
	if !ok || key == "" {
		return "", no("invalid command 'SET " + arg + "', use SHOW HELP;")
	}
	if slices.ContainsFunc(fakes, func(f [2]string) bool { return strings.EqualFold(f[0], key) }) {
		return "SET", nil
	}
	if !c.admin {
		return "", errAdmin
	}
	if err := c.d.b.set(key, value); err != nil {
		return "", no("SET failed: " + err.Error())
	}
	return "SET", nil
}

// control runs a command that is neither SHOW nor SET.
func (c *console) control(ctx context.Context, verb, arg string) (core.Answer, error) {
	b := c.d.b
	done := core.Answer{Tag: verb}
	b.log.Info(strings.TrimSpace(verb+" "+arg) + " command issued")
	switch verb {
	case "RELOAD":
		if b.Reload() != nil {
			return core.Answer{}, errReload
		}
		return done, nil
	case "SHUTDOWN":
		how := core.ShutdownMode(strings.ToUpper(arg))
		switch how {
		case core.ShutdownNow, core.ShutdownAfterServers, core.ShutdownAfterClients:
		default:
			return core.Answer{}, no("invalid command 'SHUTDOWN " + arg + "', use SHOW HELP;")
		}
		if how == core.ShutdownNow {
			done.Then = func() { b.End(how) }
		} else {
			b.End(how)
		}
		return done, nil
	case "KILL_CLIENT":
		if _, err := strconv.ParseUint(arg, 10, 64); err != nil {
			return core.Answer{}, no("invalid client pointer supplied")
		}
		if _, err := b.srv.Command(ctx, "KILL_CLIENT "+arg); err != nil {
			return core.Answer{}, no("client not found")
		}
		return done, nil
	case "SUSPEND", "PAUSE", "RESUME":
		if b.srv.Stopping() {
			return core.Answer{}, errShutdown
		}
	}
	if arg != "" {
		if arg == consoleName {
			return core.Answer{}, no("cannot " + strings.ToLower(verb) + " admin db: " + arg)
		}
		if _, ok := c.d.database(c.d.state.Load(), arg); !ok {
			return core.Answer{}, no("no such database: " + arg)
		}
	} else if verb == "DISABLE" || verb == "ENABLE" {
		return core.Answer{}, no("a database is required")
	}
	command := verb
	if arg != "" {
		command += ` "` + arg + `"`
	}
	_, err := b.srv.Command(ctx, command)
	var refused *core.Refusal
	switch {
	case err == nil, verb == "DISABLE", verb == "ENABLE": // which may be so already
		if verb == "RECONNECT" && b.auth.state.Load().On("server_fast_close") {
			return done, b.srv.Way.CloseFast(ctx, arg, "database configuration changed")
		}
		return done, nil
	case errors.As(err, &refused):
		return core.Answer{}, no(wording(verb, arg, refused.Message))
	}
	return core.Answer{}, err
}

// wording translates a refusal of weir's console to PgBouncer's words.
func wording(verb, database, message string) string {
	switch {
	case (verb == "PAUSE" || verb == "SUSPEND") && strings.Contains(message, "already"):
		return "already suspended/paused"
	case verb == "RESUME" && database == "":
		return "pooler is not paused/suspended"
	case verb == "RESUME":
		return "database " + database + " is not paused"
	}
	return message
}

// textColumns are columns of PgBouncer's tables that hold text, even where it looks like a
// number.
var textColumns = []string{
	"type", "user", "database", "replication", "state", "addr", "local_addr", "connect_time", "request_time", "ptr", "link", "tls", "application_name",
	"name", "host", "force_user", "pool_mode", "load_balance_hosts", "list", "key", "value", "default", "changeable", "hostname", "addrs", "zonename", "version",
}

// typed marks the columns that hold numbers. In SHOW USERS two sizes are texts.
func typed(t sight.Table, texts ...string) sight.Table {
	t.Ints = make([]bool, len(t.Cols))
	for i, name := range t.Cols {
		t.Ints[i] = !slices.Contains(textColumns, name) && !slices.Contains(texts, name)
	}
	return t
}
