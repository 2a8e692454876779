package mysql_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
)

// TestSequenceDroppedMeanwhile: a backup that has read all rows does not fail for a sequence that
// was dropped since it began.
func TestSequenceDroppedMeanwhile(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), "CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE SEQUENCE gone; CREATE SEQUENCE stays; DO NEXTVAL(stays)")
	plain := r.repo
	repo, g := archivetest.NewGate(t, plain, "data/t/", 0)
	r.repo = repo
	var res *backup.Result
	done := begin(func() (err error) {
		res, err = r.backupCtx(t.Context(), backup.Options{}, archive.Options{})
		return err
	})
	g.Wait(t)
	r.exec(r.session(r.db), "DROP SEQUENCE gone")
	g.Release()
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(res.Manifest.Warnings, "\n"); !strings.Contains(text, r.db+".gone was dropped") {
		t.Errorf("warnings: %s", text)
	}
	r.repo = plain
	r.restored(restore.Options{})
}

// TestObjectsDroppedMeanwhile: what nothing pins may be dropped after it was listed and before
// its definition is read. It is left out, unless it is made anew at once, and the log can be
// replayed that drops it, or makes what the backup holds already.
func TestObjectsDroppedMeanwhile(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, `CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE VIEW gone_view AS SELECT 1; CREATE VIEW stays AS SELECT 1;
CREATE PROCEDURE gone_procedure() DO 0; CREATE PROCEDURE anew() DO 0; CREATE PROCEDURE stays() DO 0; CREATE EVENT gone_event ON SCHEDULE EVERY 1 DAY DO DO 0`)
		kinds := []string{"VIEW", "PROCEDURE", "EVENT"}
		if r.maria() {
			r.client(r.db, "CREATE SEQUENCE gone_sequence")
			kinds = append(kinds, "SEQUENCE")
		}
		s := r.session(r.db)
		exec := func(sql string) {
			if err := s.Exec(t.Context(), sql); err != nil {
				t.Error(err)
			}
		}
		var anew sync.Once
		addr := overheard(t, m.Addr(), func(sent []byte) {
			is := func(sql string) bool { return bytes.Contains(sent, []byte(sql)) }
			if is("SHOW CREATE VIEW `stays`") {
				exec("CREATE EVENT made ON SCHEDULE EVERY 1 DAY DO DO 0")
			}
			if r.maria() && is("SHOW CREATE PROCEDURE `anew`") { // MySQL pins even a name that is gone
				anew.Do(func() { exec("DROP PROCEDURE anew") })
			}
			if r.maria() && is("routine_name = 'anew'") {
				exec("CREATE PROCEDURE anew() DO 1")
			}
			for _, kind := range kinds {
				if is("SHOW CREATE " + kind + " `gone_") {
					exec("DROP " + kind + " gone_" + strings.ToLower(kind))
				}
			}
		})
		res := r.backup(backup.Options{DSN: strings.Replace(m.DSN(r.db), m.Addr(), addr, 1)}, archive.Options{})
		text := strings.Join(res.Manifest.Warnings, "\n")
		for _, kind := range kinds {
			if kind = strings.ToLower(kind); !strings.Contains(text, kind+" "+r.db+".gone_"+kind+" was dropped") {
				t.Errorf("no word of the %s: %s", kind, text)
			}
		}
		want := r.native(r.db)
		logs, from := r.logs(), start(res.Manifest)
		r.stream(logs, from)
		r.into(m)
		o := load.ReplayOptions{DSN: m.DSN(""), Storage: logs, From: from, Settled: dump.Settled(res.Manifest), Databases: []string{r.db}}
		if _, err := load.Replay(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r.compare(want, r.db)
	})
}

// TestDatabasesOfTheMoment: a backup of all databases holds those of its moment, also where
// they come and go while tables are locked.
func TestDatabasesOfTheMoment(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE t (a int)")
		gone, made := r.db+"_gone", r.db+"_made"
		r.createDB(gone)
		r.dropAfter(made)
		s := r.session("")
		var once sync.Once
		addr := overheard(t, m.Addr(), func(sent []byte) {
			if bytes.Contains(sent, []byte("START TRANSACTION")) {
				once.Do(func() {
					for _, sql := range []string{"DROP DATABASE " + gone, "CREATE DATABASE " + made, "CREATE TABLE " + made + ".t (a int)", "INSERT INTO " + made + ".t VALUES (1)"} {
						if err := s.Exec(t.Context(), sql); err != nil {
							t.Error(err)
						}
					}
				})
			}
		})
		res := r.backup(backup.Options{DSN: strings.Replace(m.DSN(""), m.Addr(), addr, 1), Cluster: true, NoGlobals: true}, archive.Options{})
		rows := map[string]int64{}
		for _, d := range res.Manifest.Databases {
			rows[d.Name] = 0
			for _, table := range d.Tables {
				rows[d.Name] += table.Rows
			}
		}
		if _, there := rows[gone]; there || rows[made] != 1 {
			t.Errorf("databases and their rows: %v", rows)
		}
	})
}

// overheard returns the address of a way to a server on which hear gets what clients send
// before the server does.
func overheard(t *testing.T, server string, hear func(sent []byte)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				return
			}
			go func() {
				_, _ = io.Copy(client, to) // until one of them closes it
				_ = client.Close()
			}()
			go func() {
				_, _ = io.Copy(to, io.TeeReader(client, writerFunc(hear)))
				_ = to.Close()
			}()
		}
	}()
	return l.Addr().String()
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
