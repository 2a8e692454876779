package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// adminBatch is the number of rows per statement of Requeue and Purge.
const adminBatch = 1000

// Promote implements [outbox.Store].
func (s *Store) Promote(ctx context.Context, limit int) (moved int, next time.Duration, err error) {
	n, _, err := s.ready(ctx)
	if err != nil {
		return 0, 0, err
	}
	scheduled := n.q(outbox.ScheduledSuffix)
	// INSERT ... SELECT calls nextval in the order of the SELECT.
	var b pgx.Batch
	b.Queue("WITH due AS (DELETE FROM "+scheduled+" WHERE seq IN (SELECT seq FROM "+scheduled+
		" WHERE available_at <= clock_timestamp() ORDER BY available_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED)"+
		" RETURNING seq AS was, available_at, "+messageColumns+"), put AS (INSERT INTO "+n.q("")+" ("+messageColumns+
		") SELECT "+messageColumns+" FROM due ORDER BY available_at, was) SELECT count(*) FROM due", limit)
	// At most a day: infinity, or a time centuries ahead, is no time.Duration, and an error
	// here would undo the move.
	b.Queue("SELECT (extract(epoch FROM least(greatest(min(available_at), now()), now() + interval '1 day') - clock_timestamp()) * 1000000)::bigint FROM " +
		scheduled + " HAVING count(*) > 0")
	results := s.pool.SendBatch(ctx, &b)
	var micros *int64
	err = results.QueryRow().Scan(&moved)
	if err == nil {
		if err = results.QueryRow().Scan(&micros); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		return 0, 0, s.wrap("promote scheduled messages of", err)
	case micros == nil:
		return moved, -1, nil
	}
	return moved, max(0, time.Duration(*micros)*time.Microsecond), nil
}

// Status implements [outbox.Store]. It reads every table completely.
func (s *Store) Status(ctx context.Context) (outbox.Status, error) {
	var st outbox.Status
	n, m, err := s.ready(ctx)
	if err != nil {
		return st, err
	}
	delivered := "0"
	if m.layout == outbox.History {
		delivered = "count(*) FILTER (WHERE status = 1)"
	}
	var oldest int64
	err = s.pool.QueryRow(ctx, fmt.Sprintf(`SELECT
		count(*) FILTER (WHERE %[1]s), %[2]s,
		coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE %[1]s)) * 1000000, 0)::bigint,
		(SELECT count(*) FROM %[4]s), (SELECT count(*) FROM %[5]s AS p WHERE EXISTS (SELECT FROM %[3]s AS t WHERE %[7]s AND %[1]s)),
		(SELECT count(*) FROM %[6]s) FROM %[3]s`,
		m.pending(), delivered, n.q(""), n.q(outbox.ScheduledSuffix), n.q("_parked"), n.q("_dead"), m.noteOf())).
		Scan(&st.Pending, &st.Delivered, &oldest, &st.Scheduled, &st.Parked, &st.Dead)
	if err != nil {
		return st, s.wrap("count the messages of", err)
	}
	if st.Pending > 0 {
		st.Oldest = max(time.Duration(oldest)*time.Microsecond, 1)
	}
	st.Leases, err = s.leases(ctx, n)
	return st, err
}

