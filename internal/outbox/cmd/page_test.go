package outboxcmd

import (
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/admin/live/livetest"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/testkit/browser"
	"github.com/weirdb/weir/outbox"
)

// A page that is opened after messages were delivered shows them.
func TestPageShowsLoadThatNobodyWatched(t *testing.T) {
	testkit.Long(t, "starts a browser, as the same test of the proxy")
	b := browser.Start(t)
	clitest.ClearEnvironment(t)
	r := sqliteRig(t)
	if out := r.weir("migrate"); out == "" {
		t.Fatal("migrate said nothing")
	}
	p := startRelay(t, []string{"WEIR_OUTBOX_DB=" + r.dsn}, "--sink", "stdout:", "--admin", "127.0.0.1:0", "--status-every", "100ms")
	go func() { _, _ = io.Copy(io.Discard, p.stdout) }()
	admin := p.log.Await("weir outbox relay starts")["admin"].(string)
	livetest.Load(t, admin, "delivered", func(i int) {
		r.enqueue(outbox.Message{Topic: "orders", Key: fmt.Sprint(i % 7), Payload: []byte(`{"order":1}`)})
	})
	page := livetest.Open(t, b, admin, "outbox")
	page.HasPoints("Messages", "Delivery", "Backlog", "Broker", "Batches", "CPU", "Memory")
	page.HasRows("Destinations", "orders")
	page.HasRows("Destinations", "takes messages")
	page.HasRows("Shards", "yes")
	page.HasRows("Since the start", "messages delivered")
	page.Works()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.log.Await("weir outbox relay has stopped")
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}
