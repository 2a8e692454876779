package sqlscan

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// A Clone of what was read of a text does not change when the text's bytes do.
func TestClone(t *testing.T) {
	for _, sql := range []string{
		"INSERT INTO t VALUES (1, 'a') RETURNING b",
		"/* batch:5 file:a.go line:7 tag:x ttl:3 nightly */ INSERT INTO t VALUES (1)",
		"select 1 /*traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/",
		"SET time_zone = 'UTC'", "SET LOCAL work_mem TO 5; RESET a.b; SET c.d = 'e'",
		"PREPARE a AS SELECT 1", "EXECUTE a; EXECUTE b; DEALLOCATE c", "",
		"SELECT '" + strings.Repeat("x", maxCut) + "'",
	} {
		buf := []byte(sql)
		var text Text
		text.Read(unsafe.String(unsafe.SliceData(buf), len(buf)))
		info := text.Scan()
		info, own := info.Clone(), text.Clone()
		clear(buf)
		text.Read("SELECT 1, 2, 3, 4, 5, 6, 7, 8, 9")
		if diff := cmp.Diff(Scan(sql), info); diff != "" {
			t.Errorf("%s (-want +got)\n%s", clip(sql), diff)
		}
		if diff := cmp.Diff(Scan(sql), own.Scan()); diff != "" || own.String() != sql || own.Fingerprint() != Fingerprint(sql) {
			t.Errorf("%s: its Text (-want +got)\n%s", clip(sql), diff)
		}
	}
}
