package postgres

import (
	"testing"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestBuildsUseParallelWorkersAtTheEnd(t *testing.T) {
	b := &builds{full: true, others: 1}
	sizes := []int64{100, 100, 40, 30, 10}
	for _, size := range sizes {
		b.expect(size)
	}
	want := []bool{true, false, true, false, false} // 180, 80, 40, 10 and 0 bytes are left
	for i, size := range sizes {
		if got := b.start(size); got != want[i] {
			t.Errorf("build %d of %d bytes: without workers %v, want %v", i+1, size, got, want[i])
		}
	}
	four := &builds{full: true, others: 3}
	for range 4 {
		four.expect(100)
	}
	if !four.start(100) || four.start(100) {
		t.Error("of four jobs the first build alone has three others as large beside it")
	}
	idle := &builds{others: 1}
	idle.expect(100)
	idle.expect(100)
	if idle.start(100) {
		t.Error("processors are idle and an index is built without workers")
	}
}

func TestLocalServer(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:5432": true, "[::1]:5432": true, "localhost:5432": true, "/run/postgresql/.s.PGSQL.5432": true,
		"db:5432": false, "192.0.2.1:5432": false,
	} {
		if got := local(pgwire.ConnectConfig{Address: address}); got != want {
			t.Errorf("%s is on this machine: %v, want %v", address, got, want)
		}
	}
}
