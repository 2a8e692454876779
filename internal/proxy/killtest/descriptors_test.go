package killtest_test

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestDescriptorsRunOut gives weir fewer descriptors than clients. Those that are connected go
// on, the log says what to do, but seldom, nothing spins, and when clients leave, others are
// accepted without intervention.
func TestDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
			defer cancel()
			server := e.start(t)
			addrs := labtest.Addrs(t, 2)
			w := &weir{
				path: program.Path(t), lanes: map[string]int{},
				args: append([]string{"proxy", "--trust-loopback", "--admin", addrs[1], "--login-timeout", "2s"}, e.flags(server, server.Addr(), addrs[0])...),
			}
			if err := w.launch(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.kill)
			dial := func() session {
				t.Helper()
				var s session
				testkit.Await(t, func() (ok bool) {
					var err error
					s, err = e.dial(ctx, addrs[0], true)
					return err == nil
				}, w.log.String)
				return s
			}
			asks := func(s session) error {
				return s.rows(ctx, func(scan func(...any) error) error { var n int; return scan(&n) }, "SELECT 1")
			}
			first := dial()
			defer first.close()
			if err := asks(first); err != nil {
				t.Fatal(err)
			}

			const room = 10
			setLimit(t, w.cmd.Process.Pid, room)
			var crowd []net.Conn
			leave := func() {
				for _, c := range crowd {
					_ = c.Close()
				}
			}
			defer leave()
			for range 4 * room {
				c, err := net.Dial("tcp", addrs[0]) // waits in the socket's queue
				if err != nil {
					t.Fatal(err)
				}
				crowd = append(crowd, c)
			}
			const said = "too many open files"
			testkit.Await(t, func() bool { return strings.Contains(w.log.String(), said) }, w.log.String)
			spent, lines := cpu(t, w.cmd.Process.Pid), strings.Count(w.log.String(), said)
			time.Sleep(time.Second) // in which a loop would spin
			if now := cpu(t, w.cmd.Process.Pid); now-spent > 500*time.Millisecond {
				t.Errorf("weir has used the processor for %v of a second while it had no descriptors", now-spent)
			}
			if n := strings.Count(w.log.String(), said) - lines; n > 3 {
				t.Errorf("the log says it %d times a second", n)
			}
			if !strings.Contains(w.log.String(), "LimitNOFILE") {
				t.Errorf("the log does not say what to do:\n%s", w.log.String())
			}
			if err := asks(first); err != nil {
				t.Errorf("a client that is there: %v", err)
			}
			leave()
			another := dial()
			defer another.close()
			if err := asks(another); err != nil {
				t.Errorf("a client that comes when others have left: %v", err)
			}
			if err := asks(first); err != nil {
				t.Errorf("a client that was there all the time: %v", err)
			}
			if died := w.ended(); died != "" {
				t.Errorf("weir ended: %s\n%s", died, w.log.String())
			}
		})
	}
}

// setLimit leaves a process room for some descriptors more than it has.
func setLimit(t *testing.T, pid, room int) {
	t.Helper()
	have, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	var r unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &r); err != nil {
		t.Fatal(err)
	}
	r.Cur = uint64(len(have) + room)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &r, nil); err != nil {
		t.Fatal(err)
	}
}

// cpu is the time that a process has used of the processors.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, s := range f[11:13] { // utime, stime
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}
