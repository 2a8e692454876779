package killtest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestClientsThatNeverRead has 160 clients ask for 192 MB together, and read
// nothing of it. weir's memory stays within a fraction of that, and who reads is
// answered. WEIR_UNREAD_CLIENTS is how many they are; each has a part of the memory.
func TestClientsThatNeverRead(t *testing.T) {
	testkit.Long(t, "has many clients")
	const (
		texts = 20
		each  = 512 << 10 // bytes that weir may grow by for each; 380 kB were measured, with the race detector
	)
	t.Setenv("GOGC", "100") // as users run it, whatever the tests have
	count := 160
	if text := os.Getenv("WEIR_UNREAD_CLIENTS"); text != "" {
		if _, err := fmt.Sscan(text, &count); err != nil {
			t.Fatalf("WEIR_UNREAD_CLIENTS=%s: %v", text, err)
		}
	}
	most := count * each
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			defer cancel()
			server := e.start(t)
			addrs := labtest.Addrs(t, 2)
			w := &weir{
				path: program.Path(t), lanes: map[string]int{},
				args: append([]string{"proxy", "--trust-loopback", "--admin", addrs[1], "--client-write-timeout", "1s", "--max-clients", strconv.Itoa(count + 100)}, e.flags(server, server.Addr(), addrs[0])...),
			}
			if err := w.launch(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.kill)
			var reader session
			testkit.Await(t, func() (ok bool) {
				var err error
				reader, err = e.dial(ctx, addrs[0], true)
				return err == nil
			}, w.log.String)
			defer reader.close()
			asks := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
				defer cancel()
				return reader.rows(ctx, func(scan func(...any) error) error { var n int; return scan(&n) }, "SELECT 1")
			}
			if err := asks(); err != nil {
				t.Fatal(err)
			}
			before := resident(t, w.cmd.Process.Pid)

			var mu sync.Mutex
			var crowd []net.Conn
			defer func() {
				for _, c := range crowd {
					_ = c.Close()
				}
			}()
			var logins sync.WaitGroup
			for range 20 {
				logins.Go(func() {
					for range count / 20 {
						conn, question, err := raw(ctx, server, addrs[0])
						if err != nil {
							t.Errorf("log in: %v", err)
							return
						}
						mu.Lock()
						crowd = append(crowd, conn)
						mu.Unlock()
						// A client that weir has stopped reading from takes no more either.
						_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
						for range texts {
							if _, err := conn.Write(question); err != nil {
								break
							}
						}
					}
				})
			}
			logins.Wait()
			highest := resident(t, w.cmd.Process.Pid)
			for range 20 {
				if err := asks(); err != nil {
					t.Fatalf("a client that reads: %v\n%s", err, w.log.String())
				}
				highest = max(highest, resident(t, w.cmd.Process.Pid))
				time.Sleep(100 * time.Millisecond) // for answers to come, which is what must not pile up
			}
			// Until everyone has got as much as weir holds for it.
			testkit.Await(t, func() bool {
				highest = max(highest, resident(t, w.cmd.Process.Pid))
				return waiting(t, addrs[1]) == 0
			}, w.log.String)
			if err := asks(); err != nil {
				t.Fatalf("a client that reads: %v\n%s", err, w.log.String())
			}
			t.Logf("%d MB before, %d MB at most", before>>20, highest>>20)
			if highest-before > most {
				t.Errorf("weir has grown by %d MB for clients that read nothing", (highest-before)>>20)
			}
			if died := w.ended(); died != "" {
				t.Errorf("weir ended: %s\n%s", died, w.log.String())
			}
		})
	}
}

// raw logs in and returns the connection, and what asks for 60 kB on it.
func raw(ctx context.Context, server mortal, address string) (conn net.Conn, question []byte, err error) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(4096) // so that it is weir that holds what is not read
		}
		return c, err
	}
	const text = "SELECT repeat('x', 60000)"
	if m, ok := server.(*lab.MySQL); ok {
		c, err := mywire.Connect(ctx, mywire.ConnectConfig{
			Address: address, User: m.User(), Password: m.Password(), Database: database, TLSMode: mywire.TLSDisabled, Dial: dial,
		})
		if err != nil {
			return nil, nil, err
		}
		return c.Conn, mywire.AppendCommand(nil, mywire.ComQuery, text), nil
	}
	c, err := pgwire.Connect(ctx, pgwire.ConnectConfig{Address: address, User: "postgres", Database: "postgres", TLSMode: pgwire.TLSDisable, Dial: dial})
	if err != nil {
		return nil, nil, err
	}
	return c.Conn, pgwire.AppendQuery(nil, text), nil
}

// waiting is how many statements wait for a connection.
func waiting(t *testing.T, admin string) (n int) {
	t.Helper()
	_, text := clitest.Get(t, "http://"+admin+"/metrics")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); strings.HasPrefix(line, "weir_proxy_waiting_statements{") {
			more, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				t.Fatal(err)
			}
			n += more
		}
	}
	return n
}

// resident is the memory that a process has.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}
