package replica

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/testkit"
)

// What a client asks for and does not read is bounded in bytes, at the leader and at a
// follower, whatever the level. When it reads, it gets all answers, in order, and none
// is of a later write.
func TestUnreadAnswersAreBounded(t *testing.T) {
	testkit.Long(t, "has clients ask for 8 MB each")
	const limit, size, reads = 1 << 20, 200 << 10, 40 // more than sockets hold
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.Front.MaxInFlightBytes = limit })
	value := func(fill string) string { return strings.Repeat(fill, size) }
	for _, tt := range []struct {
		level string
		at    uint64
	}{{"strong", r.leader()}, {"session", r.follower()}, {"local", r.follower()}} {
		t.Run(tt.level, func(t *testing.T) {
			level, at := tt.level, tt.at
			r.set(at, "large", value("a"))
			dialer := net.Dialer{Timeout: patience}
			conn, err := dialer.DialContext(t.Context(), "tcp", r.nodes[at].RedisAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := errors.Join(conn.(*net.TCPConn).SetReadBuffer(size), conn.SetDeadline(time.Now().Add(patience))); err != nil {
				t.Fatal(err)
			}
			var asked, want bytes.Buffer
			ask := func(command string, answer ...string) {
				asked.WriteString(command + "\r\n")
				want.WriteString(strings.Join(answer, "\r\n") + "\r\n")
			}
			bulk := func(v string) string { return fmt.Sprintf("$%d\r\n%s", len(v), v) }
			ask("WEIR.LEVEL "+level, "+OK")
			for range reads {
				ask("GET large", bulk(value("a")))
			}
			ask("MGET large missing", "*2", bulk(value("a")), "$-1")
			ask("WEIR.LEVEL strong", "+OK")
			ask("GETEX large EX 1000", bulk(value("a")))
			ask("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n"+bulk(value("b")), "+OK")
			for range reads {
				ask("GET large", bulk(value("b")))
			}
			go func() { _, _ = conn.Write(asked.Bytes()) }() // what is missing is not answered

			node := r.nodes[at]
			var refused *line
			testkit.Eventually(t, "an answer finds no room", func() bool {
				node.gateway.mu.Lock()
				lines := slices.Collect(maps.Values(node.gateway.lines))
				node.gateway.mu.Unlock()
				for _, l := range lines {
					l.mu.Lock()
					if len(l.again) > 0 {
						refused = l
					}
					l.mu.Unlock()
				}
				return refused != nil
			})
			testkit.Eventually(t, "no answer is under way", func() bool {
				refused.mu.Lock()
				defer refused.mu.Unlock()
				for i := range refused.entries {
					if e := &refused.entries[i]; e.reply != nil && !e.waits {
						return false
					}
				}
				refused.expire(node.gateway.clock() + 2*int64(patience)) // the client's time is its own
				return true
			})
			// One more is the answer that the client waits for first, and one GETEX's.
			if n := node.front.Counts().Unread; n > limit+2*(size+size/10) {
				t.Errorf("%d bytes wait for a client that does not read, and more than %d and two answers", n, limit)
			}
			in := bufio.NewReader(conn)
			for line := 0; want.Len() > 0; line++ {
				next, err := want.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(next))
				if _, err := io.ReadFull(in, got); err != nil {
					t.Fatalf("line %d of the answers: %v", line, err)
				}
				if !bytes.Equal(got, next) {
					t.Fatalf("line %d of the answers: %.40q, want %.40q", line, got, next)
				}
			}
		})
	}
}

// Reads behind a write that waits for one before it wait for the write: answers to them would
// fill the room that its own answer needs.
func TestReadsBehindAWriteThatWaits(t *testing.T) {
	const size, reads = 200 << 10, 12
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.Front.MaxInFlightBytes = 1 << 20 })
	at := r.follower()
	r.set(at, "large", strings.Repeat("a", size))
	for _, level := range []string{"strong", "session", "local"} {
		dialer := net.Dialer{Timeout: patience}
		conn, err := dialer.DialContext(t.Context(), "tcp", r.nodes[at].RedisAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		asked := "WEIR.LEVEL " + level + "\r\nGET large\r\nAPPEND large b\r\n" + strings.Repeat("GET large\r\n", reads) + "ECHO end\r\n"
		if _, err := conn.Write([]byte(asked)); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewScanner(conn)
		in.Buffer(nil, 2*size)
		for in.Scan() && in.Text() != "end" {
			continue
		}
		if in.Err() != nil || in.Text() != "end" {
			t.Errorf("level %s: not all is answered: %v", level, in.Err())
		}
	}
}
