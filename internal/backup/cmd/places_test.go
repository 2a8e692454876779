package backupcmd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// client runs a script on a server of the MySQL family and returns what it prints.
func client(t *testing.T, m *lab.MySQL, script string) string {
	t.Helper()
	cmd := exec.Command(m.Client(), "--no-defaults", "-u", m.User(), "--password="+m.Password(), "-S", m.Socket(), "-N")
	cmd.Stdin = strings.NewReader(script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", m.Client(), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// TestPlaceOfSeveralServers keeps backups of two servers, whose databases have one
// name, in one place: none stands in for another one, and which of them is meant has
// to be said.
func TestPlaceOfSeveralServers(t *testing.T) {
	clitest.ClearEnvironment(t)
	place := t.TempDir()
	// Of PostgreSQL, servers whose data was copied have one identifier.
	north, south := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true}), labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	client(t, north, "CREATE DATABASE shop; CREATE TABLE shop.whose AS SELECT 'north' AS note")
	client(t, south, "CREATE DATABASE shop; CREATE TABLE shop.whose AS SELECT 'south' AS note")
	var ids []string
	for _, m := range []*lab.MySQL{north, south, north, south, south} {
		ids = append(ids, clitest.Decode[notice.Outcome](t, program.Must(t, "backup", m.DSN("shop"), "--to", place, "--json")).ID)
	}
	newest := []string{ids[2], ids[4]}

	c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", place, "--json"))
	of := map[string]int{}
	for _, b := range c.Backups {
		of[b.Summary.Server.SystemID]++
	}
	if len(c.Backups) != 5 || len(of) != 2 || of[""] > 0 {
		t.Errorf("backups by server: %v", of)
	}
	text := program.Must(t, "backup", "list", place)
	for id := range of {
		if strings.Count(text, "server "+id) != of[id] {
			t.Errorf("the list does not say which backups are of server %s:\n%s", id, text)
		}
	}

	for _, cmd := range [][]string{
		{"backup", "verify", place},
		{"backup", "verify", place, "latest:shop"},
		{"backup", "cat", place, "--list"},
		{"restore", place, "--to", north.DSN("copy"), "--create"},
		{"restore", place, "latest:shop", "--to", north.DSN("copy"), "--create"},
	} {
		program.Refuse(t, cli.ExitFailed, append([]string{"latest:LABEL"}, newest...), cmd...)
	}
	program.Must(t, "backup", "verify", place, "latest")
	program.Must(t, "restore", place, ids[2], "--to", south.DSN("copy"), "--create", "--verify", "-q")
	if got := client(t, south, "SELECT note FROM copy.whose"); got != "north" {
		t.Errorf("the backup of the other server holds %q", got)
	}

	plan := clitest.Decode[pruneReport](t, program.Must(t, "backup", "prune", place, "--keep-last", "1", "--json"))
	if want := []string{ids[3], ids[1], ids[0]}; !slices.Equal(plan.Removed, want) {
		t.Errorf("removed %v instead of %v", plan.Removed, want)
	}
	if text := program.Must(t, "backup", "prune", place, "--keep-within", "1ns"); !strings.Contains(text, "removed 0 backups") {
		t.Errorf("the newest of a server does not stay: %s", text)
	}

	labelled := clitest.Decode[notice.Outcome](t, program.Must(t, "backup", north.DSN("shop"), "--to", place, "--label", "nightly", "--json")).ID
	program.Must(t, "backup", "verify", place, "latest:nightly")
	program.Refuse(t, cli.ExitFailed, []string{"of yearly", "no complete backup"}, "backup", "verify", place, "latest:yearly")
	program.Refuse(t, cli.ExitFailed, append([]string{labelled}, newest...), "restore", place, "--to", north.DSN("copy"), "--create")
	program.Must(t, "backup", "prune", place, "--keep-last", "1")
	if c := clitest.Decode[catalogue](t, program.Must(t, "backup", "list", place, "--json")); len(c.Backups) != 3 {
		t.Errorf("left of two labels: %+v", c.Backups)
	}
}

// TestPlacesThatAreNotThere has no verb take a place that does not exist for one that
// holds nothing.
func TestPlacesThatAreNotThere(t *testing.T) {
	clitest.ClearEnvironment(t)
	empty := t.TempDir()
	absent := filepath.Join(empty, "absent")
	verbs := func(place string) [][]string {
		return [][]string{
			{"backup", "list", place},
			{"backup", "list", place, "--json"},
			{"backup", "prune", place, "--keep-last", "1"},
			{"backup", "prune", place, "--keep-last", "1", "--dry-run"},
			{"backup", "verify", place},
			{"backup", "verify", place, "--log"},
			{"backup", "cat", place, "--list"},
			{"restore", place, "--to", "postgres://nobody@127.0.0.1:1/x"},
		}
	}
	for _, cmd := range verbs(absent) {
		program.Refuse(t, cli.ExitFailed, []string{absent, "no such file or directory"}, cmd...)
	}
	for _, cmd := range verbs(empty)[4:] {
		program.Refuse(t, cli.ExitFailed, []string{empty, "no complete backup"}, cmd...)
	}
	if text := program.Must(t, "backup", "list", empty); !strings.Contains(text, "holds no backups") {
		t.Errorf("an empty place: %s", text)
	}
	program.Must(t, "backup", "prune", empty, "--keep-last", "1")
	if left, err := filepath.Glob(filepath.Join(empty, "*")); err != nil || len(left) > 0 {
		t.Errorf("looking has made %v, %v", left, err)
	}
}

