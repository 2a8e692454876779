//go:build linux

package proxycmd

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
)

// TestAuditLog: logins, good and bad, and what was done at the console; and after
// logrotate a reload goes on in a new file.
func TestAuditLog(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
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
	read := func(file string) (events []string) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var e struct{ Msg, Outcome, Engine, User, Database, Client, Command, Error string }
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Engine != "postgresql" || e.User != pg.User() || e.Client == "" || (e.Error != "") != (e.Outcome == "failed") {
				t.Errorf("%v: %s", err, line)
			}
			events = append(events, strings.TrimSpace(e.Msg+" "+e.Outcome+" "+e.Database+e.Command))
		}
		return events
	}
	want := []string{
		"login accepted postgres", "login accepted weir", "login failed nowhere", "login failed postgres",
		"command accepted PAUSE", "command accepted RESUME", "command failed PAWS",
	}
	got := read(path + ".1")
	slices.Sort(got[:min(4, len(got))]) // a client hears of its refusal before the log does
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := read(path); len(got) != 1 || got[0] != "login accepted postgres" {
		t.Errorf("after the reload: %q", got)
	}
}
