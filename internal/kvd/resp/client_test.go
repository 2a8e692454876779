package resp_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

func TestLogIn(t *testing.T) {
	_, addr := serveFake(t, resp.Config{Users: []resp.User{
		{Name: "default", Password: "secret"},
		{Name: "reader", Password: "look", ReadOnly: true},
	}})
	p := dial(t, addr)
	p.want("-NOAUTH Authentication required.\r\n", "GET", "a")
	p.want("-NOAUTH Authentication required.\r\n", "MULTI")
	p.want("-NOAUTH Authentication required.\r\n", "PING")
	p.want("-ERR unknown command 'NOSUCH', with args beginning with: \r\n", "NOSUCH")
	const wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
	p.want(wrong, "AUTH", "wrong")
	p.want(wrong, "AUTH", "default", "")
	p.want(wrong, "AUTH", "reader", "secret")
	p.want(wrong, "AUTH", "nobody", "secret")
	p.want(wrong, "HELLO", "3", "AUTH", "default", "wrong")
	if got := p.do("HELLO", "3"); !strings.HasPrefix(got, "-NOAUTH HELLO must be called") {
		t.Error(got)
	}
	p.want("+OK\r\n", "AUTH", "secret")
	p.want("$-1\r\n", "GET", "a")
	p.want("+OK\r\n", "SET", "a", "1")
	p.want("+RESET\r\n", "RESET")
	p.want("-NOAUTH Authentication required.\r\n", "GET", "a")
	if got := p.do("HELLO", "3", "AUTH", "reader", "look", "SETNAME", "me"); !strings.HasPrefix(got, "%7\r\n") {
		t.Error(got)
	}
	p.want("$2\r\nme\r\n", "CLIENT", "GETNAME")
	p.want("$6\r\nreader\r\n", "ACL", "WHOAMI")
	p.want("$1\r\n1\r\n", "GET", "a")
	p.want("-NOPERM User reader has no permissions to run the 'set' command\r\n", "SET", "a", "2")
	p.want("+OK\r\n", "MULTI")
	p.want("-NOPERM User reader has no permissions to run the 'del' command\r\n", "DEL", "a")
	p.want("-EXECABORT Transaction discarded because of previous errors.\r\n", "EXEC")

	// Before log-in little is taken, after it what there is.
	green := dial(t, addr)
	green.send([]byte("*11\r\n"))
	if got := green.rest(); got != "-ERR Protocol error: unauthenticated multibulk length\r\n" {
		t.Error(got)
	}
	green = dial(t, addr)
	big := strings.Repeat("v", 20000)
	green.send(append(frame("AUTH", "secret"), frame("SET", "big", big)...))
	if got := green.reply() + green.reply(); got != "+OK\r\n+OK\r\n" {
		t.Error(got)
	}
}

// TestWaitIsForWhatPrecedesIt: the backend is asked in the order of the commands.
func TestWaitIsForWhatPrecedesIt(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	f.mu.Lock()
	f.replicas = countRequests
	f.mu.Unlock()
	p := dial(t, addr)
	p.send(slices.Concat(
		frame("WAIT", "1", "0"), frame("SET", "a", "1"), frame("WAIT", "2", "0"), frame("WAITAOF", "1", "0", "0"),
		frame("SET", "b", "1"), frame("SET", "c", "1"), frame("WAIT", "3", "0"), frame("PING"),
	))
	for _, want := range []string{":0\r\n", "+OK\r\n", ":1\r\n", "*2\r\n:1\r\n:1\r\n", "+OK\r\n", "+OK\r\n", ":3\r\n", "+PONG\r\n"} {
		if got := p.reply(); got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
}

// TestTLS speaks to a server with a certificate, and does not without TLS.
func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler()) // has a certificate
	defer web.Close()
	_, addr := serveFake(t, resp.Config{TLS: &tls.Config{Certificates: web.TLS.Certificates}})
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	sock, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	p := &peer{t, sock, bufio.NewReader(sock)}
	p.want("+OK\r\n", "SET", "a", "1")
	p.want("$1\r\n1\r\n", "GET", "a")
	plain := dial(t, addr)
	plain.send(frame("PING"))
	if got, err := io.ReadAll(plain.in); err == nil && strings.Contains(string(got), "PONG") {
		t.Errorf("without TLS PING answers %q", got)
	}
}

