package mysql_test

import (
	"net"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// COM_DROP_DB and COM_CREATE_DB, by which old clients drop and make databases, empty the
// cache as DROP DATABASE does. MariaDB 10.11 knows them no more: what stands before it here
// does them as an old server does.
func TestCommandsThatDropDatabasesEmptyTheCache(t *testing.T) {
	old := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		go passPackets(client, be, func(seq byte, payload []byte) []byte {
			texts := map[byte]string{mywire.ComDropDB: "DROP DATABASE ", mywire.ComCreateDB: "CREATE DATABASE "}
			if seq == 0 && len(payload) > 0 && texts[payload[0]] != "" {
				return append([]byte{mywire.ComQuery}, texts[payload[0]]+string(payload[1:])...)
			}
			return payload
		})
		go passPackets(be, client, func(_ byte, payload []byte) []byte { return payload })
	})
	w := startCache(t, func(c *mysql.Config) { c.MySQL.Address = old })
	c := w.dial(nil)
	for _, cmd := range []byte{mywire.ComDropDB, mywire.ComCreateDB} {
		name := w.db + "x"
		if cmd == mywire.ComDropDB {
			sqlOn(t, server(t), "CREATE DATABASE "+name)
		}
		const cached = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 2"
		eventually(t, "the answer is kept", func() bool {
			before := w.cached().Hits
			c.one(cached)
			return w.cached().Hits > before
		})
		w.changes("changed by " + string('a'+rune(cmd)))
		if r := c.try(mywire.AppendCommand(nil, cmd, name)); r.err != nil || r.lost != nil {
			t.Fatalf("command %d: %v %v", cmd, r.err, r.lost)
		}
		if got := c.one(cached); got != "changed by "+string('a'+rune(cmd)) {
			t.Errorf("after command %d the cache answers %q", cmd, got)
		}
	}
	sqlOn(t, server(t), "DROP DATABASE "+w.db+"x")
}

// COM_REFRESH of the accounts is FLUSH PRIVILEGES.
func TestCommandThatReadsAccountsRenewsSessions(t *testing.T) {
	t.Parallel()
	own := ownServer(t)
	secret, err := mywire.ParseSecret("some")
	if err != nil {
		t.Fatal(err)
	}
	sqlOn(t, own, "CREATE USER some@'%' IDENTIFIED BY 'some'", "GRANT SELECT ON *.* TO some@'%'")
	w := startFor(t, own, databaseOn(t, own, "CREATE TABLE n (i INT)"), func(c *mysql.Config) { c.Users = []mysql.User{{Name: "some", Secret: secret}} })
	as := func(c *mywire.ConnectConfig) { c.User, c.Password = "some", "some" }
	w.dial(as).one("SELECT COUNT(*) FROM n")
	root := w.dial(nil)
	root.must("DO 1")
	before := w.poolOf("some").Opened
	if r := root.try(mywire.AppendCommand(nil, mywire.ComRefresh, "\x01")); r.err != nil || r.lost != nil {
		t.Fatal(r.err, r.lost)
	}
	c := w.dial(as)
	eventually(t, "the connections are new", func() bool {
		c.one("SELECT COUNT(*) FROM n")
		return w.poolOf("some").Opened > before
	})
}
