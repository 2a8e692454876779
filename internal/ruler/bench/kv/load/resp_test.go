package kvload

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

func TestRepliesAreParsed(t *testing.T) {
	for _, tt := range []struct {
		in   string
		kind byte
		text string
		null bool
	}{
		{"+OK\r\n", '+', "OK", false},
		{"-ERR no\r\n", '-', "ERR no", false},
		{":42\r\n", ':', "42", false},
		{"$3\r\na\r\n\r\n", '$', "a\r\n", false},
		{"$0\r\n\r\n", '$', "", false},
		{"$-1\r\n", '$', "", true},
		{"_\r\n", '_', "", true},
		{"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", '*', "", false},
		{"%1\r\n+a\r\n+b\r\n", '%', "", false},
	} {
		r, n, err := parseReply([]byte(tt.in + "+next"))
		if err != nil || n != len(tt.in) || r.kind != tt.kind || string(r.text) != tt.text || r.null != tt.null {
			t.Errorf("%q: %+v, %d bytes, %v", tt.in, r, n, err)
		}
		for i := range tt.in {
			if _, _, err := parseReply([]byte(tt.in[:i])); !errors.Is(err, errIncomplete) {
				t.Errorf("%q: %v, want that more is needed", tt.in[:i], err)
			}
		}
	}
	for _, in := range []string{"\n", "OK\r\n", "+OK\n", "$x\r\n", "$-2\r\n", "$99999999999\r\n", "$1\r\nabc\r\n", "*1\r\n?\r\n", strings.Repeat("*1\r\n", 20) + ":1\r\n"} {
		if _, _, err := parseReply([]byte(in)); !errors.Is(err, errProtocol) {
			t.Errorf("%q: error %v", in, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	for _, s := range []string{"+OK\r\n", "$3\r\nabc\r\n", "*2\r\n:1\r\n$-1\r\n", "%1\r\n+a\r\n_\r\n", "*-1\r\n", "$10\r\nabc"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, n, err := parseReply(b)
		if err != nil {
			return
		}
		if n < 1 || n > len(b) {
			t.Fatalf("a reply of %d bytes in %d", n, len(b))
		}
		if _, again, err := parseReply(b[:n]); err != nil || again != n {
			t.Fatalf("the same reply alone: %d bytes, %v", again, err)
		}
	})
}

// A real server, 8 sessions of 15: everything that is read is right.
func TestRedisIsDriven(t *testing.T) {
	t.Parallel()
	r := labtest.Redis(t, lab.BrokerConfig{Durability: lab.Fast})
	d := &RESP{Addrs: []string{r.Addr()}}
	w := Workload{Keys: 500, WritePercent: 30, Skew: 0.9, OwnEvery: 8}
	if err := Fill(t.Context(), d, w.Values()); err != nil {
		t.Fatal(err)
	}
	o, err := Run(t.Context(), Config{Driver: d, Streams: 8, Pendings: 15, Count: 20_000, Workload: w})
	if err != nil {
		t.Fatal(err)
	}
	s := o.Sample
	if s.Ops != 20_000 || s.Errors != nil || s.Invalid != nil || kvs.Of(s.Parts).Checked < 500 {
		t.Errorf("%d operations, errors %v, invalid %q, checked %d", s.Ops, s.Errors, s.Invalid, kvs.Of(s.Parts).Checked)
	}
	// The streams' own keys do not exist before the streams write them; all others do.
	if kvs.Of(s.Parts).Missed != 0 {
		t.Errorf("%d reads found nothing", kvs.Of(s.Parts).Missed)
	}
	t.Logf("%.0f operations a second, client %.1f us of processor time each", float64(s.Ops)/s.Seconds, 1e6*s.Processes["client"].CPUSeconds()/float64(s.Ops))
}

// respServer answers each command line by line with what reply says, as a server
// that knows levels.
func respServer(t *testing.T, reply func(args []string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					args, err := readRequest(in)
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, reply(args)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// readRequest reads an array of strings, with the parser of replies.
func readRequest(in *bufio.Reader) ([]string, error) {
	var b []byte
	for {
		c, err := in.ReadByte()
		if err != nil {
			return nil, err
		}
		b = append(b, c)
		r, _, err := parseReply(b)
		if errors.Is(err, errIncomplete) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var args []string
		for _, item := range r.items {
			args = append(args, string(item.text))
		}
		return args, nil
	}
}

func TestLevelsAreSwitchedOnlyWhenTheyChange(t *testing.T) {
	seen := make(chan string, 100)
	addr := respServer(t, func(args []string) string {
		seen <- strings.Join(args[:2], " ")
		if args[0] == "GET" {
			return "$-1\r\n"
		}
		return "+OK\r\n"
	})
	d := &RESP{Addrs: []string{addr}, Levels: true}
	c, err := d.Open(t.Context(), 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, class := range []Class{StrongRead, WeakRead, WeakWrite, StrongWrite} {
		c.Issue(i, &Op{Class: class, Key: "k", Value: []byte("v")})
	}
	var ended []int
	for len(ended) < 4 {
		if err := c.Poll(func(slot int, a Answer) {
			if a.Err != nil || a.Found != (slot >= 2) { // the answer to a SET is a text
				t.Errorf("slot %d: %+v", slot, a)
			}
			ended = append(ended, slot)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"GET k", "WEIR.LEVEL session", "GET k", "SET k", "WEIR.LEVEL strong", "SET k"} {
		if got := <-seen; got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
}

func TestTheLeaderIsFound(t *testing.T) {
	role := func(name string) string {
		return respServer(t, func([]string) string {
			return "*1\r\n$" + map[string]string{"master": "6", "slave": "5"}[name] + "\r\n" + name + "\r\n"
		})
	}
	follower, leader := role("slave"), role("master")
	d := &RESP{Addrs: []string{follower, leader}}
	if at, err := d.findLeader(t.Context()); at != leader || err != nil {
		t.Errorf("the leader is %s, %v; want %s", at, err, leader)
	}
	// An election is on while the nodes are asked for the first time.
	var asked atomic.Int64
	elected := respServer(t, func([]string) string {
		if asked.Add(1) == 1 {
			return "*1\r\n$5\r\nslave\r\n"
		}
		return "*1\r\n$6\r\nmaster\r\n"
	})
	d = &RESP{Addrs: []string{follower, elected}}
	if at, err := d.findLeader(t.Context()); at != elected || err != nil {
		t.Errorf("the leader is %s, %v; want %s, which was elected later", at, err, elected)
	}
	d = &RESP{Addrs: []string{follower, follower}, patience: time.Nanosecond}
	if _, err := d.Open(t.Context(), 0, 1); err == nil {
		t.Error("no node leads, and nothing is said")
	}
	if c, err := (&RESP{Addrs: []string{follower, leader}, Place: Spread}).Open(t.Context(), 3, 1); err != nil || c.(*respClient).conn.RemoteAddr().String() != leader {
		t.Errorf("stream 3 of two nodes: %v, want it at the second", err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestALostConnectionEndsTheRun(t *testing.T) {
	n := 0
	addr := respServer(t, func([]string) string {
		if n++; n > 10 {
			return "nonsense\r\n"
		}
		return "$-1\r\n"
	})
	_, err := Run(t.Context(), Config{Driver: &RESP{Addrs: []string{addr}}, Duration: time.Minute, Workload: Workload{Keys: 5, OwnEvery: -1}})
	if !errors.Is(err, errProtocol) {
		t.Errorf("error %v", err)
	}
	silent := respServer(t, func([]string) string { return "" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, Config{Driver: &RESP{Addrs: []string{silent}}, Duration: time.Minute, Workload: Workload{Keys: 5}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v of a run that was ended", err)
	}
}
