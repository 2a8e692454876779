package mysql

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A server's greeting that a login received before all were forgotten serves no other.
func TestWelcomesOfBeforeAreForgotten(t *testing.T) {
	var w loginCache
	key := poolKey{user: "u", database: "d"}
	w.put(key, mywire.OK{}, time.Second, 2*time.Second)
	if _, ok := w.get(key, 2*time.Second); !ok {
		t.Error("a welcome is not remembered")
	}
	w.forget(3 * time.Second)
	if _, ok := w.get(key, 3*time.Second); ok {
		t.Error("a welcome is not forgotten")
	}
	w.put(key, mywire.OK{}, 2*time.Second, 4*time.Second)
	if _, ok := w.get(key, 4*time.Second); ok {
		t.Error("a login that began before serves another")
	}
	w.put(key, mywire.OK{}, 4*time.Second, 5*time.Second)
	if _, ok := w.get(key, 5*time.Second); !ok {
		t.Error("a login that began after it serves no other")
	}
}