// TestBackendErrors: clients decide by the first word.
func TestBackendErrors(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr)
	for _, test := range []struct {
		err  error
		want string
	}{
		{resp.ErrNoQuorum, "-CLUSTERDOWN The cluster is down: no leader is reachable\r\n"},
		{resp.ErrUncertain, "-UNCERTAIN no answer came in time: the write may have happened, or may still\r\n"},
		{fmt.Errorf("step: %w", resp.ErrExpired), "-TRYAGAIN step: the session has expired, nothing was done\r\n"},
		{resp.ErrBusy, "-BUSY too many requests in flight\r\n"},
		{resp.ErrLoading, "-LOADING weir is loading the store\r\n"},
		{errors.New("out\r\nof\nluck"), "-ERR out  of luck\r\n"},
	} {
		f.mu.Lock()
		f.fail = test.err
		f.mu.Unlock()
		p.want(test.want, "SET", "a", "1")
		p.want("+OK\r\n", "MULTI")
		p.want("+QUEUED\r\n", "GET", "a")
		p.want(test.want, "EXEC")
		p.want(test.want, "WATCH", "a")
		p.want("+OK\r\n", "UNWATCH")
	}
	// A key whose revision could not be read counts as changed.
	p.want("-ERR out  of luck\r\n", "WATCH", "a")
	f.mu.Lock()
	f.fail = nil
	f.mu.Unlock()
	p.want("+OK\r\n", "MULTI")
	p.want("+QUEUED\r\n", "SET", "a", "1")
	p.want("*-1\r\n", "EXEC")
}

// TestMoved: only those who understand it are sent elsewhere, and only for what
// this replica cannot do itself.
func TestMoved(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	st := *f.Status()
	st.Leader = 2
	st.Members[1].Resp = ":7002" // listens everywhere
	f.status.Store(&st)
	plain, cluster := dial(t, addr), dial(t, addr)
	plain.want("+OK\r\n", "SET", "foo", "1")
	for _, ask := range []string{"SLOTS", "SHARDS", "NODES"} {
		cluster = dial(t, addr)
		cluster.want("$1\r\n1\r\n", "GET", "foo")
		cluster.do("CLUSTER", ask)
		cluster.want("-MOVED 12182 127.0.0.1:7002\r\n", "GET", "foo")
	}
	cluster.want("-MOVED 12182 127.0.0.1:7002\r\n", "SET", "{foo}bar", "1")
	cluster.want(":1\r\n", "DBSIZE") // has no key
	cluster.want("+OK\r\n", "READONLY")
	cluster.want("$1\r\n1\r\n", "GET", "foo")
	cluster.want("+OK\r\n", "READWRITE")
	cluster.want("+OK\r\n", "MULTI")
	cluster.want("-MOVED 12182 127.0.0.1:7002\r\n", "GET", "foo")
	cluster.want("-EXECABORT Transaction discarded because of previous errors.\r\n", "EXEC")
	if got := plain.do("ROLE"); got != "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:7002\r\n$9\r\nconnected\r\n:0\r\n" {
		t.Errorf("%q", got)
	}
	st2 := st
	st2.Leader = 0
	f.status.Store(&st2)
	cluster.want("$1\r\n1\r\n", "GET", "foo") // the backend says what there is to say
	cluster.want("*0\r\n", "CLUSTER", "SLOTS")
	if got := cluster.do("CLUSTER", "INFO"); !strings.Contains(got, "cluster_state:fail\r\n") {
		t.Errorf("%q", got)
	}
	st3 := st
	st3.Loading = true
	f.status.Store(&st3)
	plain.want("-LOADING weir is loading the store\r\n", "GET", "foo")
	plain.want("+PONG\r\n", "PING")
}

// TestLevels: what is asked of the backend at each level.
func TestLevels(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr)
	for _, test := range []struct {
		level string
		want  resp.Level
	}{{"strong", resp.Strong}, {"session", resp.OwnSession}, {"local", resp.Local}} {
		p.want("+OK\r\n", "WEIR.LEVEL", test.level)
		weak := test.want != resp.Strong
		for _, request := range []struct {
			args  []string
			verb  wire.Verb
			blind bool
		}{
			{[]string{"GET", "a"}, wire.Get, false},
			{[]string{"SET", "a", "1"}, wire.Set, true},
			{[]string{"SET", "a", "1", "NX"}, wire.Set, false},
			{[]string{"SET", "a", "1", "GET"}, wire.Set, false},
			{[]string{"MSET", "a", "1"}, wire.SetMany, true},
			{[]string{"EXPIRE", "a", "100"}, wire.Expire, weak},
			{[]string{"EXPIRE", "a", "100", "NX"}, wire.Expire, false},
			{[]string{"INCRBY", "a", "1"}, wire.Increment, false},
			{[]string{"APPEND", "a", "1"}, wire.Append, false},
			{[]string{"DEL", "a"}, wire.Delete, weak},
			{[]string{"GETDEL", "a"}, wire.Delete, false},
			{[]string{"FLUSHALL"}, wire.DeleteRange, weak},
		} {
			p.do(request.args...)
			f.mu.Lock()
			got := f.seen[len(f.seen)-1]
			f.mu.Unlock()
			if want := (seenRequest{request.verb, test.want, request.blind}); got != want {
				t.Errorf("%s: %q is %+v, not %+v", test.level, request.args, got, want)
			}
		}
	}
	// WATCH reads strongly at any level, because a stale revision would be useless.
	p.want("+OK\r\n", "WATCH", "a")
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := f.seen[len(f.seen)-1]; got.level != resp.Strong {
		t.Errorf("WATCH reads at level %v", got.level)
	}
}

