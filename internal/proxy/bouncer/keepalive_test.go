package bouncer

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// Connections on both sides have what the file says of dead peers.
func TestSocketsHaveTheFilesKeepalive(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	relay := labtest.Relay(t, pg.Addr()) // which nobody else in this process connects to
	host, port, err := net.SplitHostPort(relay.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf("[databases]\nshop = host=%s port=%s dbname=postgres user=%s\n", host, port, pg.User())+general+
		"tcp_keepidle = 50\ntcp_keepintvl = 6\ntcp_keepcnt = 3\ntcp_user_timeout = 12500\n")
	conn := r.mustDial("user=app password=secret dbname=shop")
	if got := r.value(conn, "SELECT 1"); got != "1" {
		t.Fatal(got)
	}
	here := net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port))
	testkit.KeepaliveIs(t, map[string]func(local, peer string) bool{
		"client": func(local, _ string) bool { return local == here },
		"server": func(_, peer string) bool { return peer == relay.Addr() },
	}, 50, 6, 3, 12500)
}
