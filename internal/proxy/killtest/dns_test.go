package killtest_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// A nameServer answers every question for addresses with the same ones.
type nameServer struct {
	conn net.PacketConn

	mu    sync.Mutex
	addrs []netip.Addr // guarded by mu
	asked int          // guarded by mu
}

func (n *nameServer) set(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs = nil
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
}

func (n *nameServer) questions() int { n.mu.Lock(); defer n.mu.Unlock(); return n.asked }

func (n *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := n.answer(buf[:size]); answer != nil {
			_, _ = n.conn.WriteTo(answer, from) // it asks again
		}
	}
}

// answer makes a response to a question of one name: see RFC 1035, 4.1.
func (n *nameServer) answer(q []byte) []byte {
	const head, typeA, ttl = 12, 1, 1
	end := head
	for end < len(q) && q[end] != 0 {
		end += int(q[end]) + 1
	}
	if end += 1 + 4; end > len(q) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := append([]byte(nil), q[:end]...)
	binary.BigEndian.PutUint16(out[2:], 0x8580) // a response, authoritative, recursion desired and there
	count := 0
	if binary.BigEndian.Uint16(q[end-4:]) == typeA {
		n.asked++
		for _, a := range n.addrs {
			ip := a.As4()
			out = append(out, 0xc0, head, 0, typeA, 0, 1, 0, 0, 0, ttl, 0, 4)
			out = append(out, ip[:]...)
			count++
		}
	}
	binary.BigEndian.PutUint16(out[6:], uint16(count))
	binary.BigEndian.PutUint32(out[8:], 0) // what an EDNS question has more is not repeated
	return out
}

// startNameServer serves on port 53 of a loopback address that is probably unused.
func startNameServer(t *testing.T) (n *nameServer, address string) {
	t.Helper()
	for last := 2; last < 250; last++ {
		address = fmt.Sprintf("127.53.%d.%d", os.Getpid()%250, last)
		conn, err := net.ListenPacket("udp4", net.JoinHostPort(address, "53"))
		if err != nil {
			continue
		}
		n = &nameServer{conn: conn}
		go n.serve()
		t.Cleanup(func() { _ = conn.Close() })
		return n, address
	}
	t.Fatal("no loopback address has its port 53 free")
	return nil, ""
}

// door passes the connections to an address on to another, until it is closed: a server
// that has moved house.
func door(t *testing.T, address, target string) (closeDoor func()) {
	t.Helper()
	ln, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]struct{}{}
	closed := false
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp4", target)
			mu.Lock()
			if err != nil || closed {
				_ = near.Close()
				mu.Unlock()
				continue
			}
			open[near], open[far] = struct{}{}, struct{}{}
			mu.Unlock()
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // either side's end ends both
					_, _ = near.Close(), far.Close()
				}()
			}
		}
	}()
	closeDoor = func() {
		_ = ln.Close()
		mu.Lock()
		defer mu.Unlock()
		closed = true
		for c := range open {
			_ = c.Close()
		}
	}
	t.Cleanup(closeDoor)
	return closeDoor
}

// TestNameMoves gives weir its server by one name, from a real name server, while clients write.
// The name has two addresses, of a primary and its standby, which is promoted when the primary
// dies. Then it gets another address of the same server, and the former one is closed. Each
// acknowledged write must exist once, and no connection attempt may fail.
func TestNameMoves(t *testing.T) {
	testkit.Long(t, "starts standbys and promotes one")
	if os.Getuid() != 0 {
		t.Skip("needs root: to listen on port 53, and to give weir an /etc/resolv.conf of its own")
	}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	r := replications["postgres"]
	ports := labtest.Addrs(t, 5)
	port := func(i int) string { _, p, _ := net.SplitHostPort(ports[i]); return p }
	number := func(i int) int { n, _ := strconv.Atoi(port(i)); return n }
	primary := r.first(t, number(0))
	standby, err := r.follow(ctx, t, primary, number(1))
	if err != nil {
		t.Fatal(err)
	}
	names, at := startNameServer(t)
	const first, second, third = "127.0.53.1", "127.0.53.2", "127.0.53.3"
	names.set(first, second)
	door(t, net.JoinHostPort(first, port(2)), primary.Addr())
	closeSecond := door(t, net.JoinHostPort(second, port(2)), standby.Addr())
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+at+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := &weir{path: "unshare", admin: ports[3], lanes: map[string]int{}, args: []string{
		"--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolv,
		program.Path(t), "proxy", "--trust-loopback", "--pool-size", "8", "--failover-timeout", "2m", "--admin", ports[3],
		"--postgres", "postgres://postgres@db.weir.test:" + port(2) + "/postgres?sslmode=disable&target_session_attrs=read-write",
		"--listen-postgres", ports[4],
	}}
	if err := w.launch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			t.Logf("weir:\n%s", w.log.String())
		}
	})
	if err := onPostgres(ctx, primary, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE TABLE p0 (id bigint NOT NULL, part int NOT NULL, body text NOT NULL)")
		return err
	}); err != nil {
		t.Fatal(err)
	}

	way := &road{name: "weir", dsn: "postgres://postgres@" + ports[4] + "/postgres?sslmode=disable", ledger: &ledger{}, classes: map[string]*tally{}}
	testkit.Eventually(t, "weir takes clients", func() bool {
		conn, err := pgx.Connect(ctx, way.dsn)
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	})
	stop := make(chan struct{})
	var working sync.WaitGroup
	for _, class := range []string{hinted, transactions, reads} {
		y := &tally{}
		y.reset()
		way.classes[class] = y
		for range clientsOfClass {
			working.Go(func() { way.work(ctx, class, y, stop) })
		}
	}
	goesOn := func(when string) {
		t.Helper()
		for class, y := range way.classes {
			before := y.count()
			testkit.Eventually(t, class+" "+when, func() bool { return y.count() >= before+50 })
		}
	}
	goesOn("on the first server")
	primary.Kill()
	if err := r.promote(ctx, standby); err != nil {
		t.Fatal(err)
	}
	if err := onPostgres(ctx, standby, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = ''")
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	goesOn("on the other address of the name")
	door(t, net.JoinHostPort(third, port(2)), standby.Addr())
	names.set(third)
	asked := names.questions()
	testkit.Eventually(t, "the name is looked up", func() bool { return names.questions() > asked })
	closeSecond()
	goesOn("on the new address of the name")
	close(stop)
	working.Wait()
	for class, y := range way.classes {
		t.Logf("%s: longest gap %v, errors %v", class, y.gap, y.errs)
		if n := y.errs["25006"]; y.refused > 0 || n > 0 {
			t.Errorf("%s: %d attempts to connect failed, %d statements met a standby", class, y.refused, n)
		}
	}
	if err := onPostgres(ctx, standby, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT id, part, body FROM p0")
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f record, err error) {
			return f, row.Scan(&f.id, &f.part, &f.body)
		})
		if err != nil {
			return err
		}
		v := way.ledger.verdict(found)
		t.Log(&v)
		if v.breaches() > 0 {
			t.Errorf("%s", v.examples)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
