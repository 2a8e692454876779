package sqlite

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/storetest"
)

// open opens a store as one more process would.
func open(t *testing.T, path string, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// producers is a pool as an application has it.
func producers(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		path := filepath.Join(t.TempDir(), "app data.db")
		return storetest.Harness{
			Open:  func(t *testing.T, table string) outbox.Store { return open(t, path, Options{Table: table}) },
			DB:    producers(t, path),
			Tx:    func(e outbox.Execer) outbox.Tx { return outbox.SQLite(e) },
			Quote: quote,
			Names: []string{`qu"ote'`, "with space", "drei-Größen", "{parked}", "100%d", "a/b"},
			Migrate: func(t *testing.T, plan outbox.Plan, n int) bool {
				crash := errors.New("crash")
				s := open(t, path, Options{})
				s.beforeStep = func(string) error {
					if n--; n < 0 {
						return crash
					}
					return nil
				}
				_, err := s.Migrate(t.Context(), plan)
				if err != nil && !errors.Is(err, crash) {
					t.Fatal(err)
				}
				return err != nil
			},
			CutLease: func(t *testing.T, shard int) {
				lock, err := open(t, path, Options{}).lockPath(shard)
				check(t, err)
				check(t, os.Remove(lock))
			},
			OneWriter: true,
		}
	})
}
