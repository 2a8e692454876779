package proxy_test

import (
	"testing"

	"github.com/weirdb/weir/internal/pgwire"
)

// The tests of this file hold what drivers' own suites and standard clients
// found to differ from a direct connection. docs/compatibility.md has the
// results of those runs.

func TestFlushBringsTheAnswersThatWeirGivesItself(t *testing.T) {
	t.Parallel()
	c := start(t, database(t), nil).wire()
	got := func(want string, last byte) {
		t.Helper()
		ms, err := c.until(last)
		if err != nil {
			t.Fatalf("connection lost: %v", err)
		}
		if have := render(ms); have != want {
			t.Fatalf("got %s, want %s", have, want)
		}
	}
	c.want("BEGIN", "BEGIN T")
	// The server learns the text under weir's name, so neither the second
	// Parse nor the Close goes to it. There is no Sync until all is answered.
	c.send(parse("one", "SELECT 1 AS x"), flush())
	got("parsed", pgwire.ServerParseComplete)
	c.send(parse("two", "SELECT 1 AS x"), flush())
	got("parsed", pgwire.ServerParseComplete)
	c.send(bind("", "two"), execute("", 0), closing('S', "two"), flush())
	got("bound (1) SELECT_1 closed", pgwire.ServerCloseComplete)
	c.send(closing('S', "one"), flush())
	got("closed", pgwire.ServerCloseComplete)
	c.send(sync())
	got("T", pgwire.ServerReady)
	// Behind a unit that is not answered yet.
	c.send(parse("", "SELECT pg_sleep(0.01)"), bind("", ""), execute("", 0), sync(), closing('S', "one"), flush())
	got("parsed bound () SELECT_1 T closed", pgwire.ServerCloseComplete)
	c.send(sync())
	got("T", pgwire.ServerReady)
	c.want("COMMIT", "COMMIT I")
}

func TestFatalErrorIsTheLastWord(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, setup := range []string{"LISTEN news", "BEGIN", "SELECT 1"} {
		c := w.wire()
		c.ask(setup)
		c.send(query("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)"))
		if got := render(c.end()); got != "[pg_terminate_backend,pg_sleep] FATAL:57P01" {
			t.Errorf("after %s: got %s, want the server's own error and the end", setup, got)
		}
	}
}
