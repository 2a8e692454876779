package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestLoginsByTheStateOfTheAccount: what a login is told, and what it may do then, is what
// a direct one hears, for each plugin and whatever has become of the account. An expired
// password is not changed through weir.
func TestLoginsByTheStateOfTheAccount(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server)
		weirs := make(map[mywire.TLSMode]*weir)
		for _, mode := range []mywire.TLSMode{mywire.TLSDisabled, mywire.TLSRequired} {
			weirs[mode] = startFor(t, server, db, func(c *mysql.Config) {
				c.MySQL.TLSMode, c.ClientTLS, c.LoginCheckInterval = mode, serverTLS(t), -1
			})
		}
		for _, plugin := range accounts(t, server) {
			for _, mode := range []mywire.TLSMode{mywire.TLSDisabled, mywire.TLSRequired} {
				t.Run(fmt.Sprintf("%s, TLS %s", plugin, mode), func(t *testing.T) {
					t.Parallel()
					l := loginStates{t: t, server: server, weir: weirs[mode].within(t), plugin: plugin, mode: mode}
					l.run()
				})
			}
		}
	})
}

// loginStates are an account on the server and its twin, of which one logs in direct and the
// other through weir.
type loginStates struct {
	t      *testing.T
	server *lab.MySQL
	weir   *weir
	plugin string
	mode   mywire.TLSMode

	direct, through string
}

func (l *loginStates) run() {
	n := shared.serial.Add(1)
	l.direct, l.through = fmt.Sprintf("direct%06d", n), fmt.Sprintf("throug%06d", n)
	l.each(func(name string) {
		if err := l.server.CreateUser(ctxFor(l.t), lab.MySQLUser{Name: name, Password: "one", Plugin: l.plugin}); err != nil {
			l.t.Fatal(err)
		}
	})
	l.equal("a new account", "one", "wrong", "")
	l.alter(l.identified("two"))
	l.equal("another password", "one", "two", "two")
	sqlOn(l.t, l.server, "FLUSH PRIVILEGES") // which has MySQL forget whom it knows
	l.equal("after FLUSH PRIVILEGES", "two", "two", "wrong")
	l.alter("ACCOUNT LOCK")
	l.equal("locked", "two", "wrong")
	l.alter("ACCOUNT UNLOCK")
	l.equal("unlocked", "two")
	l.alter("PASSWORD EXPIRE")
	l.equal("expired", "two", "wrong")
	l.equalIn("expired, to those who can change it", mywire.WantedCaps|mywire.CapExpiredPasswords, "two")
	l.alter(l.identified("three"))
	l.equal("no longer expired", "two", "three")
	l.alter(l.identified(""))
	l.equal("without a password", "", "three", "")
}

func (l *loginStates) each(f func(name string)) {
	f(l.direct)
	f(l.through)
}

func (l *loginStates) alter(how string) {
	l.t.Helper()
	l.each(func(name string) { sqlOn(l.t, l.server, "ALTER USER "+name+"@'%' "+how) })
}

// identified says by what password the account is identified.
func (l *loginStates) identified(password string) string {
	if isMariaDB(l.server) {
		return "IDENTIFIED VIA " + l.plugin + " USING PASSWORD('" + password + "')"
	}
	return "IDENTIFIED BY '" + password + "'"
}

func (l *loginStates) equal(state string, passwords ...string) {
	l.t.Helper()
	l.equalIn(state, mywire.WantedCaps, passwords...)
}

func (l *loginStates) equalIn(state string, caps mywire.Caps, passwords ...string) {
	l.t.Helper()
	for _, password := range passwords {
		want := l.login(l.server.Addr(), l.direct, password, caps)
		if strings.HasPrefix(want, "welcome, and then ERROR 1820") {
			want = "ERROR 1820 (HY000): Your password has expired: change it on a connection to the server itself, not by weir"
		}
		if got := l.login(l.weir.Addr().String(), l.through, password, caps); got != want {
			l.t.Errorf("%s, password %q\n  weir %s\ndirect %s", state, password, got, want)
		}
	}
}

// login is what becomes of a login, and of a statement of a session that has come about.
func (l *loginStates) login(addr, name, password string, caps mywire.Caps) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: addr, User: name, Password: password, TLSMode: l.mode, Caps: caps, Timeout: patience})
	if err == nil {
		defer conn.Close()
		if _, err = conn.Query(ctx, "SELECT 1"); err == nil {
			return "welcome"
		}
		return "welcome, and then " + serverError(err)
	}
	return strings.ReplaceAll(serverError(err), name, "NAME")
}
