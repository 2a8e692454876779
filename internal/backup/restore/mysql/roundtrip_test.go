package mysql_test

import (
	"os"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
)

func script(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// zoo is one of everything that a server has.
func zoo(t *testing.T, m *lab.MySQL) string {
	return script(t, "zoo.sql") + script(t, "zoo-"+string(m.Flavor())+".sql")
}

// TestRoundTrip restores one of everything, in each way in which rows travel, and
// compares by the server's own dump and by checksums of exact values.
func TestRoundTrip(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, zoo(t, m))
		want := r.native(r.db)
		r.backup(backup.Options{Checksums: true, ChunkBytes: backup.MinChunkBytes}, archive.Options{})
		again := func(name string, o restore.Options) {
			t.Run(name, func(t *testing.T) {
				in := *r
				in.t, o.Target = t, r.db+"_"+name
				in.compare(want, in.restored(o))
			})
		}
		again("local", restore.Options{})
		again("inserts", restore.Options{NoLocal: true})
		r.backup(backup.Options{Checksums: true, Inserts: true}, archive.Options{Label: "b"})
		again("statements", restore.Options{})
	})
}
