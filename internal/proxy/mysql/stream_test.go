package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A message that is too long to be read whole finds the LAST_INSERT_ID() of its session,
// not that of the connection's last user, and leaves its own.
func TestMessagesPassedOnUnreadFindTheirID(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE ids (id BIGINT AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE seen (id BIGINT, pad LONGBLOB)"), twoBackends)
	w.GatherAtMost(t.Context(), 100<<10)
	others := w.dials(2)
	pad := strings.Repeat("x", 1<<20)
	for i := range 6 {
		c := w.dial(nil)
		kind, own := mywire.ComQuery, uint64(0)
		var p prepared
		if i%2 == 1 {
			kind, p = mywire.ComStmtExecute, c.prepare("INSERT INTO seen VALUES (LAST_INSERT_ID(), ?)")
		}
		own = c.must("INSERT INTO ids VALUES ()").LastInsertID
		for _, other := range others { // on either connection
			other.must("BEGIN")
			other.must("INSERT INTO ids VALUES ()")
		}
		for _, other := range others {
			other.must("COMMIT")
		}
		message := c.query("INSERT INTO seen VALUES (LAST_INSERT_ID(), '" + pad + "')")
		if kind == mywire.ComStmtExecute {
			message = mywire.AppendExecute(nil, c.Caps, p.id, 0, []byte{0}, []byte{mywire.TypeBlob, 0}, mywire.AppendLenencString(nil, pad))
		}
		if r := c.try(message); r.err != nil || r.lost != nil {
			t.Fatalf("%s %v", r.text, r.lost)
		}
		if got := others[0].one("SELECT id FROM seen"); got != fmt.Sprint(own) {
			t.Errorf("command %d has seen the id %s, want %d", kind, got, own)
		}
		if got := c.one("SELECT LAST_INSERT_ID()"); got != fmt.Sprint(own) {
			t.Errorf("LAST_INSERT_ID() after it is %s, want %d", got, own)
		}
		others[0].must("DELETE FROM seen")
		next := c.must("INSERT INTO ids VALUES ()").LastInsertID
		if got := c.one("SELECT LAST_INSERT_ID()"); got != fmt.Sprint(next) {
			t.Errorf("LAST_INSERT_ID() is %s, want %d", got, next)
		}
		_ = c.Close()
	}
}
