package lab_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// peers starts a relay and returns both ends of one connection through it.
func peers(t *testing.T) (r *lab.Relay, client, server *net.TCPConn) {
	t.Helper()
	l := listen(t)
	r = labtest.Relay(t, l.Addr().String())
	client = dial(t, r.Addr())
	server = accept(t, l)
	return r, client, server
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func accept(t *testing.T, l net.Listener) *net.TCPConn {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func send(t *testing.T, conn net.Conn, s string) {
	t.Helper()
	if _, err := conn.Write([]byte(s)); err != nil {
		t.Errorf("send: %v", err)
	}
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("received %q (%v), want %q", got[:n], err, want)
	}
}

func TestRelayCarriesBothWays(t *testing.T) {
	t.Parallel()
	r, client, server := peers(t)
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	var wg sync.WaitGroup
	for _, pair := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		wg.Go(func() {
			send(t, pair[0], string(big))
			_ = pair[0].CloseWrite()
		})
		wg.Go(func() {
			got, err := io.ReadAll(pair[1])
			if err != nil || !bytes.Equal(got, big) {
				t.Errorf("received %d bytes (%v), want the %d sent", len(got), err, len(big))
			}
		})
	}
	wg.Wait()
	for _, d := range []lab.Direction{lab.ToServer, lab.ToClient} {
		if got := r.Bytes(d); got != int64(len(big)) {
			t.Errorf("delivered %s: %d bytes, want %d", d, got, len(big))
		}
	}
}

func TestRelayHalfCloseLeavesOtherDirection(t *testing.T) {
	t.Parallel()
	_, client, server := peers(t)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(server); err != nil || len(got) != 0 {
		t.Errorf("server read %q, %v; want the end", got, err)
	}
	send(t, server, "still here")
	expect(t, client, "still here")
}

func TestRelayDelayIsALowerBound(t *testing.T) {
	t.Parallel()
	r, client, server := peers(t)
	for _, delay := range []time.Duration{200 * time.Microsecond, 5 * time.Millisecond} {
		r.SetDelay(delay)
		for range 5 {
			start := time.Now()
			send(t, client, "ping")
			expect(t, server, "ping")
			send(t, server, "pong")
			expect(t, client, "pong")
			if took := time.Since(start); took < 2*delay {
				t.Errorf("round trip took %v, want at least %v", took, 2*delay)
			}
		}
	}
}

// Lost packets arrive later, by the time after which they are sent again; delayed ones arrive in
// order and whole.
func TestRelayLossAndJitterKeepBytesInOrder(t *testing.T) {
	t.Parallel()
	r, client, server := peers(t)
	r.SetLink(lab.ToServer, lab.Link{Loss: 1})
	began := time.Now()
	send(t, client, "lost")
	expect(t, server, "lost")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("a lost piece was there after %v", took)
	}
	r.SetLink(lab.ToServer, lab.Link{Jitter: 5 * time.Millisecond, Loss: 0.01})
	var all bytes.Buffer
	for i := range 100 {
		piece := string(rune('a' + i%26))
		all.WriteString(piece)
		send(t, client, piece)
	}
	expect(t, server, all.String())
}

func TestRelayDelayDoesNotLimitThroughput(t *testing.T) {
	t.Parallel()
	// With one message in flight at a time, 500 of them would take 500 s.
	r, client, server := peers(t)
	r.SetDelay(time.Second)
	const messages = 500
	for range messages {
		send(t, client, "m")
	}
	got := make([]byte, messages)
	if err := server.SetReadDeadline(time.Now().Add(labtest.Patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(server, got); err != nil {
		t.Errorf("received %d of %d messages: %v", n, messages, err)
	}
}

func TestRelayBandwidthIsShared(t *testing.T) {
	t.Parallel()
	l := listen(t)
	r := labtest.Relay(t, l.Addr().String())
	r.SetLink(lab.ToServer, lab.Link{BytesPerSecond: 1 << 20})
	const size = 64 << 10
	start := time.Now()
	var wg sync.WaitGroup
	for range 2 {
		client := dial(t, r.Addr())
		server := accept(t, l)
		wg.Go(func() {
			send(t, client, string(make([]byte, size)))
			_ = client.CloseWrite()
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, server) })
	}
	wg.Wait()
	if took, want := time.Since(start), 2*size*time.Second/(1<<20); took < want {
		t.Errorf("two connections took %v, want at least %v", took, want)
	}
}

func TestRelayCutResetsBothSides(t *testing.T) {
	t.Parallel()
	r, client, server := peers(t)
	send(t, client, "x")
	expect(t, server, "x")
	r.Cut()
	for name, conn := range map[string]net.Conn{"client": client, "server": server} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
}

func TestRelayCutAfterDeliversEveryByteBefore(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 5, 9, 10} {
		r, client, server := peers(t)
		r.CutAfter(lab.ToServer, int64(n))
		send(t, client, "0123456789")
		got, err := io.ReadAll(server)
		if string(got) != "0123456789"[:n] || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after %d: server got %q, %v; want %q and a reset", n, got, err, "0123456789"[:n])
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after %d: client %v, want a reset", n, err)
		}
	}
}

