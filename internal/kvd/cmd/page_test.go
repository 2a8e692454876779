package kvcmd

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/weirdb/weir/internal/admin/live/livetest"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/testkit/browser"
)

// The page shows load from before it was opened.
func TestPageShowsLoadThatNobodyWatched(t *testing.T) {
	testkit.Long(t, "starts a browser, as the same test of the proxy")
	b := browser.Start(t)
	clitest.ClearEnvironment(t)
	addrs := labtest.Addrs(t, 3)
	log, stop := program.Serve(t, "kv", "serve", "--id", "1", "--peers", "1="+addrs[0], "--data", t.TempDir(), "--resp", addrs[1], "--admin", addrs[2], "--log-format", "json")
	admin := log.Await("weir kv serve starts")["admin"].(string)
	testkit.Await(t, func() bool {
		code, _ := clitest.Get(t, admin+"readyz")
		return code == http.StatusOK
	}, func() string { return "the replica is not ready" })
	client := redisClient(addrs[1], "")
	defer client.Close()
	livetest.Load(t, admin, "commits", func(i int) {
		answered(t, "SET", func() error { return client.Set(t.Context(), fmt.Sprint("k", i%100), "v", 0).Err() })
	})
	page := livetest.Open(t, b, admin, "kv")
	page.HasPoints("Rates", "Flushes of the log", "What a flush carries", "Term and elections", "Clients", "CPU", "Memory")
	page.HasRows("Replicas", "leader")
	page.HasRows("Log and state", "newest entry")
	page.Works()
	if code := stop(); code != cli.ExitFine {
		t.Errorf("exit %d", code)
	}
}
