package mysql_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	gosync "sync"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestOldServersGetOneCommandAtATime: of a server that is not known to take commands
// before it has answered those before, weir awaits each answer, also to its own questions.
func TestOldServersGetOneCommandAtATime(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	cfg := serverConfig()
	cfg.Settings = map[string]string{"version": "10.1.48-MariaDB"}
	old := labtest.MariaDB(t, cfg)
	db := databaseOn(t, old, "CREATE TABLE n (id INT AUTO_INCREMENT PRIMARY KEY, i INT)")
	var mu gosync.Mutex
	hasty := map[string]bool{} // guarded by mu
	w := startFor(t, old, db, func(c *mysql.Config) {
		c.PoolSize = 2
		c.MySQL.Address = proxytest.Gateway(t, old.Addr(), func(client, be net.Conn) {
			watchPace(client, be, func(what string) {
				mu.Lock()
				defer mu.Unlock()
				hasty[what] = true
			})
		})
	})
	a, b := w.dial(nil), w.dial(nil)
	for i := range 5 {
		a.must("SET time_zone = '+05:00', sql_mode = 'ANSI_QUOTES'")
		a.must(fmt.Sprintf("INSERT INTO n (i) VALUES (%d)", i))
		b.must("/* batch */ INSERT INTO n (i) VALUES (1)")
		if got := a.one("SELECT @@time_zone"); got != "+05:00" {
			t.Errorf("time_zone %s", got)
		}
		b.one("SELECT LAST_INSERT_ID() > 0")
		p := a.prepare("SELECT COUNT(*) FROM n WHERE i < ?")
		if r := a.try(p.execute(int64(i))); r.err != nil || r.lost != nil {
			t.Fatal(r.err, r.lost)
		}
		b.must("BEGIN")
		b.must("SET @a = 1")
		b.must("ROLLBACK")
		if r := b.try(mywire.AppendResetConnection(nil)); r.err != nil || r.lost != nil {
			t.Fatal(r.err, r.lost)
		}
		b.must("DO 1")
		b.must("USE " + db)
		c := w.dial(nil)
		c.must("SET @left = 1")
		_ = c.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	for what := range hasty {
		t.Error(what)
	}
}

// passPackets copies packets from one connection to another, as see returns their
// payloads.
func passPackets(from, to net.Conn, see func(seq byte, payload []byte) []byte) {
	defer to.Close()
	r := bufio.NewReader(from)
	for {
		head := make([]byte, mywire.HeaderLen)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		n, seq, _ := mywire.Peek(head)
		p := make([]byte, n)
		if _, err := io.ReadFull(r, p); err != nil {
			return
		}
		if _, err := to.Write(mywire.AppendPacket(nil, seq, see(seq, p))); err != nil {
			return
		}
	}
}

// watchPace copies between weir and a server, and reports each command that comes before
// the one before it is answered.
func watchPace(client, be net.Conn, hasty func(what string)) {
	var mu gosync.Mutex
	var answer mywire.Answer // guarded by mu
	var caps mywire.Caps     // guarded by mu
	busy, in := "", false    // guarded by mu: what is to be answered; whether the login is over
	go passPackets(client, be, func(seq byte, payload []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if !in {
			if r, err := mywire.ParseResponse(payload); err == nil && caps == 0 {
				caps = r.Caps
			}
			return payload
		}
		what := fmt.Sprintf("%.100q", payload)
		switch {
		case seq != 0:
		case payload[0] == mywire.ComStmtClose || payload[0] == mywire.ComQuit:
		case busy != "":
			hasty(what + " is sent before " + busy + " is answered")
		default:
			busy = what
			answer.Reset(payload[0], caps)
		}
		return payload
	})
	go passPackets(be, client, func(seq byte, payload []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if !in {
			in = seq > 0 && payload[0] == 0
			return payload
		}
		if _, event, err := answer.Feed(mywire.AppendPacket(nil, seq, payload)); err != nil || event == mywire.EventDone {
			busy = ""
		}
		return payload
	})
}
