package postgres_test

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// poolOf is the pool of a user.
func (w *weir) poolOf(user string) sight.PoolStatus {
	w.tb.Helper()
	for _, p := range w.snapshot().Pools {
		if p.Database == w.db && p.User == user {
			return p
		}
	}
	return sight.PoolStatus{}
}

// closedBackends is how many backends of a user's pool were closed.
func (w *weir) closedBackends(user string) uint64 { return w.poolOf(user).Closed }

// Any client can ask to change the defaults of all. Connections of others are renewed only if
// the server has made the change.
func TestRefusedChangesRenewNobodysConnections(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	mine, theirs := w.wire(), dialWireAs(t, w.Addr().String(), db, "weir_other")
	mine.ask("SELECT 1")
	for _, sql := range []string{
		"ALTER ROLE ALL SET work_mem = '5MB'",
		"ALTER ROLE postgres SET work_mem = '5MB'",
		"ALTER DATABASE " + db + " SET work_mem = '5MB'",
		"DROP ROLE postgres",
		"CREATE TEMP TABLE x (); ALTER ROLE postgres SET work_mem = '5MB'",
		"DROP DATABASE " + db,
		"ALTER DATABASE " + db + " RENAME TO other",
		"CREATE DATABASE copy TEMPLATE " + db,
	} {
		for _, message := range [][]byte{query(sql), run(sql)} {
			before := w.closedBackends("postgres")
			theirs.send(message)
			if e := errorIn(theirs.ready()); e == nil {
				t.Fatalf("%s: not refused", sql)
			}
			mine.want("SELECT 1", "[?column?] (1) SELECT_1 I")
			if after := w.closedBackends("postgres"); after != before {
				t.Errorf("%s: refused, and yet %d connections of another user were closed", sql, after-before)
			}
		}
	}
}

// A change that is rolled back has no effect, and one of a user to his own defaults concerns his
// own connections.
func TestOnlyWhatWasCarriedOutRenewsConnections(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	c := w.wire()
	other := dialWireAs(t, w.Addr().String(), db, "weir_other")
	c.ask("SELECT 1")
	other.ask("SELECT 1")

	before := w.closedBackends("weir_other")
	for _, sql := range []string{"BEGIN", "ALTER ROLE weir_other IN DATABASE " + db + " SET work_mem = '5MB'", "ROLLBACK"} {
		c.ask(sql)
	}
	if after := w.closedBackends("weir_other"); after != before {
		t.Errorf("a change that was rolled back closed %d connections", after-before)
	}

	mine := w.closedBackends("postgres")
	other.want("ALTER ROLE CURRENT_USER SET work_mem = '4MB'", "ALTER_ROLE I")
	if after := w.closedBackends("postgres"); after != mine {
		t.Errorf("a user's own defaults closed %d connections of another", after-mine)
	}
	eventually(t, "a user's connections end with the change of his own defaults", func() bool {
		return w.poolOf("weir_other").Backends == 0
	})

	before = w.closedBackends("weir_other")
	for _, sql := range []string{"BEGIN", "ALTER ROLE weir_other IN DATABASE " + db + " SET work_mem = '5MB'"} {
		c.ask(sql)
	}
	if after := w.closedBackends("weir_other"); after != before {
		t.Errorf("a change that is not committed closed %d connections", after-before)
	}
	c.ask("COMMIT")
	eventually(t, "the other user has the new default", func() bool {
		return other.ask("SHOW work_mem") == "[work_mem] (5MB) SHOW I"
	})
	onServer(t, "ALTER ROLE weir_other RESET work_mem")
}
