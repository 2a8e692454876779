package backupcmd

import (
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/admin/live/livetest"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/testkit/browser"
)

// A page that is opened in the middle of a run shows how far it is.
func TestPageOfARun(t *testing.T) {
	testkit.Long(t, "starts a browser")
	b := browser.Start(t)
	state := &bulk.Progress{}
	var said strings.Builder
	end, err := (&adminFlag{"127.0.0.1:0"}).serve(t.Context(), "backup", "shop → /srv/backup", state, &said)
	if err != nil {
		t.Fatal(err)
	}
	admin := regexp.MustCompile(`http://\S+/`).FindString(said.String())
	state.Phase("data")
	state.Expect(1<<40, 100)
	defer state.Begin("public.orders")()
	livetest.Load(t, admin, "bytes", func(int) { state.Add(1<<16, 100) })
	page := livetest.Open(t, b, admin, "backup")
	page.HasPoints("Bytes", "Rows", "Done", "Steps", "CPU", "Memory")
	page.HasRows("Run", "data")
	page.HasRows("Run", "of about")
	page.HasRows("Under way", "public.orders")
	page.Works()
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", strings.Trim(strings.TrimPrefix(admin, "http://"), "/")); err == nil {
		t.Error("the page is there after the end")
	}
}
