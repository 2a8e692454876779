package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Status implements [outbox.Store]. It reads every pending row.
func (s *Store) Status(ctx context.Context) (st outbox.Status, err error) {
	err = s.withTables(ctx, "count rows of", func(tx *sql.Tx, t *tables) error {
		st = outbox.Status{}
		var age sql.NullInt64
		err := tx.QueryRowContext(ctx, s.sql("SELECT COUNT(*), "+nowMicros+" - MIN(o.created_at) FROM {outbox} o WHERE "+statusIs(t.history(), "0"))).Scan(&st.Pending, &age)
		if err != nil {
			return err
		}
		if age.Valid {
			st.Oldest = max(time.Microsecond, time.Duration(age.Int64)*time.Microsecond)
		}
		for _, k := range []struct {
			n    *int64
			from string
		}{
			{&st.Scheduled, "{scheduled}"},
			{&st.Dead, "{dead}"},
			{&st.Parked, "{parked} p CROSS JOIN {outbox} o WHERE " + noteOf(t.noteIDs) + " AND " + statusIs(t.history(), "0")},
			{&st.Delivered, "{outbox} o WHERE " + statusIs(t.history(), "1")},
		} {
			if err := tx.QueryRowContext(ctx, s.sql("SELECT COUNT(*) FROM "+k.from)).Scan(k.n); err != nil {
				return err
			}
		}
		st.Leases, err = s.leases(ctx, tx)
		return err
	})
	return st, err
}

