package bouncer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/netwire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// consoleName is the database name of the console.
const consoleName = "pgbouncer"

// A login is a client that is logging in. Errors have PgBouncer's texts, which applications
// and monitoring match.
type login struct {
	d  *authenticator
	st *state
	v  postgres.LoginRequest

	database, user string
	db             *pgbouncer.Database // nil: the console, or there is none
	admin, stats   bool                // what the client may do on the console
	replication    string
	startup        startup

	secret  pgwire.Secret
	known   bool // there is such a user
	counted []map[string]int
}

// refusal is an error for the client, as PgBouncer sends it.
func refusal(format string, args ...any) *pgwire.Error {
	return pgwire.NewFatal(pgwire.CodeProtocolViolation, format, args...)
}

// Enter implements postgres.Authenticator.
func (d *authenticator) Enter(ctx context.Context, v postgres.LoginRequest) (*postgres.AcceptedLogin, error) {
	l := &login{d: d, st: d.state.Load(), v: v, user: v.Start.User, database: v.Start.Database}
	e, err := l.enter(ctx)
	if err == nil {
		e.Left = l.leave
		return e, nil
	}
	l.leave()
	var told *toldError
	var fatal *pgwire.Error
	if !errors.As(err, &told) && errors.As(err, &fatal) {
		f := *fatal
		f.Severity, f.SeverityRaw = "FATAL", "FATAL"
		l.failed(f.Message)
		_, _ = v.Conn.Write(pgwire.AppendError(nil, &f)) // the client may be gone; the error is what matters
	}
	return nil, err
}

// failed logs why a login fails, before the client is told.
func (l *login) failed(why string) {
	l.d.b.log.Debug("client refused", "client", l.v.Addr.String(), "database", l.database, "user", l.user, "because", why)
}

// toldError is an error that the client has already been sent.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

func (l *login) enter(ctx context.Context) (*postgres.AcceptedLogin, error) {
	if r := l.v.Start.Param("replication"); r != "" && !isOff(r) {
		l.replication = r
	}
	var err error
	if l.startup, err = readStartup(l.st, l.v.Start, l.replication != ""); err != nil {
		return nil, err
	}
	if l.v.Stopping && l.database != consoleName {
		return nil, refusal("server shutting down")
	}
	if l.d.b.srv.Sessions.Load() > int64(l.st.Number("max_client_conn")) && l.database != consoleName {
		return nil, refusal("no more connections allowed (max_client_conn)")
	}
	entry := &postgres.AcceptedLogin{Database: l.database, User: l.user, Login: l.user, Settings: l.startup.settings, App: l.startup.app}
	if l.database == consoleName && l.own() {
		l.admin = true
		return entry, l.openConsole(ctx, entry)
	}
	if l.database != consoleName {
		l.db, _ = l.d.database(l.st, l.database)
	}
	method, rule, err := l.method()
	if err != nil {
		return nil, err
	}
	if err := l.findUser(ctx, method); err != nil {
		return nil, err
	}
	if l.database == consoleName {
		l.admin = slices.Contains(l.st.List("admin_users"), l.v.Start.User)
		l.stats = slices.Contains(l.st.List("stats_users"), l.v.Start.User)
	}
	if err := l.count(); err != nil {
		return nil, err
	}
	if err := l.authenticate(ctx, method, rule); err != nil {
		return nil, err
	}
	if l.database == consoleName {
		if !l.admin && !l.stats {
			return nil, refusal("not allowed")
		}
		return entry, l.openConsole(ctx, entry)
	}
	switch {
	case l.db == nil:
		return nil, refusal("no such database: %s", l.database)
	case l.d.b.srv.GateOf(l.database).Disabled:
		return nil, refusal("database %q is disabled", l.database)
	}
	if l.db.User != "" {
		entry.User = l.db.User
	}
	if l.replication != "" {
		entry.Serve = func(ctx context.Context) error { return l.tunnel(ctx, entry.User) }
		return entry, nil
	}
	l.d.b.seen(l.database)
	entry.Mode = l.st.mode(l.db, l.user)
	if text := l.st.Text("login_notify_message"); text != "" {
		entry.Greeting = pgwire.AppendNotice(nil, notice(text))
	}
	return entry, nil
}

func notice(text string) *pgwire.Error {
	return &pgwire.Error{Severity: "NOTICE", SeverityRaw: "NOTICE", Code: "00000", Message: text}
}

func isOff(v string) bool {
	return slices.Contains([]string{"false", "off", "no", "0", "f", "n", ""}, strings.ToLower(v))
}

