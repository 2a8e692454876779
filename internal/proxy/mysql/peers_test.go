package mysql_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestKillFindsItsWeir: KILL, KILL QUERY and COM_PROCESS_KILL of a client of another weir
// end what they name there, and are refused as they would be on one weir.
func TestKillFindsItsWeir(t *testing.T) {
	t.Parallel()
	db := database(t)
	var cfgs [2]mysql.Config
	var weirs [2]*weir
	for i := range weirs {
		weirs[i] = start(t, db, func(c *mysql.Config) {
			c.PeerID, c.PeerSecret = i+1, "between us"
			cfgs[i] = *c
		})
	}
	reload := func(i int, peers session.Peers, secret string) {
		t.Helper()
		cfgs[i].Peers, cfgs[i].PeerSecret = peers, secret
		if err := weirs[i].Reload(cfgs[i]); err != nil {
			t.Fatal(err)
		}
	}
	peers := session.Peers{1: weirs[0].Addr().String(), 2: weirs[1].Addr().String(), 3: "127.0.0.1:1"}
	reload(0, peers, "between us")
	reload(1, peers, "between us")
	name, password := account(t)
	sqlOn(t, server(t), "GRANT ALL ON "+db+".* TO '"+name+"'@'%'")
	as := func(c *mywire.ConnectConfig) { c.User, c.Password = name, password }

	direct := open(t, server(t).Addr(), "", nil)
	victim, killer := weirs[0].dial(nil), weirs[1].dial(nil)
	id := victim.Greeting.ConnectionID
	if id>>24 != 1<<6|1 {
		t.Fatalf("the number of a client of weir 1 is %#x", id)
	}
	sleep := func() <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := victim.Exec(ctxFor(t), "SELECT SLEEP(1000)")
			ended <- err
		}()
		eventually(t, "the server runs it", func() bool {
			var n int
			if err := direct.QueryRowContext(ctxFor(t), "SELECT count(*) FROM information_schema.processlist WHERE db = ? AND info LIKE 'SELECT SLEEP(1000)%'", db).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
		return ended
	}
	kill := func(c *wire, what string, id uint32) error {
		_, err := c.Exec(ctxFor(t), strings.Join([]string{"KILL", what, strconv.Itoa(int(id))}, " "))
		return err
	}

	ended := sleep()
	if err := kill(weirs[1].dial(as), "QUERY", id); code(err) != mywire.ErrKillDenied {
		t.Errorf("another user's KILL: %v", err)
	}
	if err := kill(killer, "QUERY", id+1000); code(err) != mywire.ErrNoSuchThread {
		t.Errorf("KILL of nobody: %v", err)
	}
	if err := kill(killer, "QUERY", 1<<30|3<<24|1); code(err) != mywire.ErrUnknown || !strings.Contains(err.Error(), "weir 3") {
		t.Errorf("KILL at a weir that is not there: %v", err)
	}
	if err := kill(killer, "QUERY", 1<<30|9<<24|1); code(err) != mywire.ErrNoSuchThread {
		t.Errorf("KILL at a weir that nobody has heard of: %v", err)
	}
	if weirs[0].pool().Active != 1 {
		t.Fatal("a KILL that was refused has ended the statement")
	}
	if err := kill(killer, "QUERY", id); err != nil {
		t.Errorf("KILL QUERY: %v", err)
	}
	if err := <-ended; err != nil && code(err) != mywire.ErrQueryInterrupted {
		t.Errorf("the victim was told: %v", err)
	}
	if got := victim.one("SELECT 7"); got != "7" {
		t.Errorf("after KILL QUERY the session says %q", got)
	}

	// By the command of the protocol, which ends the session.
	ended = sleep()
	killer.send(mywire.AppendCommand(nil, mywire.ComProcessKill, []byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}))
	if _, payload := killer.packet(); payload[0] != 0 {
		t.Errorf("COM_PROCESS_KILL: %x", payload)
	}
	if err := <-ended; err == nil {
		t.Error("the victim of COM_PROCESS_KILL goes on")
	}
	eventually(t, "it has left", func() bool { return weirs[0].pool().Clients == 0 })

	// A weir that has another secret is nobody, and neither is one without.
	other := weirs[0].dial(nil)
	reload(1, peers, "something else")
	if err := kill(killer, "", other.Greeting.ConnectionID); code(err) != mywire.ErrUnknown || !strings.Contains(err.Error(), "weir 1") {
		t.Errorf("KILL with a wrong secret: %v", err)
	}
	if got := other.one("SELECT 7"); got != "7" {
		t.Errorf("the session says %q", got)
	}
	for _, secret := range []string{"between us", ""} {
		con, err := weirs[0].tryDial(func(c *mywire.ConnectConfig) { c.User, c.Password, c.Database = "weir_peer", secret, "weir" })
		if (err == nil) != (secret != "") {
			t.Fatalf("the console as weir_peer with %q: %v", secret, err)
		}
		if err == nil {
			for _, command := range []string{"SHOW CLIENTS", "PAUSE", "PEER KILL QUERY 1 ADMIN 00", "PEER KILL ALL 1090519041 ADMIN 00"} {
				if _, err := con.Exec(ctxFor(t), command); code(err) != mywire.ErrSyntax {
					t.Errorf("%s: %v", command, err)
				}
			}
		}
	}
}
