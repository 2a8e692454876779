package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A client that prepares too many statements is disconnected with an error. One that closes its
// statements is not.
func TestTextsOfOneClientAreBounded(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "sends texts of 2 MB")
	db := database(t)
	w := start(t, db, nil)
	text := func(i int) string { return fmt.Sprintf("SELECT %d /* %s */", i, strings.Repeat("x", 2<<20)) }
	for _, pinned := range []bool{false, true} {
		c := w.wire()
		if pinned {
			c.ask("LISTEN x")
		}
		for i := range 17 { // of either kind more than a client may have
			c.send(slices.Concat(parse("s", text(i)), closing('S', "s"), parse("", text(i)), sync()))
			if e := errorIn(c.ready()); e != nil {
				t.Fatalf("pinned %v, statement %d: %v", pinned, i, e)
			}
		}
		c.ask("SELECT 1")
		for i := range 17 {
			c.send(slices.Concat(parse(fmt.Sprint("s", i), text(i)), sync()))
			ms, err := c.until(pgwire.ServerReady)
			if err == nil {
				continue
			}
			if e := errorIn(ms); i != 15 || e == nil || e.Code != pgwire.CodeProgramLimit || !e.Fatal() || !strings.Contains(e.Message, "more than 32 MB of text") {
				t.Errorf("pinned %v, statement %d: %v, %v", pinned, i, e, err)
			}
			break
		}
		eventually(t, "it is disconnected", func() bool { return w.pool().Clients == 0 })
	}
}

// An unnamed statement that replaces another counts without that one.
func TestUnnamedTextsReplaceEachOther(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	text := func(i, size int) string { return fmt.Sprintf("SELECT %d /* %s */", i, strings.Repeat("x", size)) }
	for _, pinned := range []bool{false, true} {
		c := w.wire()
		if pinned {
			c.ask("LISTEN x")
		}
		for i, ms := range [][]byte{parse("n", text(0, 4<<20)), parse("", text(1, 15<<20)), parse("", text(2, 15<<20))} {
			c.send(ms, sync())
			if got := render(c.ready()); got != "parsed I" {
				t.Fatalf("pinned %v, statement %d: %s", pinned, i, got)
			}
		}
		c.close()
	}
}
