package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// convertBatch is the number of rows that one transaction of a conversion moves.
const convertBatch = 10_000

// convert rebuilds the table with the plan's period, if it was asked to:
//
//	1  create the table _new with partitions for all existing rows, and record
//	   the conversion in _meta
//	2  move delivered rows there, one batch per transaction, until none are left
//	3  lock the table, move the rest and put _new in its place
//
// Every step is a transaction and starts from what the tables contain, so an interrupted
// conversion can be continued. An unfinished conversion to another period is completed first,
// since the delivered rows that it moved exist nowhere else.
func (m *migration) convert(ctx context.Context, old meta) error {
	if !m.plan.Convert {
		return nil
	}
	for _, period := range []outbox.Period{old.converting, m.plan.Partition.Period} {
		if period == outbox.Unpartitioned || period == old.period {
			continue
		}
		if err := m.convertTo(ctx, period, old); err != nil {
			return fmt.Errorf("convert to partitions by %v: %w", period, err)
		}
		old.period, old.converting = period, outbox.Unpartitioned
	}
	return nil
}

func (m *migration) convertTo(ctx context.Context, period outbox.Period, old meta) error {
	if old.converting != period {
		if err := m.inTx(ctx, func() error { return m.prepare(ctx, period) }); err != nil {
			return err
		}
	}
	if err := m.moveDelivered(ctx); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := m.inTx(ctx, func() error { return m.swap(ctx, period) })
		if err == nil || !isBusy(err) || attempt == lockAttempts {
			return err
		}
	}
}

// prepare creates the new table.
func (m *migration) prepare(ctx context.Context, period outbox.Period) error {
	n, spec := m.names, m.plan.Partition
	spec.Period = period
	now, err := clock(ctx, m.tx)
	if err != nil {
		return err
	}
	var oldest *time.Time
	if err := m.tx.QueryRow(ctx, "SELECT min(created_at) FROM "+n.q("")).Scan(&oldest); err != nil {
		return fmt.Errorf("look for the oldest row: %w", err)
	}
	if oldest != nil {
		spec.Lookback = max(spec.Lookback, now.Sub(*oldest))
	}
	spec.Keep = 0
	if err := checkSpec(spec); err != nil {
		return err
	}
	statements := []string{
		mainTable(n.q("_new"), outbox.History, true), bucketTrigger(n, n.q("_new")), pendingIndex(n.q("_new")),
		catchAllPartition(n, n.q("_new"), period),
	}
	for _, sp := range spans(spec, now) {
		statements = append(statements, newPartition(n, n.q("_new"), period, sp))
	}
	statements = append(statements, fmt.Sprintf("UPDATE %s SET converting = '%v'", n.q("_meta"), period))
	for _, sql := range statements {
		if err := m.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

const historyColumns = "seq, " + messageColumns + ", created_at, status, done_at"

// moveDelivered moves delivered rows. It leaves locked rows to swap.
func (m *migration) moveDelivered(ctx context.Context) error {
	n := m.names
	sql := strings.Join([]string{
		"WITH moved AS (DELETE FROM", n.q(""), "WHERE (seq, created_at) IN (SELECT seq, created_at FROM", n.q(""),
		"WHERE seq > $1 AND status = 1 ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING", historyColumns + "),",
		"put AS (INSERT INTO", n.q("_new"), "(" + historyColumns + ") SELECT", historyColumns, "FROM moved)",
		"SELECT count(*), coalesce(max(seq), $1) FROM moved",
	}, " ")
	m.done = append(m.done, sql)
	if m.plan.DryRun {
		return nil
	}
	var after, count int64
	for count = 1; count > 0; {
		if err := m.conn.QueryRow(ctx, sql, after, convertBatch).Scan(&count, &after); err != nil {
			return fmt.Errorf("move delivered rows: %w", err)
		}
	}
	return nil
}

// swap replaces the old table by the new one.
func (m *migration) swap(ctx context.Context, period outbox.Period) error {
	n := m.names
	statements := []string{
		fmt.Sprintf("SET LOCAL lock_timeout = %d", lockPatience.Milliseconds()),
		"LOCK TABLE " + n.q("") + " IN ACCESS EXCLUSIVE MODE",
		"INSERT INTO " + n.q("_new") + " (" + historyColumns + ") SELECT " + historyColumns + " FROM " + n.q(""),
	}
	after, err := m.inherit(ctx)
	if err != nil {
		return err
	}
	statements = append(statements, after...)
	statements = append(statements,
		"DROP TABLE "+n.q(""),
		"ALTER TABLE "+n.q("_new")+" RENAME TO "+ident(n.table),
		fmt.Sprintf("UPDATE %s SET period = '%v', converting = NULL", n.q("_meta"), period))
	for _, sql := range statements {
		if err := m.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// inherit returns the statements that give the new table the old one's sequence position,
// owner, privileges, notification trigger and publication.
func (m *migration) inherit(ctx context.Context) ([]string, error) {
	n := m.names
	to := n.q("_new")
	sequence := func(quoted string) string { return "pg_get_serial_sequence(" + literal(quoted) + ", 'seq')" }
	statements := []string{
		// nextval wastes one number: a gap like any other.
		"SELECT setval(" + sequence(to) + ", nextval(" + sequence(n.q("")) + "))",
	}
	add := func(query string, statement func(found string) string) error {
		rows, err := m.tx.Query(ctx, query, n.q(""))
		if err != nil {
			return err
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, text := range texts {
			statements = append(statements, statement(text))
		}
		return err
	}
	err := errors.Join(
		add(`SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_catalog.pg_class
			WHERE oid = to_regclass($1) AND pg_get_userbyid(relowner) <> current_user`,
			func(owner string) string { return "ALTER TABLE " + to + " OWNER TO " + owner }),
		add(`SELECT a.privilege_type || ' TO ' ||
				CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END ||
				CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
			FROM pg_catalog.pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = to_regclass($1) AND a.grantee <> c.relowner`,
			func(grant string) string {
				privilege, grantee, _ := strings.Cut(grant, " TO ")
				return "GRANT " + privilege + " ON " + to + " TO " + grantee
			}),
		add(`SELECT tgname::text FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'weir_wake'`,
			func(string) string { return wakeTrigger(n, to) }),
		add(`SELECT quote_ident(p.pubname) FROM pg_catalog.pg_publication p
			JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid WHERE r.prrelid = to_regclass($1)`,
			func(publication string) string { return "ALTER PUBLICATION " + publication + " ADD TABLE " + to }),
	)
	if err != nil {
		return nil, fmt.Errorf("look at what the new table inherits: %w", err)
	}
	return statements, nil
}
