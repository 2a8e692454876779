package mysql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// refuses wants that the log cannot be followed, for a reason.
func refuses(t *testing.T, l *lease, reason string) {
	t.Helper()
	tail, err := l.Tail(t.Context())
	if err == nil {
		check(t, tail.Close())
	}
	var why *outbox.TailError
	if !errors.As(err, &why) || !strings.Contains(why.Reason, reason) {
		t.Errorf("follow the log: %v, want a TailError that says %q", err, reason)
	}
}

// A server that is read-only may be a replica, whose log shows nothing of what it
// replicates: its log is not followed, or no longer.
func TestTailLeavesAServerThatBecomesReadOnly(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		l := leadIt(t, migrated(t, m, db, Options{}, outbox.Plan{}))
		tail, err := l.Tail(t.Context())
		check(t, err)
		defer tail.Close()
		writable := tail.(interface{ Probe() error })
		check(t, writable.Probe())
		check(t, m.Exec(t.Context(), "SET GLOBAL read_only = 1"))
		defer func() { check(t, m.Exec(context.WithoutCancel(t.Context()), "SET GLOBAL read_only = 0")) }()
		testkit.Eventually(t, "the tail says so", func() bool { return writable.Probe() != nil })
		refuses(t, l, "read-only")
		check(t, m.Exec(t.Context(), "SET GLOBAL read_only = 0"))
		testkit.Eventually(t, "it can be written to", func() bool { return writable.Probe() == nil })
		other, err := l.Tail(t.Context())
		check(t, err)
		check(t, other.Close())
	})
}

// An address may lead to another server for the log than for the leadership.
func TestTailIsOfTheLeasesServer(t *testing.T) {
	labtest.RequireMariaDB(t)
	m := mariadb.get(t)
	db := database(t, m)
	other := another.get(t)
	check(t, other.Exec(t.Context(), "CREATE DATABASE "+db))
	wire := migrated(t, other, db, Options{}, outbox.Plan{}).wire
	s := migrated(t, m, db, Options{}, outbox.Plan{})
	l := leadIt(t, s)
	own := s.wire
	s.wire, s.syncTimeout = wire, time.Second
	refuses(t, l, "another server")
	s.wire, s.syncTimeout = own, defaultSyncTimeout
	tail, err := l.Tail(t.Context())
	check(t, err)
	check(t, tail.Close())
}

// Where commits can be seen in another order than the log has them in, one that is
// visible does not stand for those before it.
func TestTailNeedsCommitsInTheOrderOfTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		vars map[string]string
		says string
	}{
		"MySQL":      {map[string]string{"read_only": "OFF", "binlog_order_commits": "ON"}, ""},
		"out of it":  {map[string]string{"read_only": "OFF", "binlog_order_commits": "OFF"}, "binlog_order_commits"},
		"MariaDB":    {map[string]string{"read_only": "OFF"}, ""},
		"MariaDB 12": {map[string]string{"read_only": "NO_LOCK"}, "read-only"},
		"replica":    {map[string]string{"read_only": "1"}, "read-only"},
	} {
		err := checkVariables(c.vars)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// A session logs as the server was set to when it began: the relay's own are renewed
// before the log is followed.
func TestTailAfterTheServerWasSetToLogWholeRows(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		ctx := t.Context()
		check(t, m.Exec(ctx, "SET GLOBAL binlog_row_image = MINIMAL"))
		defer func() { check(t, m.Exec(context.WithoutCancel(ctx), "SET GLOBAL binlog_row_image = FULL")) }()
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		held, err := s.session(ctx) // one that is at work meanwhile
		check(t, err)
		refuses(t, l, "binlog_row_image is MINIMAL")
		check(t, m.Exec(ctx, "SET GLOBAL binlog_row_image = FULL"))
		tail, err := l.Tail(ctx)
		if err != nil {
			t.Fatalf("follow the log of a server that logs whole rows now: %v", err)
		}
		defer tail.Close()
		held.release(nil)
		check(t, s.with(ctx, func(c *session) error {
			return c.exec(ctx, s.sql("INSERT INTO {outbox} (topic, payload) VALUES ('t', 'p')"))
		}))
		rows, err := tail.Next(ctx)
		check(t, err)
		if len(rows) != 1 || rows[0].Topic != "t" {
			t.Errorf("the log shows %+v", rows)
		}
	})
}

// A producer's session that logs parts of rows sends the relay to the table, and the
// reason says what to do.
func TestTailMeetsASessionThatLogsPartsOfRows(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		ctx := t.Context()
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		tail, err := l.Tail(ctx)
		check(t, err)
		defer tail.Close()
		check(t, s.with(ctx, func(c *session) error {
			for _, text := range []string{"SET SESSION binlog_row_image = MINIMAL", "INSERT INTO {outbox} (topic, payload) VALUES ('t', 'p')", "SET SESSION binlog_row_image = FULL"} {
				if err := c.exec(ctx, s.sql(text)); err != nil {
					return err
				}
			}
			return nil
		}))
		rows, err := tail.Next(ctx)
		if len(rows) == 0 && (!errors.Is(err, errNotInLog) || !strings.Contains(err.Error(), "reconnect")) {
			t.Errorf("the log shows %+v, %v", rows, err)
		}
		if len(rows) > 0 && (rows[0].ID == outbox.ID{} || rows[0].CreatedAt.IsZero()) {
			t.Errorf("the log shows %+v", rows)
		}
	})
}
