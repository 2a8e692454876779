package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// arrival is a row of the log and the transaction that has committed it.
type logRow struct {
	row outbox.Row
	xid uint32
}

// snapshot is what a moment can see of transactions, as pg_current_snapshot
// shows it: those below xmin have ended, those from xmax on have not begun, and
// of those between only the listed ones have not ended. A transaction that waits
// for standbys after its commit is still listed.
type snapshot struct {
	xmin, xmax uint64
	running    map[uint64]struct{}
}

const snapshotText = "SELECT pg_catalog.pg_current_snapshot()::text"

func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("the server's snapshot is not understood: %q", text)
	}
	number := func(text string) uint64 {
		n, bad := strconv.ParseUint(text, 10, 64)
		if bad != nil {
			err = fmt.Errorf("the server's snapshot is not understood: %w", bad)
		}
		return n
	}
	s.xmin, s.xmax = number(parts[0]), number(parts[1])
	if parts[2] != "" {
		s.running = map[uint64]struct{}{}
		for id := range strings.SplitSeq(parts[2], ",") {
			s.running[number(id)] = struct{}{}
		}
	}
	return s, err
}

// sees reports whether what the transaction did is visible. The log has the lower
// half of its number; the upper one is that which puts it next to the snapshot.
func (s *snapshot) sees(xid uint32) bool {
	const epoch = 1 << 32
	full := s.xmax&^(epoch-1) | uint64(xid)
	switch {
	case full > s.xmax+math.MaxInt32 && full >= epoch:
		full -= epoch
	case full+math.MaxInt32 < s.xmax:
		full += epoch
	}
	_, running := s.running[full]
	return full < s.xmin || full < s.xmax && !running
}

// settling holds rows of the log back until their transactions can be seen.
//
// A transaction is in the log before it is visible: for microseconds when the
// server is idle, for milliseconds when many commit, and with synchronous
// replication until the standbys have answered. A row that is delivered within
// that time tells a consumer of what it cannot find, and its ack finds no row to
// delete, so that it would come again, behind later ones of its key. And were
// the primary lost, a message would have been delivered whose transaction no
// other server has.
//
// Rows that can be seen need not wait for earlier ones of the log that cannot:
// anyone who cannot be seen has not returned from its COMMIT, so that nothing comes
// after it in the order of a key.
type visibilityFilter struct {
	held  []logRow
	bytes int           // of their payloads
	maxHeld  int           // rows; see full
	fullSince time.Time     // it is full; zero: it is not
	maxFull time.Duration // how long it may be
}

// Rows that are held back before the log waits for them: a transaction may be larger than
// memory, and its standby take long. Nothing of the log is read then, not even that the
// server has ended it: after fullFor the table is read instead, which shows what others
// commit without standbys.
const (
	maxHeldRows  = 10 * tailRows
	maxHeldBytes = 4 * tailBytes
	maxFullTime   = 10 * time.Second
)

// full reports whether no more rows should be taken from the log for now.
func (s *visibilityFilter) full() bool { return len(s.held) >= s.maxHeld || s.bytes >= maxHeldBytes }

// settlePause is the time between two looks at transactions that cannot be seen
// yet; it doubles up to the longest.
const (
	visiblePause   = 200 * time.Microsecond
	maxVisiblePause = 10 * time.Millisecond
)

// pass takes new rows of the log and returns, of them and of those held back,
// the ones that can be seen now.
func (s *visibilityFilter) filter(ctx context.Context, l *lease, fresh []logRow) ([]outbox.Row, error) {
	s.held = append(s.held, fresh...)
	if len(s.held) == 0 {
		return nil, nil
	}
	var now snapshot
	err := l.do(ctx, "look which transactions of the log can be seen in", &l.read, func(c *pgx.Conn) error {
		var text string
		err := c.QueryRow(ctx, snapshotText).Scan(&text)
		if err == nil {
			now, err = parseSnapshot(text)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var rows []outbox.Row
	kept := s.held[:0]
	s.bytes = 0
	for _, a := range s.held {
		if now.sees(a.xid) {
			rows = append(rows, a.row)
		} else {
			kept = append(kept, a)
			s.bytes += len(a.row.Payload)
		}
	}
	clear(s.held[len(kept):])
	s.held = kept
	switch {
	case !s.full():
		s.fullSince = time.Time{}
	case s.fullSince.IsZero():
		s.fullSince = time.Now()
	case len(rows) == 0 && time.Since(s.fullSince) > s.maxFull:
		return nil, fmt.Errorf("%d messages of the log are of transactions that cannot be seen after %v: their commits wait for standbys", len(s.held), s.maxFull)
	}
	return rows, nil
}
