package postgres_test

import "testing"

// The server reads a statement's constants when it is prepared, in the settings of then.
func TestCacheKnowsWhenItWasPrepared(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	const sql = "/* ttl:3600 */ SELECT timestamptz '2026-02-03 04:05:06' AS at, length('\xc3\xbc') AS n"
	before, within := w.wire(), w.wire()
	for _, c := range []*wire{before, within} {
		c.ask("SET timezone = 'UTC'")
	}
	before.send(parse("s", sql), sync())
	before.ready()
	for _, c := range []*wire{before, within} {
		c.ask("SET timezone = 'Asia/Tokyo'")
	}
	within.send(parse("s", sql), sync())
	within.ready()
	misses := w.cached().Misses
	for range 2 {
		for _, c := range []*wire{before, within} {
			c.send(bind("", "s"), describe('P', ""), execute("", 0), sync())
			c.ready()
		}
	}
	if n := w.cached().Misses - misses; n != 2 {
		t.Errorf("%d statements were told apart, want those of 2 time zones", n)
	}
}