// own reports whether the client is the console's owner: a process of weir's own user, over
// a Unix socket, with the user name pgbouncer.
func (l *login) own() bool { return l.user == consoleName && local(l.v.Conn) }

// method returns the client's authentication method.
func (l *login) method() (string, *pgbouncer.Rule, error) {
	method := l.st.Text("auth_type")
	if method != "hba" {
		return method, nil, nil
	}
	rule := l.st.HBA.Match(pgbouncer.Login{
		Addr: addrOf(l.v.Addr), TLS: l.tls() != nil, Database: l.database, User: l.user,
		Physical: l.replication != "" && l.replication != "database",
	})
	switch {
	case rule == nil:
		return "", nil, refusal("no authentication method is found")
	case rule.Method == "reject":
		return "", nil, refusal("login rejected")
	}
	return rule.Method, rule, nil
}

// addrOf returns the client's address; not valid on a Unix socket.
func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// tls returns the client's TLS connection, or nil.
func (l *login) tls() *tls.Conn {
	c, _ := l.v.Conn.(*tls.Conn)
	return c
}

// findUser finds the user in auth_file, otherwise by auth_query.
func (l *login) findUser(ctx context.Context, method string) error {
	if method == "any" {
		if l.database != consoleName && (l.db == nil || l.db.User == "") {
			l.d.b.log.Error("auth_type=any requires forced user", "database", l.database)
			return refusal("bouncer config error")
		}
		l.known = true
		return nil
	}
	if l.secret, l.known = l.st.users[l.user]; l.known {
		return nil
	}
	if method == "ldap" {
		l.known = true // for the LDAP server to say
		return nil
	}
	as := l.st.Text("auth_user")
	if l.db != nil && l.db.AuthUser != "" {
		as = l.db.AuthUser
	}
	if l.user == as && as != "" && method == "trust" {
		l.known = true
		return nil
	}
	if as == "" || l.db == nil && l.database != consoleName {
		l.d.b.log.Info("no such user: " + l.user)
		return nil
	}
	secret, found, err := l.lookUp(ctx, as)
	switch {
	case err != nil:
		return err
	case !found:
		return refusal("no such user")
	}
	l.secret, l.known = secret, true
	l.d.mu.Lock()
	l.d.looked[l.user] = true
	l.d.mu.Unlock()
	return nil
}

// count counts the client, and refuses it if there are too many.
func (l *login) count() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	add := func(m map[string]int, name string, most int, limit string) error {
		if most > 0 && m[name] >= most && !(l.database == consoleName && l.admin) {
			return refusal("client connections exceeded (%s)", limit)
		}
		return nil
	}
	if err := add(l.d.clients, l.database, l.st.maxClients(l.db), "max_db_client_connections"); err != nil {
		return err
	}
	if l.known || l.st.Users[l.user] != nil {
		if err := add(l.d.ofUser, l.user, l.st.maxUserClients(l.user), "max_user_client_connections"); err != nil {
			return err
		}
	}
	l.d.clients[l.database]++
	l.d.ofUser[l.user]++
	l.counted = []map[string]int{l.d.clients, l.d.ofUser}
	return nil
}

// leave no longer counts the client.
func (l *login) leave() {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.counted != nil {
		l.counted = nil
		drop(l.d.clients, l.database)
		drop(l.d.ofUser, l.user)
	}
}

func drop(m map[string]int, name string) {
	if m[name]--; m[name] <= 0 {
		delete(m, name)
	}
}

// methods are pgwire's, by auth_type.
var methods = map[string]pgwire.AuthMethod{
	"plain": pgwire.AuthPassword, "md5": pgwire.AuthMD5, "scram-sha-256": pgwire.AuthSCRAM,
}

// authenticate authenticates the client and sends AuthenticationOk.
func (l *login) authenticate(ctx context.Context, method string, rule *pgbouncer.Rule) error {
	prove := pgwire.AuthTrust
	secret := l.secret
	switch method {
	case "any":
	case "trust":
		if !l.known {
			return refusal(`"trust" authentication failed`)
		}
	case "cert":
		if err := l.certificate(rule); err != nil {
			return err
		}
	case "peer":
		if err := l.peer(rule); err != nil {
			return err
		}
	case "ldap":
		return l.ldap(ctx, rule)
	default:
		prove = methods[method]
	}
	keys, err := pgwire.AuthenticateIn(ctx, l.v.Conn, l.user, prove, secret, func(e *pgwire.Error) {
		if method == "scram-sha-256" && e.Code == pgwire.CodeInvalidPassword {
			e.Message = "SASL authentication failed"
		}
		l.failed(e.Message)
	})
	if err != nil {
		return &toldError{err}
	}
	l.d.b.srv.Way.Learn(l.user, keys)
	return nil
}

