package process_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestAuditLog: logins, good and bad, and what was done at the console; and after
// logrotate a reload goes on in a new file.
func TestAuditLog(t *testing.T) {
	pg := sharedPostgres.Get(t)
	dir := t.TempDir()
	users, path := filepath.Join(dir, "userlist.txt"), filepath.Join(dir, "audit.log")
	clitest.Write(t, users, fmt.Sprintf("%q \"right\"\n", pg.User()))
	log, stop := startProxy(t, "--postgres", pg.DSN("postgres"), "--auth", "scram-sha-256", "--auth-file", users, "--audit-log", path)
	address := log.Await("weir proxy listens")["address"].(string)

	// Logins are told of on goroutines of their own: one must be there before the next begins.
	events := 0
	written := func() {
		t.Helper()
		events++
		testkit.Eventually(t, "the login is in the audit log", func() bool {
			text, err := os.ReadFile(path)
			return err == nil && bytes.Count(text, []byte("\n")) >= events
		})
	}
	for _, login := range []struct{ password, database string }{{"right", "postgres"}, {"wrong", "postgres"}, {"right", "nowhere"}} {
		if _, err := dial(t, address, pg.User(), login.password, login.database); (err == nil) != (login == struct{ password, database string }{"right", "postgres"}) {
			t.Fatalf("%v: %v", login, err)
		}
		written()
	}
	console, err := dial(t, address, pg.User(), "right", "weir")
	if err != nil {
		t.Fatal(err)
	}
	written()
	for _, command := range []string{"SHOW POOLS", "PAUSE", "RESUME", "PAWS"} {
		if _, err := console.Exec(t.Context(), command, pgx.QueryExecModeSimpleProtocol); (err != nil) != (command == "PAWS") {
			t.Fatalf("%s: %v", command, err)
		}
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.Await("configuration reloaded")
	if _, err := dial(t, address, pg.User(), "right", "postgres"); err != nil {
		t.Fatal(err)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	want := []string{
		"login accepted postgres", "login accepted weir", "login failed nowhere", "login failed postgres",
		"command accepted PAUSE", "command accepted RESUME", "command failed PAWS",
	}
	got := auditEvents(t, path+".1", "postgresql", pg.User())
	slices.Sort(got[:min(4, len(got))]) // a client hears of its refusal before the log does
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := auditEvents(t, path, "postgresql", pg.User()); len(got) != 1 || got[0] != "login accepted postgres" {
		t.Errorf("after the reload: %q", got)
	}
}

// TestAuditLogOfMySQL: the same there, and changes of the user.
func TestAuditLogOfMySQL(t *testing.T) {
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "16M"})
	if err := my.CreateUser(t.Context(), lab.MySQLUser{Name: "app", Password: "right"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	log, stop := startProxy(t, "--mysql", my.DSN(""), "--admin-users", "app", "--audit-log", path)
	address := log.Await("weir proxy listens")["address"].(string)
	connect := func(password, database string) *mywire.Server {
		t.Helper()
		c, err := mywire.Connect(t.Context(), mywire.ConnectConfig{Address: address, User: "app", Password: password, Database: database, TLSMode: mywire.TLSDisabled})
		if (err == nil) != (password == "right" && database != "nowhere") {
			t.Fatalf("password %s, database %s: %v", password, database, err)
		}
		return c
	}
	// Failed logins are answered before the log has them.
	var want []string
	audited := func(event string) {
		t.Helper()
		want = append(want, event)
		testkit.Eventually(t, event+" in the audit log", func() bool {
			text, err := os.ReadFile(path)
			return err == nil && bytes.Count(text, []byte("\n")) >= len(want)
		})
	}
	connect("wrong", "mysql")
	audited("login failed mysql")
	connect("right", "nowhere")
	audited("login failed nowhere")
	session := connect("right", "mysql")
	audited("login accepted mysql")
	if _, err := session.Conn.Write(mywire.AppendChangeUser(nil, session.Caps, &mywire.ChangeUser{
		User: "nobody", Database: "mysql", Charset: mywire.CharsetUTF8MB4, Plugin: mywire.PluginNative,
	})); err != nil {
		t.Fatal(err)
	}
	if err := session.Conn.Close(); err != nil {
		t.Fatal(err)
	}
	audited("change_user failed mysql")
	console := connect("right", "weir")
	audited("login accepted weir")
	for _, command := range []string{"SHOW POOLS", "PAUSE", "RESUME", "KILL_CLIENT x"} {
		if _, err := console.Query(t.Context(), command); (err != nil) != (command == "KILL_CLIENT x") {
			t.Errorf("%s: %v", command, err)
		}
	}
	want = append(want, "command accepted PAUSE", "command accepted RESUME", "command failed KILL_CLIENT x")
	if err := console.Close(); err != nil {
		t.Error(err)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := auditEvents(t, path, "mysql", "app", "nobody"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// auditEvents are the events in an audit log of one side, whose users are known.
func auditEvents(t *testing.T, file, engine string, users ...string) (events []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e struct{ Msg, Outcome, Engine, User, Database, Client, Command, Error string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Engine != engine || !slices.Contains(users, e.User) || e.Client == "" || (e.Error != "") != (e.Outcome == "failed") {
			t.Errorf("%v: %s", err, line)
		}
		events = append(events, strings.TrimSpace(e.Msg+" "+e.Outcome+" "+e.Database+e.Command))
	}
	return events
}
