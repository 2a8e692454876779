package mysql_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
)

// TestDropAtTheStart drops a table after the backup has pinned it and before the backup locks
// out writers. The DROP waits for the backup, whose lock waits for the DROP.
func TestDropAtTheStart(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three)
		before := r.native(r.db)
		arrived, released := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)
		hold := sync.OnceFunc(func() { close(arrived); <-released })
		addr := overheard(t, m.Addr(), func(b []byte) {
			if locks(b) {
				hold()
			}
		})
		done := begin(func() error {
			dsn := strings.Replace(m.DSN(r.db), m.Addr(), addr, 1)
			_, err := r.backupCtx(t.Context(), backup.Options{DSN: dsn}, archive.Options{})
			return err
		})
		select {
		case <-arrived:
		case err := <-done:
			t.Fatalf("the backup ended before it locked: %v", err)
		}
		dropper := r.session(r.db)
		dropped := begin(func() error { return dropper.Exec(t.Context(), "DROP TABLE c") })
		r.until("SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock' AND info LIKE 'DROP TABLE c%'", "1")
		release()
		for _, c := range []<-chan error{done, dropped} {
			if err := finished(t, c); err != nil {
				t.Fatal(err)
			}
		}
		copied := r.restored(restore.Options{})
		want := r.native(r.db)
		if strings.Contains(r.native(copied), "CREATE TABLE `c`") { // MariaDB locks out writers first
			want = before
		}
		r.compare(want, copied)
	})
}

// TestWriteAtTheStart backs up while a long write in another database is in the way of the lock.
// The backup repeats its start, and pins the tables before it locks each time: with nothing that
// waits to alter a table, writes must not wait until all tables are pinned.
func TestWriteAtTheStart(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three)
		other := r.db + "_other"
		r.createDB(other)
		r.client(other, "CREATE TABLE w (i INT) ENGINE=MyISAM")
		writer := r.session(other)
		written := begin(func() error { return writer.Exec(t.Context(), "INSERT INTO w SELECT SLEEP(3600)") })
		const running = "FROM information_schema.processlist WHERE info LIKE 'INSERT INTO w%'"
		r.until("SELECT count(*) "+running, "1")
		var mu sync.Mutex
		var order []string
		repeated := make(chan struct{})
		addr := overheard(t, m.Addr(), func(b []byte) {
			step := "pin"
			switch {
			case locks(b):
				step = "lock"
			case !bytes.Contains(b, []byte(" LIMIT 0)")):
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if len(order) == 0 || step == "lock" || order[len(order)-1] != step {
				if order = append(order, step); step == "lock" && strings.Count(strings.Join(order, " "), step) == 2 {
					close(repeated)
				}
			}
		})
		done := begin(func() error {
			dsn := strings.Replace(m.DSN(r.db), m.Addr(), addr, 1)
			_, err := r.backupCtx(t.Context(), backup.Options{DSN: dsn}, archive.Options{})
			return err
		})
		select {
		case <-repeated:
		case err := <-done:
			t.Fatalf("the backup did not wait for the write: %v", err)
		}
		r.admin("KILL " + r.client("", "SELECT id "+running))
		if finished(t, written) == nil {
			t.Error("the write was not interrupted")
		}
		if err := finished(t, done); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(order, " "); !strings.HasPrefix(got, "pin lock pin lock") {
			t.Errorf("the start: %s", got)
		}
	})
}

// locks reports whether a client sends the statement that locks out writers.
func locks(b []byte) bool {
	return bytes.Contains(b, []byte("BACKUP STAGE START")) || bytes.Contains(b, []byte("FLUSH TABLES WITH READ LOCK"))
}