func TestRelayCutAfterStrikesOnce(t *testing.T) {
	t.Parallel()
	l := listen(t)
	r := labtest.Relay(t, l.Addr().String())
	r.CutAfter(lab.ToClient, 2)
	client := dial(t, r.Addr())
	send(t, accept(t, l), "abcd")
	if got, err := io.ReadAll(client); string(got) != "ab" || err == nil {
		t.Errorf("client got %q, %v; want ab and a reset", got, err)
	}
	client = dial(t, r.Addr())
	send(t, accept(t, l), "abcd")
	expect(t, client, "abcd")
	r.CutAfter(lab.ToClient, 1)
	r.CutAfter(lab.ToClient, -1) // taken back
	client = dial(t, r.Addr())
	send(t, accept(t, l), "abcd")
	expect(t, client, "abcd")
}

func TestRelayStallHoldsOneDirectionUntilHeal(t *testing.T) {
	t.Parallel()
	r, client, server := peers(t)
	r.Stall(lab.ToServer)
	send(t, client, "held")
	send(t, server, "through")
	expect(t, client, "through")
	if got := r.Bytes(lab.ToServer); got != 0 {
		t.Errorf("delivered %d bytes through a stalled direction", got)
	}
	r.Heal()
	expect(t, server, "held")
}

func TestRelayPartitionHoldsNewConnections(t *testing.T) {
	t.Parallel()
	l := listen(t)
	r := labtest.Relay(t, l.Addr().String())
	r.Stall()
	client := dial(t, r.Addr()) // taken, and hangs
	send(t, client, "late")
	r.Heal()
	expect(t, accept(t, l), "late")
}

func TestRelayRefuse(t *testing.T) {
	t.Parallel()
	l := listen(t)
	r := labtest.Relay(t, l.Addr().String())
	client := dial(t, r.Addr())
	server := accept(t, l)
	if err := r.Refuse(true); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", r.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = conn.Close()
		}
		t.Errorf("dial: %v, want it refused", err)
	}
	send(t, client, "x") // what is open stays open
	expect(t, server, "x")
	if err := r.Refuse(false); err != nil {
		t.Fatal(err)
	}
	client = dial(t, r.Addr())
	send(t, accept(t, l), "again")
	expect(t, client, "again")
}

func TestRelayToNobodyResets(t *testing.T) {
	t.Parallel()
	client, err := net.Dial("tcp", labtest.Relay(t, labtest.Addrs(t, 1)[0]).Addr())
	if err == nil { // the reset may come before Dial has looked, or after
		_, err = client.Read(make([]byte, 1))
		_ = client.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("through a relay without a target: %v, want a reset", err)
	}
}

func TestRelayToUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := dial(t, labtest.Relay(t, path).Addr())
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	send(t, client, "x")
	expect(t, server, "x")
}

func TestRelayCarriesPostgres(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	r := labtest.Relay(t, p.Addr())
	conn := connect(t, "postgres://postgres@"+r.Addr()+"/postgres?sslmode=disable")
	if got := query[int](t, conn, "SELECT 5"); got != 5 {
		t.Errorf("got %d", got)
	}
	r.Cut()
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("session survived the cut")
	}
}

func BenchmarkRelayRoundTrip(b *testing.B) {
	for _, delay := range []time.Duration{0, 100 * time.Microsecond, 500 * time.Microsecond} {
		b.Run("delay="+delay.String(), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
			r := labtest.Relay(b, l.Addr().String())
			r.SetDelay(delay)
			conn, err := net.Dial("tcp", r.Addr())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			buf := make([]byte, 64)
			for b.Loop() {
				if _, err := conn.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(conn, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
