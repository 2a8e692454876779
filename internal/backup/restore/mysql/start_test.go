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
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
)

// TestDropAtTheStart drops a table after the backup has pinned it and before the backup locks
// out writers. The DROP waits for the backup, whose lock waits for the DROP.
func TestDropAtTheStart(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, three)
		before := r.native(r.db)
		addr, arrived, release := lockGate(t, m.Addr())
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

// lockGate listens in front of a server, and holds the first statement back that locks out
// writers, until it is released.
func lockGate(t *testing.T, server string) (addr string, arrived <-chan struct{}, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	came, released := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	var once sync.Once
	hold := func() { once.Do(func() { close(came); <-released }) }
	forward := func(to, from net.Conn, sent func([]byte)) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			sent(buf[:n])
			if _, e := to.Write(buf[:n]); e != nil || err != nil {
				to.Close()
				return
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go forward(upstream, client, func(b []byte) {
				if bytes.Contains(b, []byte("BACKUP STAGE START")) || bytes.Contains(b, []byte("FLUSH TABLES WITH READ LOCK")) {
					hold()
				}
			})
			go func() {
				_, _ = io.Copy(client, upstream) // its end is the client's
				client.Close()
			}()
		}
	}()
	return l.Addr().String(), came, release
}
