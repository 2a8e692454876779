package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// echoClient asks for a line with the operation's number, and wants it back. The
// answer "no" is a refusal, "maybe" leaves it open.
type echoClient struct {
	want, got []byte
}

func (c *echoClient) Ask(b []byte, n int64) []byte {
	c.want = strconv.AppendInt(c.want[:0], n, 10)
	return append(append(b, c.want...), '\n')
}

func (c *echoClient) Take(b []byte) (int, bool, error) {
	line, _, ok := bytes.Cut(b, []byte{'\n'})
	if !ok {
		return 0, false, nil
	}
	if bytes.Equal(line, []byte("nonsense")) {
		return 0, false, errors.New("nonsense")
	}
	c.got = append(c.got[:0], line...)
	return len(line) + 1, true, nil
}

func (c *echoClient) Judge() *Wrong {
	switch string(c.got) {
	case string(c.want):
		return nil
	case "no":
		return &Wrong{Class: "no", Text: "said no", Effect: Refused}
	case "maybe":
		return &Wrong{Class: "maybe", Text: "said maybe", Effect: Unknown}
	default:
		return &Wrong{Class: "wrong", Text: "said " + string(c.got), Effect: Claimed}
	}
}

func (*echoClient) Quit() []byte { return []byte("bye\n") }

// echoServer answers each line with what reply makes of it, byte by byte where
// that has a "|": what follows comes in a packet of its own. An answer of "" ends
// the connection. It returns how to reach it, and the farewells that it hears.
func echoServer(t *testing.T, reply func(line string) string) (Dial, <-chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	byes := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serveEcho(conn, reply, byes)
		}
	}()
	return func(ctx context.Context, _ int) (net.Conn, Client, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		return conn, &echoClient{}, err
	}, byes
}

func serveEcho(conn net.Conn, reply func(string) string, byes chan<- struct{}) {
	defer conn.Close()
	buf := make([]byte, 256)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		line := strings.TrimSuffix(string(buf[:n]), "\n")
		if line == "bye" {
			byes <- struct{}{}
			return
		}
		answer := reply(line)
		if answer == "" {
			return
		}
		for _, part := range strings.SplitAfter(answer, "|") {
			if _, err := io.WriteString(conn, strings.TrimSuffix(part, "|")); err != nil {
				return
			}
		}
	}
}

func TestRunCountsWhatIsAnswered(t *testing.T) {
	dial, byes := echoServer(t, func(line string) string { return line[:1] + "|" + line[1:] + "\n" })
	c := Config{DSN: "-", Workload: Insert{}, Connections: 6, Threads: 3, Count: 500}
	o, err := Run(t.Context(), c, dial)
	if err != nil {
		t.Fatal(err)
	}
	s := o.Sample
	if o.TotalOps != 500 || s.Ops != 500 || o.Ledger.Sent() != 500 || o.Ledger.Unknown() != 0 || len(s.Errors) > 0 {
		t.Errorf("%+v, %d in all, %d sent, %q", s, o.TotalOps, o.Ledger.Sent(), o.WrongExamples)
	}
	if s.Latency.Count() != 500 || s.Seconds <= 0 || s.InFlight != 6 || len(o.Clients) != 6 {
		t.Errorf("%d latencies in %v s, %d in flight", s.Latency.Count(), s.Seconds, s.InFlight)
	}
	if u, ok := s.Processes[bench.RoleClient]; !ok || u.RSSBytes == 0 {
		t.Errorf("usage of the generator: %+v", u)
	}
	for range 6 {
		<-byes
	}
}

func TestRunSortsWrongAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		answers          map[string]string // by line; others are echoed
		errors           map[string]int64
		refused, unknown int64
	}{
		"right":            {},
		"a lie":            {answers: map[string]string{"3": "4\n"}, errors: map[string]int64{"wrong": 1}},
		"refused":          {answers: map[string]string{"3": "no\n"}, errors: map[string]int64{"no": 1}, refused: 1},
		"left open":        {answers: map[string]string{"3": "maybe\n"}, errors: map[string]int64{"maybe": 1}, unknown: 1},
		"nonsense":         {answers: map[string]string{"3": "nonsense\n"}, errors: map[string]int64{ClassLost: 1}, unknown: 1},
		"closed":           {answers: map[string]string{"3": ""}, errors: map[string]int64{ClassLost: 1}, unknown: 1},
		"two for one":      {answers: map[string]string{"3": "3\n4\n"}, errors: map[string]int64{ClassLost: 1}, unknown: 1},
		"more than it ask": {answers: map[string]string{"3": "3\nx"}, errors: map[string]int64{ClassLost: 1}, unknown: 1},
	} {
		t.Run(name, func(t *testing.T) {
			dial, _ := echoServer(t, func(line string) string {
				if a, ok := tc.answers[line]; ok {
					return a
				}
				return line + "\n"
			})
			o, err := Run(t.Context(), Config{DSN: "-", Workload: Insert{}, Count: 10}, dial)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(o.Sample.Errors) != fmt.Sprint(tc.errors) {
				t.Errorf("errors %v, want %v (%q)", o.Sample.Errors, tc.errors, o.WrongExamples)
			}
			if len(o.WrongExamples) != len(tc.errors) {
				t.Errorf("examples %q", o.WrongExamples)
			}
			if got := int64(len(o.Ledger.clients[0].refused)); got != tc.refused || o.Ledger.Unknown() != tc.unknown {
				t.Errorf("%d refused, %d unknown; want %d, %d", got, o.Ledger.Unknown(), tc.refused, tc.unknown)
			}
		})
	}
}

func TestRunGivesUpWhatIsNeverAnswered(t *testing.T) {
	stuck := make(chan struct{}, 2)
	dial, _ := echoServer(t, func(line string) string {
		if line == "5" {
			stuck <- struct{}{}
			return "|" // nothing, and the connection stays
		}
		return line + "\n"
	})
	waited := false
	o, err := Run(t.Context(), Config{
		DSN: "-", Workload: Insert{}, Connections: 2, Warmup: time.Nanosecond, Duration: time.Nanosecond, Drain: time.Nanosecond,
		Watch: map[string]func() (measure.Usage, error){"gate": func() (measure.Usage, error) {
			if !waited { // with the window's begin until both clients wait in vain
				waited = true
				<-stuck
				<-stuck
			}
			return measure.Usage{}, nil
		}},
	}, dial)
	if err != nil {
		t.Fatal(err)
	}
	if o.Ledger.Unknown() != 2 || o.Ledger.Sent() != 12 || o.TotalOps != 10 || o.Sample.Ops != 0 {
		t.Errorf("%d sent, %d answered, %d of them in the window, %d unknown", o.Ledger.Sent(), o.TotalOps, o.Sample.Ops, o.Ledger.Unknown())
	}
}

func TestRunFailsWithItsDialler(t *testing.T) {
	full := errors.New("too many clients")
	dial, _ := echoServer(t, func(line string) string { return line + "\n" })
	_, err := Run(t.Context(), Config{DSN: "-", Workload: Insert{}, Connections: 4, Count: 1}, func(ctx context.Context, id int) (net.Conn, Client, error) {
		if id == 2 {
			return nil, nil, full
		}
		return dial(ctx, id)
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), "client 2") {
		t.Errorf("error %v, want that of client 2", err)
	}
	left, right := net.Pipe()
	defer right.Close()
	_, err = Run(t.Context(), Config{DSN: "-", Workload: Insert{}, Count: 1}, func(context.Context, int) (net.Conn, Client, error) {
		return left, &echoClient{}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("error %v, want one that says why there is no socket", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	dial, _ := echoServer(t, func(line string) string { return line + "\n" })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Run(ctx, Config{
		DSN: "-", Workload: Insert{}, Connections: 2, Duration: time.Hour,
		Watch: map[string]func() (measure.Usage, error){"stop": func() (measure.Usage, error) {
			cancel()
			return measure.Usage{}, nil
		}},
	}, dial)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
}
