package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// admin lists and changes messages for the commands of operators.
type admin struct{ *Store }

// tableInfo is what statements depend on.
type tableInfo struct {
	history, parts bool
	noteIDs        bool // table _parked has column id
}

// tableInfo reads it, and returns an error for tables that this version cannot use.
func (s *Store) tableInfo(ctx context.Context, c *session) (tableInfo, error) {
	v, err := s.serverOf(ctx, c)
	if err != nil {
		return tableInfo{}, err
	}
	t, err := migration{s}.inspect(ctx, c, v)
	if err == nil {
		err = t.checkVersion()
	}
	if err != nil {
		return tableInfo{}, err
	}
	return tableInfo{t.meta.layout == outbox.History, len(t.partitions) > 0, t.noteIDs}, nil
}

// withTables runs f with a session and the tables' tableInfo.
func (s *Store) withTables(ctx context.Context, step string, f func(c *session, t tableInfo) error) error {
	err := s.with(ctx, func(c *session) error {
		t, err := s.tableInfo(ctx, c)
		if err != nil {
			return err
		}
		return f(c, t)
	})
	if err != nil {
		return s.fail(step, err)
	}
	return nil
}

// Status implements [outbox.Store]. It reads every pending row.
func (s *Store) Status(ctx context.Context) (outbox.Status, error) {
	var st outbox.Status
	err := s.withTables(ctx, "count rows of", func(c *session, t tableInfo) error {
		pending := "{outbox} o FORCE INDEX (PRIMARY)"
		if t.history {
			pending = "{outbox} o FORCE INDEX (pending) WHERE o.status = 0"
		}
		var age *int64
		err := c.QueryRowContext(ctx, s.sql("SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(o.created_at), UTC_TIMESTAMP(6)) FROM "+pending)).Scan(&st.Pending, &age)
		if err != nil {
			return err
		}
		if age != nil {
			st.Oldest = max(time.Microsecond, time.Duration(*age)*time.Microsecond)
		}
		counts := []struct {
			n    *int64
			from string
		}{
			{&st.Scheduled, "{scheduled}"},
			{&st.Dead, "{dead}"},
			{&st.Parked, "{parked} p STRAIGHT_JOIN {outbox} o ON " + noteOf(t.noteIDs) + pendingOf(t.history)},
		}
		if t.history {
			counts = append(counts, struct {
				n    *int64
				from string
			}{&st.Delivered, "{outbox} o WHERE o.status = 1"})
		}
		for _, k := range counts {
			if err := c.QueryRowContext(ctx, s.sql("SELECT COUNT(*) FROM "+k.from)).Scan(k.n); err != nil {
				return err
			}
		}
		st.Leases, err = admin{s}.leases(ctx, c)
		return err
	})
	if err != nil {
		return outbox.Status{}, err
	}
	return st, nil
}

