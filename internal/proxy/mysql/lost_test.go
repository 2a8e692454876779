package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A client that has sent a statement of several packets is told of a lost connection with the
// number that its protocol expects behind them. The server dies.
func TestLostAnswerOfAMessageOfTwoPackets(t *testing.T) {
	for _, begin := range []string{"", "BEGIN"} { // with it, the client is disconnected, too
		cfg := serverConfig()
		cfg.Settings = map[string]string{"max_allowed_packet": "64M"}
		server := labtest.MariaDB(t, cfg)
		w := startFor(t, server, "", nil)
		client, other := w.dial(nil), dialAt(t, server.Addr(), "", nil)
		if begin != "" {
			client.one("SELECT 1")
			if r := client.try(client.query(begin)); r.err != nil || r.lost != nil {
				t.Fatal(r.err, r.lost)
			}
		}
		client.send(client.query("SELECT SLEEP(100), LENGTH('" + strings.Repeat("x", mywire.MaxPayload) + "')"))
		eventually(t, "the statement runs", func() bool {
			return other.one("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'") == "1"
		})
		server.Kill()
		seq, payload := client.packet()
		if seq != 2 || mywire.ErrorCode(payload) != mywire.ErrNetRead {
			t.Errorf("behind %q: packet %d is %.200q, want packet 2 with error %d", begin, seq, payload, mywire.ErrNetRead)
		}
	}
}
