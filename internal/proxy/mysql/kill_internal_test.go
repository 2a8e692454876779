package mysql

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A KILL goes out on any free connection to the server of its victim, and on no other.
func TestKillsFindAFreeConnectionOfTheirServer(t *testing.T) {
	a, b := upstream.Endpoint{Host: "a:3306", Address: "192.0.2.1:3306"}, upstream.Endpoint{Host: "b:3306", Address: "192.0.2.2:3306"}
	p := &pool{}
	p.Free = append(p.Free, &backend{id: 1}, &backend{id: 2}, &backend{id: 3})
	p.Free[0].Endpoint, p.Free[1].Endpoint, p.Free[2].Endpoint = a, b, a
	for _, want := range []uint32{2, 0} {
		id := uint32(0)
		if got := p.takeAt(b); got != nil {
			id = got.id
		}
		if id != want || len(p.Free) != 2 {
			t.Errorf("connection %d is taken, and %d are free; want connection %d, and 2", id, len(p.Free), want)
		}
	}
}

// A KILL is for weir's own connection: if the server shows another client under its id, or
// nobody, nothing is killed.
func TestKillsAreForWeirsOwnConnections(t *testing.T) {
	const own, victim = 41, 7
	for _, tc := range []struct {
		name        string
		hosts       map[string]string
		port, other int    // of weir's ends: of the connection that asks, and of the victim's
		want        string // "?" if it is unknown, which only a closed connection is spared for
	}{
		{"weir's", map[string]string{"41": "app:5001", "7": "app:5002"}, 5001, 5002, ""},
		{"IPv6", map[string]string{"41": "::1:5001", "7": "::1:5002"}, 5001, 5002, ""},
		{"another client's", map[string]string{"41": "app:5001", "7": "app:6000"}, 5001, 5002, "other"},
		{"a local client's", map[string]string{"41": "app:5001", "7": "localhost"}, 5001, 5002, "other"},
		{"gone", map[string]string{"41": "app:5001"}, 5001, 5002, "gone"},
		{"behind a gateway", map[string]string{"41": "gateway:6001", "7": "gateway:6002"}, 5001, 5002, "?"},
		{"by a Unix socket", map[string]string{"41": "localhost", "7": "localhost"}, 0, 0, "?"},
		{"not shown", nil, 5001, 5002, "?"},
	} {
		list := make(processList)
		for id, host := range tc.hosts {
			list.add(id, host)
		}
		for _, sure := range []bool{false, true} {
			got := ""
			err := list.misleads(&killOrder{id: victim, port: tc.other, sure: sure}, own, tc.port)
			switch {
			case mywire.CodeOf(err) == mywire.ErrNoSuchThread:
				got = "gone"
			case err != nil && strings.Contains(err.Error(), "another client's") && strings.Contains(err.Error(), "changed its port"):
				got = "other"
			case err != nil:
				got = "?"
			}
			if want := tc.want; got != want && (sure || got != "" || want != "?") {
				t.Errorf("%s, to be sure %v: %q (%v), want %q", tc.name, sure, got, err, want)
			}
		}
	}
}

// Of a connection that weir has closed, and that had no port, nothing can be proven: nobody is
// asked.
func TestKillsThatNothingProvesAreNotSent(t *testing.T) {
	srv := &Server{}
	srv.Log = slog.New(slog.DiscardHandler)
	var got *mywire.Error
	killOrder{p: &pool{l: &loop{srv: srv}}, verb: "KILL", id: 7, sure: true, done: func(e *mywire.Error) { got = e }}.send()
	if got == nil || !strings.Contains(got.Message, "does not show whether connection 7") {
		t.Errorf("%v", got)
	}
}