func (s admin) leases(ctx context.Context, c *session) ([]outbox.LeaseStatus, error) {
	v, err := s.serverOf(ctx, c)
	if err != nil {
		return nil, err
	}
	rows, err := c.QueryContext(ctx, s.sql("SELECT shard, owner, epoch, IS_USED_LOCK(CONCAT('"+v.lockName(s.Store, "")+"', shard)) IS NOT NULL FROM {lease} ORDER BY shard"))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []outbox.LeaseStatus
	for rows.Next() {
		var l outbox.LeaseStatus
		if err := rows.Scan(&l.Shard, &l.Owner, &l.Epoch, &l.Held); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

// moment formats a time for comparison with a DATETIME.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999") }

// conditions returns the condition of q for the table with that alias; created is the column
// for Since and Before.
func conditions(q outbox.Query, alias, created string) (where string, args []any) {
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
		add(alias+".id IN (?"+strings.Repeat(", ?", len(ids)-1)+")", ids...)
	}
	// As bytes: in the collation "a" equals "a ".
	if q.Topic != "" {
		add("CAST("+alias+".topic AS BINARY) = CAST(? AS BINARY)", q.Topic)
	}
	if q.Key != "" {
		add("CAST("+alias+".msg_key AS BINARY) = CAST(? AS BINARY)", q.Key)
	}
	if !q.Since.IsZero() {
		add(alias+"."+created+" >= ?", moment(q.Since))
	}
	if !q.Before.IsZero() {
		add(alias+"."+created+" < ?", moment(q.Before))
	}
	if q.OlderThan > 0 {
		add(alias+"."+created+" < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", q.OlderThan.Microseconds())
	}
	return strings.Join(parts, " AND "), args
}

// listing is the source of messages of one state. extra has the columns due and ended
// (microseconds since 1970), attempts, reason and error.
type listing struct{ extra, from, alias, created, order string }

func listingOf(state outbox.State, history, noteIDs bool) (listing, bool) {
	switch state {
	case outbox.Pending:
		return listing{
			micros1970("p.due_at") + ", NULL, COALESCE(p.attempts, 0), '', COALESCE(p.error, '')",
			"{outbox} o LEFT JOIN {parked} p ON " + noteOf(noteIDs) + " WHERE " + statusIs(history, "0"), "o", "created_at", "o.seq",
		}, true
	case outbox.Scheduled:
		return listing{micros1970("o.available_at") + ", NULL, 0, '', ''", "{scheduled} o WHERE TRUE", "o", "created_at", "o.available_at, o.seq"}, true
	case outbox.Dead:
		return listing{"NULL, " + micros1970("o.died_at") + ", o.attempts, o.reason, o.error", "{dead} o WHERE TRUE", "o", "died_at", "o.dead_seq"}, true
	case outbox.Delivered:
		ended := "NULL"
		if history {
			ended = micros1970("o.done_at")
		}
		return listing{"NULL, " + ended + ", 0, '', ''", "{outbox} o WHERE " + statusIs(history, "1"), "o", "created_at", "o.seq"}, true
	}
	return listing{}, false
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

// List implements [outbox.Store]. Without a state it lists all states, ordered by creation
// time.
func (s *Store) List(ctx context.Context, q outbox.Query) ([]outbox.Listed, error) {
	states := []outbox.State{q.State}
	if q.State == "" {
		states = []outbox.State{outbox.Delivered, outbox.Pending, outbox.Scheduled, outbox.Dead}
	}
	var out []outbox.Listed
	err := s.withTables(ctx, "list messages of", func(c *session, t tableInfo) error {
		for _, state := range states {
			listed, err := admin{s}.list(ctx, c, t, state, q)
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

func (s admin) list(ctx context.Context, c *session, t tableInfo, state outbox.State, q outbox.Query) ([]outbox.Listed, error) {
	l, ok := listingOf(state, t.history, t.noteIDs)
	if !ok {
		return nil, fmt.Errorf("unknown state %q", state)
	}
	where, args := conditions(q, l.alias, l.created)
	text := s.sql("SELECT "+rowColumns(l.alias)+", "+l.extra+" FROM "+l.from) + " AND " + where + " ORDER BY " + l.order
	if q.Limit > 0 {
		text += fmt.Sprintf(" LIMIT %d", q.Limit)
	}
	rows, err := c.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []outbox.Listed
	d := decoder{all: true}
	for rows.Next() {
		cells := make([]any, rowWidth)
		dest := make([]any, rowWidth, rowWidth+5)
		for i := range cells {
			dest[i] = &cells[i]
		}
		m := outbox.Listed{State: state}
		var due, ended sql.NullInt64
		var attempts int
		if err := rows.Scan(append(dest, &due, &ended, &attempts, &m.Reason, &m.Error)...); err != nil {
			return nil, err
		}
		values := make([]driver.Value, rowWidth)
		for i := range cells {
			values[i] = cells[i]
		}
		if m.Row, _, err = d.row(values); err != nil {
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
func endedRows(state outbox.State, t tableInfo) (table, number, created, condition string, err error) {
	switch {
	case state == outbox.Dead:
		return "{dead}", "dead_seq", "died_at", "TRUE", nil
	case state == outbox.Delivered && t.history:
		return "{outbox}", "seq", "created_at", "o.status = 1", nil
	case state == outbox.Delivered:
		return "", "", "", "", nil
	}
	return "", "", "", "", fmt.Errorf("messages that are %s: want dead or delivered", cmp.Or(string(state), "in any state"))
}

// inBatches runs f with the numbers of messages that q selects, batch by batch, each in a
// transaction, until there are no more or q.Limit is reached. It ignores messages with
// numbers above the highest one at its start, such as a message that is requeued and buried
// again.
func (s admin) inBatches(ctx context.Context, step string, q outbox.Query, f func(c *session, table, number string, seqs []int64) error) (int64, error) {
	var table, number, created, condition string
	var last sql.NullInt64
	err := s.withTables(ctx, step, func(c *session, t tableInfo) (err error) {
		if table, number, created, condition, err = endedRows(q.State, t); err != nil || table == "" {
			return err
		}
		return c.QueryRowContext(ctx, s.sql("SELECT MAX("+number+") FROM "+table)).Scan(&last)
	})
	if err != nil || !last.Valid {
		return 0, err
	}
	where, args := conditions(q, "o", created)
	var total int64
	for q.Limit == 0 || total < int64(q.Limit) {
		size := int64(batch)
		if q.Limit > 0 {
			size = min(size, int64(q.Limit)-total)
		}
		n := 0
		err := s.inTx(ctx, func(c *session) error {
			text := s.sql(fmt.Sprintf("SELECT o.%s FROM %s o WHERE %s AND %s AND o.%s <= %d ORDER BY o.%s LIMIT %d FOR UPDATE SKIP LOCKED",
				number, table, condition, where, number, last.Int64, number, size))
			rows, err := c.QueryContext(ctx, text, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			var seqs []int64
			for rows.Next() {
				var seq int64
				if err := rows.Scan(&seq); err != nil {
					return err
				}
				seqs = append(seqs, seq)
			}
			if err := rows.Err(); err != nil {
				return err
			}
			if n = len(seqs); n == 0 {
				return nil
			}
			return f(c, table, number, seqs)
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
	moved := messageColumnsOf("o")
	if q.NewIdentity {
		moved = strings.Replace(moved, "o.dedup_key", "UUID()", 1)
	}
	return admin{s}.inBatches(ctx, "requeue messages of", q, func(c *session, table, number string, seqs []int64) error {
		text := "INSERT INTO {outbox} (" + messageColumns + ") SELECT " + moved + " FROM " + numbersTable(seqs) +
			" STRAIGHT_JOIN " + table + " o ON o." + number + " = d.s ORDER BY o." + number
		if err := c.exec(ctx, s.sql(text)); err != nil {
			return err
		}
		return admin{s}.drop(ctx, c, table, number, seqs)
	})
}

func (s admin) drop(ctx context.Context, c *session, table, number string, seqs []int64) error {
	return c.exec(ctx, s.sql("DELETE o FROM "+numbersTable(seqs)+" STRAIGHT_JOIN "+table+" o ON o."+number+" = d.s"))
}

// Purge implements [outbox.Store].
func (s *Store) Purge(ctx context.Context, q outbox.Query) (int64, error) {
	return admin{s}.inBatches(ctx, "purge messages of", q, func(c *session, table, number string, seqs []int64) error {
		return admin{s}.drop(ctx, c, table, number, seqs)
	})
}