// TestBackupThatCannotConnectLeavesNothing: an empty place would look like one that
// has lost its backups. A directory that was there stays.
func TestBackupThatCannotConnectLeavesNothing(t *testing.T) {
	clitest.ClearEnvironment(t)
	top := t.TempDir()
	kept := filepath.Join(top, "kept")
	if err := os.Mkdir(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{kept, filepath.Join(kept, "new"), filepath.Join(top, "a", "b", "c")} {
		for _, cmd := range [][]string{
			{"backup", "postgres://nobody@127.0.0.1:1/x"},
			{"backup", "postgres://nobody@127.0.0.1:1/", "--cluster"},
			{"backup", "mysql://nobody@127.0.0.1:1/x"},
			{"backup", "base", "postgres://nobody@127.0.0.1:1/"},
		} {
			program.Refuse(t, cli.ExitFailed, []string{"127.0.0.1:1", "refused"}, append(cmd, "--to", place)...)
		}
	}
	for _, dir := range []string{top, kept} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "kept" {
				t.Errorf("left in %s: %s", dir, e.Name())
			}
		}
	}
}

// TestLockWaitTimeout: none is as no limit, and not as the default.
func TestLockWaitTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{"": time.Minute, "none": -1, "0": -1, "-1s": -time.Second, "5s": 5 * time.Second} {
		var v backupVerb
		f := pflag.NewFlagSet("backup", pflag.ContinueOnError)
		v.flags(f)
		args := []string{"--to", t.TempDir()}
		if value != "" {
			args = append(args, "--lock-wait-timeout="+value)
		}
		v.options.DSN = "postgres://nobody@127.0.0.1:1/x"
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := v.complete(); err != nil || v.options.LockWait != want {
			t.Errorf("--lock-wait-timeout=%s: %v, %v; want %v", value, v.options.LockWait, err, want)
		}
	}
}

// TestRestoreMakesAMySQLDatabase makes the database that the DSN names, or that of the
// backup.
func TestRestoreMakesAMySQLDatabase(t *testing.T) {
	for name, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(name, func(t *testing.T) {
			m := start(t, lab.MySQLConfig{Durability: lab.Fast}) // found by the environment
			clitest.ClearEnvironment(t)
			client(t, m, "CREATE DATABASE shop CHARACTER SET latin1; CREATE TABLE shop.orders (id int PRIMARY KEY, note text); INSERT INTO shop.orders VALUES (1, 'one'), (2, 'two')")
			place := t.TempDir()
			program.Must(t, "backup", m.DSN("shop"), "--to", place, "-q")
			check := func(database string) {
				t.Helper()
				got := client(t, m, "SELECT count(*), max(note) FROM "+database+".orders; SELECT default_character_set_name FROM information_schema.schemata WHERE schema_name = '"+database+"'")
				if got != "2\ttwo\nlatin1" {
					t.Errorf("%s holds %q", database, got)
				}
			}
			program.Refuse(t, cli.ExitFailed, []string{"copy", "--create"}, "restore", place, "--to", m.DSN("copy"))
			program.Must(t, "restore", place, "--to", m.DSN("copy"), "--create", "--verify", "-q")
			check("copy")
			program.Refuse(t, cli.ExitFailed, []string{"copy", "exists already", "--clean"}, "restore", place, "--to", m.DSN("copy"), "--create")
			program.Must(t, "restore", place, "--to", m.DSN("copy"), "--create", "--clean", "-q")
			check("copy")
			program.Must(t, "restore", place, "--to", m.DSN(""), "--create", "--rename", "shop=renamed", "--verify", "-q")
			check("renamed")
			program.Refuse(t, cli.ExitFailed, []string{"shop", "exists already"}, "restore", place, "--to", m.DSN(""), "--create")
			client(t, m, "DROP DATABASE shop")
			program.Must(t, "restore", place, "--to", m.DSN(""), "--create", "--verify", "-q")
			check("shop")
		})
	}
}

// TestRefusedTargetIsNotResumed: a restore that does not take a target says nothing of --resume,
// even if it has begun with another database.
func TestRefusedTargetIsNotResumed(t *testing.T) {
	begun := &restore.Result{Plan: []restore.Step{{}}}
	for _, c := range []struct {
		result *restore.Result
		err    error
		want   bool
	}{
		{begun, io.ErrUnexpectedEOF, true},
		{begun, fmt.Errorf("restore database b: %w", restore.Refuse("the target is not empty")), false},
		{&restore.Result{}, io.ErrUnexpectedEOF, false},
	} {
		if got := continues(t.Context(), c.result, c.err); got != c.want {
			t.Errorf("%v after %d steps: %t", c.err, len(c.result.Plan), got)
		}
	}
}