func (s *Store) leases(ctx context.Context, n names) ([]outbox.LeaseStatus, error) {
	rows, err := s.pool.Query(ctx, "SELECT shard, owner, epoch FROM "+n.q("_lease")+" ORDER BY shard")
	if err != nil {
		return nil, s.wrap("list the leases of", err)
	}
	var out []outbox.LeaseStatus
	var one outbox.LeaseStatus
	_, err = pgx.ForEachRow(rows, []any{&one.Shard, &one.Owner, &one.Epoch}, func() error {
		out = append(out, one)
		return nil
	})
	if err != nil {
		return nil, s.wrap("list the leases of", err)
	}
	rows, err = s.pool.Query(ctx, advisoryKeys)
	if err != nil {
		return nil, s.wrap("look who leads shards of", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, s.wrap("look who leads shards of", err)
	}
	held := map[int64]bool{}
	for _, key := range keys {
		held[key] = true
	}
	for i := range out {
		out[i].Held = held[n.leaseKey(out[i].Shard)]
	}
	return out, nil
}

// selection is the table and the condition of a query's messages.
type selection struct {
	table string
	where string
	since string // the column of Query.Since and Before
	args  []any
}

var errState = errors.New("want pending, scheduled, dead or delivered")

// selects returns the selection of a query.
func selects(n names, m meta, q outbox.Query) (selection, error) {
	sel := selection{table: n.q(""), where: "true", since: "t.created_at"}
	switch q.State {
	case outbox.Pending:
		sel.where = m.pending()
	case outbox.Delivered:
		sel.where = "false" // layout queue does not keep delivered rows
		if m.layout == outbox.History {
			sel.where = "status = 1"
		}
	case outbox.Scheduled:
		sel.table = n.q(outbox.ScheduledSuffix)
	case outbox.Dead:
		sel.table, sel.since = n.q("_dead"), "t.died_at"
	default:
		return sel, fmt.Errorf("state %q: %w", q.State, errState)
	}
	and := func(condition string, arg any) {
		sel.args = append(sel.args, arg)
		sel.where += " AND " + fmt.Sprintf(condition, len(sel.args))
	}
	if len(q.IDs) > 0 {
		ids := make([]string, len(q.IDs))
		for i, id := range q.IDs {
			ids[i] = id.String()
		}
		and("t.id = ANY($%d::text[]::uuid[])", ids)
	}
	if q.Topic != "" {
		and("t.topic = $%d", q.Topic)
	}
	if q.Key != "" {
		and("t.msg_key = $%d", q.Key)
	}
	if !q.Since.IsZero() {
		and(sel.since+" >= $%d", q.Since.UTC())
	}
	if !q.Before.IsZero() {
		and(sel.since+" < $%d", q.Before.UTC())
	}
	if q.OlderThan > 0 {
		and(sel.since+" < statement_timestamp() - $%d::bigint * interval '1 microsecond'", q.OlderThan.Microseconds())
	}
	return sel, nil
}

// List implements [outbox.Store]. Messages are ordered by number, dead ones by when they were
// buried.
func (s *Store) List(ctx context.Context, q outbox.Query) ([]outbox.Listed, error) {
	n, m, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	sel, err := selects(n, m, q)
	if err != nil {
		return nil, s.wrap("list messages of", err)
	}
	// due, ended, attempts, reason, error
	facts, from, order := "NULL::timestamptz, NULL::timestamptz, 0, '', ''", sel.table+" AS t", "t.seq"
	switch {
	case q.State == outbox.Pending:
		facts = "p.next_at, NULL::timestamptz, coalesce(p.attempts, 0), '', coalesce(p.error, '')"
		from += " LEFT JOIN " + n.q("_parked") + " AS p ON " + m.noteOf()
	case q.State == outbox.Scheduled:
		facts = "t.available_at, NULL::timestamptz, 0, '', ''"
		order = "t.available_at, t.seq"
	case q.State == outbox.Dead:
		facts, order = "NULL::timestamptz, t.died_at, t.attempts, t.reason, t.error", "t.died_at, t.seq"
	case m.layout == outbox.History:
		facts = "NULL::timestamptz, t.done_at, 0, '', ''"
	}
	text := "SELECT t." + strings.ReplaceAll(rowColumns, ", ", ", t.") + ", " + facts + " FROM " + from +
		" WHERE " + sel.where + " ORDER BY " + order
	if q.Limit > 0 {
		text += fmt.Sprintf(" LIMIT %d", q.Limit)
	}
	rows, err := s.pool.Query(ctx, text, sel.args...)
	if err != nil {
		return nil, s.wrap("list messages of", err)
	}
	defer rows.Close()
	var out []outbox.Listed
	for rows.Next() {
		one := outbox.Listed{State: q.State}
		var due, ended *time.Time
		if err := scanRow(rows, &one.Row, &due, &ended, &one.Attempts, &one.Reason, &one.Error); err != nil {
			return nil, s.wrap("list messages of", err)
		}
		if due != nil {
			one.DueAt = due.UTC()
		}
		if ended != nil {
			one.EndedAt = ended.UTC()
		}
		out = append(out, one)
	}
	if err := rows.Err(); err != nil {
		return nil, s.wrap("list messages of", err)
	}
	return out, nil
}

// Requeue implements [outbox.Store]. It inserts the messages with new numbers, so that every
// reader finds them, and deletes the old rows, in transactions of adminBatch rows. It ignores
// messages that match the query only after it has started.
func (s *Store) Requeue(ctx context.Context, q outbox.Query) (int64, error) {
	moved := messageColumns
	if q.NewIdentity {
		moved = strings.Replace(moved, "dedup_key", "gen_random_uuid()::text", 1)
	}
	n, err := s.inBatches(ctx, q, func(names names, doomed string) string {
		return "WITH gone AS (" + doomed + " RETURNING t.seq AS was, " + messageColumnsOf("t") +
			"), put AS (INSERT INTO " + names.q("") + " (" + messageColumns + ") SELECT " + moved + " FROM gone ORDER BY was)" +
			" SELECT count(*) FROM gone"
	})
	if err != nil {
		return n, s.wrap("requeue messages of", err)
	}
	return n, nil
}

// Purge implements [outbox.Store], in transactions of adminBatch rows.
func (s *Store) Purge(ctx context.Context, q outbox.Query) (int64, error) {
	n, err := s.inBatches(ctx, q, func(_ names, doomed string) string {
		return "WITH gone AS (" + doomed + " RETURNING 1) SELECT count(*) FROM gone"
	})
	if err != nil {
		return n, s.wrap("purge messages of", err)
	}
	return n, nil
}

// inBatches repeats a statement for up to adminBatch selected rows until there are no more.
// statement returns it, given the DELETE of those rows.
func (s *Store) inBatches(ctx context.Context, q outbox.Query, statement func(n names, doomed string) string) (total int64, err error) {
	n, m, err := s.ready(ctx)
	if err != nil {
		return 0, err
	}
	if q.State != outbox.Dead && q.State != outbox.Delivered {
		return 0, fmt.Errorf("state %q: want dead or delivered: others are on their way", q.State)
	}
	sel, err := selects(n, m, q)
	if err != nil {
		return 0, err
	}
	// Messages that are requeued and then delivered or buried again have higher numbers.
	var last *int64
	if err := s.pool.QueryRow(ctx, "SELECT max(t.seq) FROM "+sel.table+" AS t WHERE "+sel.where, sel.args...).Scan(&last); err != nil {
		return 0, fmt.Errorf("look for the last: %w", err)
	}
	if last == nil {
		return 0, nil
	}
	key := "seq"
	if q.State == outbox.Delivered {
		key = "(seq, created_at)"
	}
	args := append(sel.args, *last)
	doomed := fmt.Sprintf("DELETE FROM %[1]s AS t WHERE %[2]s IN (SELECT %[3]s FROM %[1]s AS t WHERE %[4]s AND seq <= $%[5]d ORDER BY seq LIMIT $%[6]d FOR UPDATE)",
		sel.table, key, strings.Trim(key, "()"), sel.where, len(args), len(args)+1)
	text := statement(n, doomed)
	left := int64(math.MaxInt64)
	if q.Limit > 0 {
		left = int64(q.Limit)
	}
	for left > 0 {
		var count int64
		if err := s.pool.QueryRow(ctx, text, append(args, min(left, adminBatch))...).Scan(&count); err != nil {
			return total, err
		}
		if count == 0 {
			break
		}
		total, left = total+count, left-count
	}
	return total, nil
}