// TestScanFindsWhatStays: a scan returns what is there all the time, whatever
// comes and goes meanwhile, also when each step takes another connection.
func TestScanFindsWhatStays(t *testing.T) {
	_, addr := serveFake(t, resp.Config{})
	peers := []*peer{dial(t, addr), dial(t, addr), dial(t, addr)}
	const n = 500
	for i := range n {
		peers[0].want("+OK\r\n", "SET", fmt.Sprintf("stay:%04d", i), "1")
		peers[0].want("+OK\r\n", "SET", fmt.Sprintf("go:%04d", i), "1")
	}
	found := make(map[string]int)
	for cursor, step := "0", 0; step == 0 || cursor != "0"; step++ {
		p := peers[step%3]
		lines := strings.Split(p.do("SCAN", cursor, "COUNT", "37"), "\r\n")
		cursor = lines[2]
		for _, line := range lines[4:] {
			if strings.HasPrefix(line, "stay:") {
				found[line]++
			}
		}
		p.do("DEL", fmt.Sprintf("go:%04d", step))
		p.want("+OK\r\n", "SET", fmt.Sprintf("new:%d", step), "1")
	}
	for i := range n {
		if key := fmt.Sprintf("stay:%04d", i); found[key] != 1 {
			t.Errorf("%s was found %d times", key, found[key])
		}
	}
	peers[0].want("-ERR invalid cursor: it is another replica's or too old, begin with 0\r\n", "SCAN", "18446744073709551615")
}

// TestClientList shows who is there.
func TestClientList(t *testing.T) {
	_, addr := serveFake(t, resp.Config{})
	a, b := dial(t, addr), dial(t, addr)
	a.want("+OK\r\n", "CLIENT", "SETNAME", "first")
	b.want("+OK\r\n", "CLIENT", "SETINFO", "LIB-NAME", "go-test")
	b.want("+OK\r\n", "CLIENT", "SETINFO", "LIB-VER", "1.2")
	b.want("-ERR Unrecognized option 'FOO'\r\n", "CLIENT", "SETINFO", "FOO", "1.2")
	b.want("-ERR lib-name cannot contain spaces, newlines or special characters.\r\n", "CLIENT", "SETINFO", "LIB-NAME", "a b")
	list := b.do("CLIENT", "LIST")
	for _, want := range []string{"name=first", "lib-name=go-test lib-ver=1.2"} {
		if strings.Count(list, want) != 1 {
			t.Errorf("%q is not once in %q", want, list)
		}
	}
	if one := a.do("CLIENT", "INFO"); !strings.Contains(one, "name=first") || strings.Contains(one, "go-test") {
		t.Errorf("%q", one)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []resp.Config{
		{MaxClients: -1},
		{IdleTimeout: -1},
		{Users: []resp.User{{Name: "a"}}},
		{Users: []resp.User{{Password: "a"}}},
		{Users: []resp.User{{Name: "a", Password: "b"}, {Name: "a", Password: "c"}}},
	} {
		if _, err := resp.New(newFakeStore(), cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// A transaction whose keys could not all be watched is not executed.
func TestWatchOfTooManyKeys(t *testing.T) {
	_, addr := serveFake(t, resp.Config{})
	p := dial(t, addr)
	most := []string{"WATCH"}
	for i := range wire.MaxItems {
		most = append(most, strconv.Itoa(i))
	}
	p.want("+OK\r\n", most...)
	p.want("-ERR too many watched keys: a transaction depends on 65536 of them at most, of 16777216 bytes\r\n", "WATCH", "more")
	for _, exec := range []string{"*-1\r\n", "*1\r\n$-1\r\n"} {
		p.want("+OK\r\n", "WATCH", "a")
		p.want("+OK\r\n", "MULTI")
		p.want("+QUEUED\r\n", "GET", "a")
		p.want(exec, "EXEC")
	}
}
