package mysql

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A session that is still to be reset after a refused COM_CHANGE_USER goes to the next process
// as such, and so does one whose statements run alone because it reads numbers of rows.
func TestWhatTheNextStatementNeedsIsHandedOver(t *testing.T) {
	t.Parallel()
	s, err := New(Config{
		MySQL: mywire.ConnectConfig{Address: "127.0.0.1:1", User: "root", TLSMode: mywire.TLSDisabled}, Listen: "127.0.0.1:0",
		Options: session.Options{Limits: session.Limits{PoolSize: 1}, Loops: 1, TrustLoopback: true, Log: proxytest.Log(t)},
	})
	if err != nil {
		t.Fatal(err)
	}
	proxytest.Run(t, s)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if err := s.Handover.TakeIn("", "root"); err != nil {
		t.Fatal(err)
	}
	l, handed := s.Loops[0], new(movedClient)
	err = l.Call(context.Background(), func() {
		l.Given()
		l.takeIn(&movedClient{ID: 7, User: "root", AwaitsFacts: true, AsksRows: selectRowCount, Sets: make([][]session.Setting, 1)}, fds[0], func() {})
		if c := l.Clients[7]; c != nil {
			handed = c.moving.pack(nil, nil)
			c.s.Close(nil)
		}
	})
	if err != nil || !handed.AwaitsFacts || handed.AsksRows != selectRowCount {
		t.Errorf("handed over: awaits facts %v, asks %q; %v", handed.AwaitsFacts, handed.AsksRows, err)
	}
}