func (s *Store) leases(ctx context.Context, tx *sql.Tx) (out []outbox.LeaseStatus, err error) {
	rows, err := tx.QueryContext(ctx, s.sql("SELECT shard, owner, epoch FROM {lease} ORDER BY shard"))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l outbox.LeaseStatus
		if err := rows.Scan(&l.Shard, &l.Owner, &l.Epoch); err != nil {
			return nil, err
		}
		if l.Held, err = s.isLocked(l.Shard); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

// isLocked reports whether the lock of a shard is taken, by trying it.
func (s *Store) isLocked(shard int) (bool, error) {
	lock, err := s.lock(shard)
	if errors.Is(err, outbox.ErrHeld) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, lock.Close()
}

// statusIs is a condition on the status; layout Queue has no such column, and all its rows
// are pending.
func statusIs(history bool, status string) string {
	switch {
	case history:
		return "o.status = " + status
	case status == "0":
		return "TRUE"
	}
	return "FALSE"
}

// conditions returns the condition of q for table o; created is the column for Since and Before.
func conditions(q outbox.Query, created string) (where string, args []any) {
	parts := []string{"TRUE"}
	add := func(condition string, values ...any) {
		parts = append(parts, condition)
		args = append(args, values...)
	}
	if len(q.IDs) > 0 {
		ids := make([]any, len(q.IDs))
		for i, id := range q.IDs {
			ids[i] = id[:]
		}
		add("o.id IN (?"+strings.Repeat(", ?", len(ids)-1)+")", ids...)
	}
	if q.Topic != "" {
		add("o.topic = ?", q.Topic)
	}
	if q.Key != "" {
		add("o.msg_key = ?", q.Key)
	}
	if !q.Since.IsZero() {
		add("o."+created+" >= ?", q.Since.UnixMicro())
	}
	if !q.Before.IsZero() {
		add("o."+created+" < ?", q.Before.UnixMicro())
	}
	if q.OlderThan > 0 {
		add("o."+created+" < "+nowMicros+" - ?", q.OlderThan.Microseconds())
	}
	return strings.Join(parts, " AND "), args
}

// listing is the source of messages of one state. extra has the columns due, ended, attempts,
// reason and error.
type listing struct{ extra, from, created, order string }

func listingOf(state outbox.State, history, noteIDs bool) (listing, bool) {
	switch state {
	case outbox.Pending:
		return listing{
			"p.due_at, NULL, COALESCE(p.attempts, 0), '', COALESCE(p.error, '')",
			"{outbox} o LEFT JOIN {parked} p ON " + noteOf(noteIDs) + " WHERE " + statusIs(history, "0"), "created_at", "o.seq",
		}, true
	case outbox.Scheduled:
		return listing{"o.available_at, NULL, 0, '', ''", "{scheduled} o WHERE TRUE", "created_at", "o.available_at, o.seq"}, true
	case outbox.Dead:
		return listing{"NULL, o.died_at, o.attempts, o.reason, o.error", "{dead} o WHERE TRUE", "died_at", "o.dead_seq"}, true
	case outbox.Delivered:
		ended := "NULL"
		if history {
			ended = "o.done_at"
		}
		return listing{"NULL, " + ended + ", 0, '', ''", "{outbox} o WHERE " + statusIs(history, "1"), "created_at", "o.seq"}, true
	}
	return listing{}, false
}

// List implements [outbox.Store]. Without a state it lists all states, ordered by creation
// time.
func (s *Store) List(ctx context.Context, q outbox.Query) (out []outbox.Listed, err error) {
	states := []outbox.State{q.State}
	if q.State == "" {
		states = []outbox.State{outbox.Delivered, outbox.Pending, outbox.Scheduled, outbox.Dead}
	}
	err = s.withTables(ctx, "list messages of", func(tx *sql.Tx, t *tables) error {
		out = nil
		for _, state := range states {
			listed, err := s.list(ctx, tx, t, state, q)
			if err != nil {
				return err
			}
			out = append(out, listed...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(states) > 1 {
		slices.SortStableFunc(out, func(a, b outbox.Listed) int { return a.CreatedAt.Compare(b.CreatedAt) })
		if q.Limit > 0 {
			out = out[:min(len(out), q.Limit)]
		}
	}
	return out, nil
}

func (s *Store) list(ctx context.Context, tx *sql.Tx, t *tables, state outbox.State, q outbox.Query) (out []outbox.Listed, err error) {
	l, ok := listingOf(state, t.history(), t.noteIDs)
	if !ok {
		return nil, fmt.Errorf("unknown state %q", state)
	}
	where, args := conditions(q, l.created)
	limit := -1
	if q.Limit > 0 {
		limit = q.Limit
	}
	text := s.sql("SELECT "+rowColumns+", "+l.extra+" FROM "+l.from) + " AND " + where + " ORDER BY " + l.order + " LIMIT ?"
	rows, err := tx.QueryContext(ctx, text, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := shardRows{all: true}
	for rows.Next() {
		m := outbox.Listed{State: state}
		var due, ended sql.NullInt64
		var attempts int
		if m.Row, _, err = all.scanRow(rows, &due, &ended, &attempts, &m.Reason, &m.Error); err != nil {
			return nil, err
		}
		m.Attempts = attempts
		m.DueAt, m.EndedAt = timeOf(due), timeOf(ended)
		out = append(out, m)
	}
	return out, rows.Err()
}

func timeOf(micros sql.NullInt64) time.Time {
	if !micros.Valid {
		return time.Time{}
	}
	return time.UnixMicro(micros.Int64).UTC()
}

// batch is the number of rows that one transaction moves or deletes.
const batch = 500

// endedRows returns the table of dead or delivered messages, its columns and a condition.
func endedRows(state outbox.State, t *tables) (table, number, created, condition string, err error) {
	switch {
	case state == outbox.Dead:
		return "{dead}", "dead_seq", "died_at", "TRUE", nil
	case state == outbox.Delivered && t.history():
		return "{outbox}", "seq", "created_at", "o.status = 1", nil
	case state == outbox.Delivered:
		return "", "", "", "", nil
	}
	return "", "", "", "", fmt.Errorf("messages that are %s: want dead or delivered", cmp.Or(string(state), "in any state"))
}

// inBatches runs f with the numbers of messages that q selects, batch by batch, each in a
// transaction, until there are no more or q.Limit is reached. It ignores messages with numbers
// above the highest one at its start.
func (s *Store) inBatches(ctx context.Context, step string, q outbox.Query, f func(tx *sql.Tx, table, number, list string) error) (total int64, err error) {
	var table, number, created, condition string
	var last sql.NullInt64
	err = s.withTables(ctx, step, func(tx *sql.Tx, t *tables) (err error) {
		if table, number, created, condition, err = endedRows(q.State, t); err != nil || table == "" {
			return err
		}
		return tx.QueryRowContext(ctx, s.sql("SELECT MAX("+number+") FROM "+table)).Scan(&last)
	})
	if err != nil || !last.Valid {
		return 0, err
	}
	where, args := conditions(q, created)
	for q.Limit == 0 || total < int64(q.Limit) {
		size := int64(batch)
		if q.Limit > 0 {
			size = min(size, int64(q.Limit)-total)
		}
		n := 0
		err := s.write(ctx, func(tx *sql.Tx) error {
			text := fmt.Sprintf("SELECT o.%s FROM %s o WHERE %s AND %s AND o.%s <= %d ORDER BY o.%s LIMIT %d", number, table, condition, where, number, last.Int64, number, size)
			rows, err := tx.QueryContext(ctx, s.sql(text), args...)
			if err != nil {
				return err
			}
			seqs, err := collect(rows)
			if n = len(seqs); err != nil || n == 0 {
				return err
			}
			return f(tx, table, number, numbers(seqs))
		})
		if err != nil {
			return total, s.fail(step, err)
		}
		if total += int64(n); n == 0 {
			break
		}
	}
	return total, nil
}

// Requeue implements [outbox.Store]. The messages get new numbers, above those that relays
// have seen.
func (s *Store) Requeue(ctx context.Context, q outbox.Query) (int64, error) {
	moved := messageColumns
	if q.NewIdentity {
		moved = strings.Replace(moved, "dedup_key", "lower(hex(randomblob(16)))", 1)
	}
	return s.inBatches(ctx, "requeue messages of", q, func(tx *sql.Tx, table, number, list string) error {
		text := "INSERT INTO {outbox} (" + messageColumns + ") SELECT " + moved + " FROM " + table + " WHERE " + number + " IN " + inList + " ORDER BY " + number
		if err := s.exec(ctx, tx, text, list); err != nil {
			return err
		}
		return s.exec(ctx, tx, "DELETE FROM "+table+" WHERE "+number+" IN "+inList, list)
	})
}

// Purge implements [outbox.Store].
func (s *Store) Purge(ctx context.Context, q outbox.Query) (int64, error) {
	return s.inBatches(ctx, "purge messages of", q, func(tx *sql.Tx, table, number, list string) error {
		return s.exec(ctx, tx, "DELETE FROM "+table+" WHERE "+number+" IN "+inList, list)
	})
}