// ldap checks the client's password with an LDAP server. weir then uses that password to
// log in to the database server.
func (l *login) ldap(ctx context.Context, rule *pgbouncer.Rule) error {
	directory := l.st.ldap
	if rule != nil {
		directory = l.st.ldaps[rule]
	}
	keys, ok, err := pgwire.AskPassword(ctx, l.v.Conn, l.user, func(ctx context.Context, password string) error {
		err := directory.Check(ctx, l.user, password)
		if err == nil {
			return nil
		}
		l.d.b.log.Warn("LDAP authentication failed", "user", l.user, "database", l.database, "error", err)
		return refusal("LDAP authentication failed")
	}, func(e *pgwire.Error) { l.failed(e.Message) })
	if err != nil {
		return &toldError{err}
	}
	if _, err := l.v.Conn.Write(ok); err != nil {
		return err
	}
	l.d.b.srv.Way.Learn(l.user, keys)
	return nil
}

// certificate checks the client's certificate.
func (l *login) certificate(rule *pgbouncer.Rule) error {
	c := l.tls()
	if c == nil {
		return refusal("TLS certificate authentication failed: the connection has no TLS")
	}
	state := c.ConnectionState()
	name := netwire.CertName(&state)
	if len(state.VerifiedChains) == 0 || name == "" {
		return refusal("TLS certificate authentication failed")
	}
	if rule != nil && rule.Map != "" {
		if !l.st.Maps.Allows(rule.Map, name, l.user) {
			return refusal("ident map: %s does not have a match", rule.Map)
		}
	} else if name != l.user {
		return refusal("TLS certificate name mismatch")
	}
	if !l.known {
		return refusal("no such user")
	}
	return nil
}

// peer checks the user of the process at the other end of the Unix socket.
func (l *login) peer(rule *pgbouncer.Rule) error {
	uid, ok := core.PeerUID(l.v.Conn)
	if !ok {
		return refusal("unix socket login rejected")
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return refusal("unix socket login rejected")
	}
	if rule.Map != "" {
		if !l.st.Maps.Allows(rule.Map, u.Username, l.user) {
			return refusal("ident map %s cannot be matched", rule.Map)
		}
	} else if u.Username != l.user {
		return refusal("unix socket login rejected")
	}
	if !l.known {
		return refusal("no such user")
	}
	return nil
}

// A startup is the content of a client's startup packet.
type startup struct {
	settings []session.Setting
	app      string
	options  string // as the client sent it
}

// errOptions rejects an options parameter that PgBouncer cannot read either.
var errOptions = refusal("unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed")

// readStartup reads the parameters of a startup packet. Those that PgBouncer knows are
// settings of the session; ignore_startup_parameters lists others that have no effect,
// and the rest is refused.
func readStartup(st *state, start *pgwire.Startup, replication bool) (s startup, err error) {
	known := append([]string{"client_encoding", "datestyle", "timezone", "standard_conforming_strings", "application_name"}, st.tracked()...)
	ignored := st.List("ignore_startup_parameters")
	add := func(name, value string) {
		if name == "application_name" {
			s.app = value
			return
		}
		s.settings = slices.DeleteFunc(s.settings, func(x session.Setting) bool { return x.Name == name })
		s.settings = append(s.settings, session.Setting{Name: name, Value: value, Literal: true})
	}
	for _, p := range start.Params {
		switch name := strings.ToLower(p.Name); {
		case name == "user", name == "database", name == "replication":
		case name == "options":
			s.options = p.Value
			if replication {
				continue
			}
			list, err := pgwire.ParseOptions(p.Value)
			if err != nil {
				return s, errOptions
			}
			for _, o := range list {
				switch name := strings.ToLower(o.Name); {
				case slices.Contains(known, name):
					add(name, o.Value)
				case slices.Contains(ignored, name), slices.Contains(ignored, "options"):
				default:
					return s, refusal("unsupported startup parameter in options: %s", o.Name)
				}
			}
		case slices.Contains(known, name):
			add(name, p.Value)
		case slices.Contains(ignored, p.Name):
		default:
			return s, refusal("unsupported startup parameter: %s", p.Name)
		}
	}
	return s, nil
}

// tracked are the settings of track_extra_parameters.
func (st *state) tracked() []string {
	list := st.List("track_extra_parameters")
	for i := range list {
		list[i] = strings.ToLower(list[i])
	}
	return list
}

func (l *login) String() string {
	return fmt.Sprintf("%s/%s@%s", l.database, l.user, l.v.Addr)
}
