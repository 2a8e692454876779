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

// logRow is a row of the log and the id of its transaction.
type logRow struct {
	row outbox.Row
	xid uint32
}

// snapshot is a result of pg_current_snapshot: transactions below xmin have ended, those from
// xmax on have not begun, and of those in between only the listed ones are running. A
// transaction whose commit waits for standbys is still listed.
type snapshot struct {
	xmin, xmax uint64
	running    map[uint64]struct{}
}

const snapshotText = "SELECT pg_catalog.pg_current_snapshot()::text"

func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("cannot parse the server's snapshot: %q", text)
	}
	number := func(text string) uint64 {
		n, bad := strconv.ParseUint(text, 10, 64)
		if bad != nil {
			err = fmt.Errorf("cannot parse the server's snapshot: %w", bad)
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

// sees reports whether a transaction is visible to the snapshot. The log has only the lower
// half of its id; the upper half is the one that brings it closest to the snapshot.
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

// visibilityFilter holds rows of the log back until their transactions are visible.
//
// A transaction is in the log before it is visible: for microseconds on an idle server, for
// milliseconds when many commit, and with synchronous replication until the standbys have
// answered. If a row were delivered in that time, the consumer could not find what the
// message is about, and the ack would find no row to delete, so that the message would be
// delivered again, behind later ones of its key. And if the primary were lost, a message
// would have been delivered whose transaction exists on no other server.
//
// Visible rows need not wait for earlier rows of the log that are not visible: such a
// transaction has not returned from its COMMIT, so nothing can follow it in the order of a
// key.
type visibilityFilter struct {
	held      []logRow
	bytes     int           // of their payloads
	maxHeld   int           // the most rows; see full
	fullSince time.Time     // it is full; zero: it is not
	maxFull   time.Duration // how long it may be
}

// Limits of the rows that are held back: a transaction may be larger than memory, and its
// standbys may take long. At the limit the log is not read, so not even its end is noticed;
// after maxFullTime the relay reads the table instead, which shows what is committed without
// standbys.
const (
	maxHeldRows  = 10 * tailRows
	maxHeldBytes = 4 * tailBytes
	maxFullTime  = 10 * time.Second
)

// full reports whether no more rows should be read from the log for now.
func (s *visibilityFilter) full() bool { return len(s.held) >= s.maxHeld || s.bytes >= maxHeldBytes }

// visiblePause is the pause between two checks for transactions that are not visible yet; it
// doubles up to maxVisiblePause.
const (
	visiblePause    = 200 * time.Microsecond
	maxVisiblePause = 10 * time.Millisecond
)

// filter adds new rows of the log and returns those, of them and of the ones held back, that
// are visible now.
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
		return nil, fmt.Errorf("%d messages of the log are not visible after %v: their commits wait for standbys", len(s.held), s.maxFull)
	}
	return rows, nil
}
