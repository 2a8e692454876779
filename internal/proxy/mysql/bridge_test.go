package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestEndsWithATLSClientThatDoesNotRead: weir ends, though a client with TLS has stopped
// reading in the middle of an answer and stays.
func TestEndsWithATLSClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.ClientTLS = serverTLS(t) })
	c := w.dial(as(bob, bobPassword, mywire.TLSRequired))
	c.send(mywire.AppendCommand(nil, mywire.ComQuery, "SELECT REPEAT('x', 1000000) FROM information_schema.COLUMNS LIMIT 200"))
	var sent uint64
	same := 0
	eventually(t, "the client takes no more", func() bool {
		was := sent
		if sent = w.poolOf(bob).Sent; sent != was {
			same = 0
		}
		same++
		return sent > 1<<20 && same > 10
	})
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}
