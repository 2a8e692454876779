// Package storetest is the conformance suite of outbox stores: what
// [outbox.Store] promises, as tests that every store runs against real servers.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { ... })
//	}
//
// Operations that a database does not support (SKIP LOCKED, partitions, following its log) are not
// skipped: the suite checks that the store returns the right error.
package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Harness is one fresh database, without outbox tables, and a store on it.
type Harness struct {
	// Open opens a store on a table of the database, as another process would, and
	// closes it when t ends. The empty name is outbox.DefaultTable.
	Open func(t *testing.T, table string) outbox.Store

	// DB is the same database through database/sql. Tests use several concurrent
	// transactions, unless OneWriter is set.
	DB *sql.DB

	// Tx returns a handle for Enqueue, such as outbox.Postgres.
	Tx func(outbox.Execer) outbox.Tx

	// Quote quotes one identifier, or "schema.name".
	Quote func(name string) string
	// Zone is the suffix of a time literal in UTC, if the session's time zone would
	// be used otherwise: "+00" with PostgreSQL.
	Zone string

	// Names are further table names to try: with quotes, capitals, another schema.
	// The harness creates the schemas.
	Names []string

	// Migrate migrates the default table and stops, as a crash would, before the
	// n-th statement that changes something, counted from 0. It reports whether
	// there was such a statement.
	Migrate func(t *testing.T, plan outbox.Plan, n int) (broken bool)

	// CutLease ends the session that holds the lease of a shard of the default
	// table, as the death of its process would.
	CutLease func(t *testing.T, shard int)

	// OddZone are statements that set an odd time zone; DB then has only one
	// connection.
	OddZone []string

	// The database's abilities.
	SkipLocked bool
	Partitions bool // layout History can be partitioned
	Tail       bool // its log can be followed
	OneWriter  bool // a second writing transaction waits for the first
}

// Run runs the suite. It calls fresh for every test.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, s := range []struct {
		name string
		test func(s *suite)
	}{
		{"EnqueueIsTransactional", enqueueIsTransactional},
		{"EnqueueKeepsEveryByte", enqueueKeepsEveryByte},
		{"EnqueueInBatches", enqueueInBatches},
		{"PlainSQL", plainSQL},
		{"PlainSQLSharesShards", plainSQLSharesShards},
		{"UnreadableHeaders", unreadableHeaders},
		{"OddTimeZone", oddTimeZone},
		{"ReadLimits", readLimits},
		{"ReadGaps", readGaps},
		{"ReadManyGaps", readManyGaps},
		{"LateCommit", lateCommit},
		{"RolledBackGap", rolledBackGap},
		{"SettledNotOfLaterOnes", settledNotOfLaterOnes},
		{"OneSnapshot", oneSnapshot},
		{"Shards", shards},
		{"AckIsIdempotent", ackIsIdempotent},
		{"AckMatchesIDs", ackMatchesIDs(outbox.Queue)},
		{"AckMatchesIDsOfHistory", ackMatchesIDs(outbox.History)},
		{"NotesMatchIDs", notesMatchIDs(outbox.Queue)},
		{"NotesMatchIDsOfHistory", notesMatchIDs(outbox.History)},
		{"FetchAndPending", fetchAndPending},
		{"ParkedOutlivesLease", parkedOutlivesLease},
		{"NotesOfReusedNumbers", notesOfReusedNumbers},
		{"NotesInOlderTables", notesInOlderTables},
		{"ClaimsKeepToBytes", claimsKeepToBytes},
		{"BuryAndRequeue", buryAndRequeue},
		{"Promote", promote},
		{"PromoteFarAhead", promoteFarAhead},
		{"PromoteTwoAtOnce", promoteTwoAtOnce},
		{"LeadIsExclusive", leadIsExclusive},
		{"LeadAfterCut", leadAfterCut},
		{"DeposedDoesNothing", deposedDoesNothing},
		{"DeposedUnaware", deposedUnaware},
		{"Claim", claim},
		{"ClaimNeverShares", claimNeverShares},
		{"ClaimRollback", claimRollback},
		{"ClaimWindow", claimWindow},
		{"MixedClaims", mixedClaims},
		{"MixedRelays", mixedRelays},
		{"NoPooler", noPooler},
		{"Tail", tail},
		{"TableRecreated", tableRecreated},
		{"Status", status},
		{"List", list},
		{"Purge", purge},
		{"HistoryKeepsDelivered", historyKeepsDelivered},
		{"NotMigrated", notMigrated},
		{"MigrateTwice", migrateTwice},
		{"MigrateDryRun", migrateDryRun},
		{"MigrateConcurrently", migrateConcurrently},
		{"MigrateBrokenOff", migrateBrokenOff},
		{"MigrateRefuses", migrateRefuses},
		{"MigrateShards", migrateShards},
		{"Names", names},
		{"Partitions", partitions},
	} {
		t.Run(s.name, func(t *testing.T) {
			AvoidMidnight(t)
			s.test(&suite{T: t, Harness: fresh(t)})
		})
	}
}

// suite is one test of the suite and its database.
type suite struct {
	*testing.T
	Harness
}

// AvoidMidnight waits until after midnight (UTC) if that is near: partitions are by day and by
// month, so a test that runs across midnight would see one partition more than it expects.
func AvoidMidnight(t testing.TB) {
	t.Helper()
	now := time.Now()
	if left := outbox.Daily.Next(now).Sub(now); left < patience {
		t.Logf("waiting %v for the next day", left)
		time.Sleep(left)
	}
}

// patience bounds every wait. Only a defect reaches it.
const patience = 2 * time.Minute

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	s.Cleanup(cancel)
	return ctx
}

// migrated opens a store on the default table and migrates it.
func (s *suite) migrated(plan outbox.Plan) outbox.Store {
	s.Helper()
	store := s.Open(s.T, "")
	if _, err := store.Migrate(s.ctx(), plan); err != nil {
		s.Fatal("migrate:", err)
	}
	return store
}

// lead takes a lease and closes it when the test ends.
func (s *suite) lead(store outbox.Store, shard int) outbox.Lease {
	s.Helper()
	l, err := store.Lead(s.ctx(), shard)
	if err != nil {
		s.Fatal("lead:", err)
	}
	s.Cleanup(func() { _ = l.Close() })
	return l
}

// read reads the pending rows after a number and in gaps.
func (s *suite) read(l outbox.Lease, after int64, gaps ...outbox.Range) []outbox.Row {
	s.Helper()
	page, err := l.Read(s.ctx(), outbox.ReadRequest{After: after, Gaps: gaps, Limit: 10_000, MaxBytes: 1 << 30})
	if err != nil {
		s.Fatal("read:", err)
	}
	if page.More {
		s.Fatal("read: a page without limits says that there is more")
	}
	checkAscending(s.T, page.Rows)
	return append([]outbox.Row(nil), page.Rows...)
}

func checkAscending(t *testing.T, rows []outbox.Row) {
	t.Helper()
	for i := 1; i < len(rows); i++ {
		if rows[i].Seq <= rows[i-1].Seq {
			t.Fatalf("row %d has number %d, after number %d", i, rows[i].Seq, rows[i-1].Seq)
		}
	}
}

// enqueue inserts messages in a transaction.
func (s *suite) enqueue(msgs ...outbox.Message) {
	s.Helper()
	if err := outbox.Enqueue(s.ctx(), s.Tx(s.DB), msgs...); err != nil {
		s.Fatal("enqueue:", err)
	}
}

// begin opens a transaction that is rolled back when the test ends.
func (s *suite) begin() *sql.Tx {
	s.Helper()
	tx, err := s.DB.BeginTx(s.ctx(), nil)
	if err != nil {
		s.Fatal("begin:", err)
	}
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (s *suite) enqueueIn(tx *sql.Tx, msgs ...outbox.Message) {
	s.Helper()
	if err := outbox.Enqueue(s.ctx(), s.Tx(tx), msgs...); err != nil {
		s.Fatal("enqueue in a transaction:", err)
	}
}

func (s *suite) commit(tx *sql.Tx) {
	s.Helper()
	if err := tx.Commit(); err != nil {
		s.Fatal("commit:", err)
	}
}

func (s *suite) exec(query string, args ...any) {
	s.Helper()
	if _, err := s.DB.ExecContext(s.ctx(), query, args...); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
}

// count counts the rows of a table.
func (s *suite) count(table string) int {
	s.Helper()
	var n int
	if err := s.DB.QueryRowContext(s.ctx(), "SELECT count(*) FROM "+s.Quote(table)).Scan(&n); err != nil {
		s.Fatalf("count %s: %v", table, err)
	}
	return n
}

func (s *suite) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// message returns the n-th of many messages: each has its own key and payload.
func message(n int) outbox.Message {
	return outbox.Message{
		ID: outbox.NewID(), Topic: "orders", Key: fmt.Sprintf("key-%d", n),
		Payload: fmt.Appendf(nil, "payload %d", n),
	}
}

func messages(n int) []outbox.Message {
	msgs := make([]outbox.Message, n)
	for i := range msgs {
		msgs[i] = message(i)
	}
	return msgs
}

func seqsOf(rows []outbox.Row) []int64 {
	seqs := make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	return seqs
}

func payloadsOf(rows []outbox.Row) string {
	var all []string
	for i := range rows {
		all = append(all, string(rows[i].Payload))
	}
	return strings.Join(all, ",")
}

// sameMessage checks that two messages are equal.
func sameMessage(t *testing.T, got, want outbox.Message) {
	t.Helper()
	switch {
	case got.ID != want.ID:
		t.Errorf("id %v, want %v", got.ID, want.ID)
	case got.Topic != want.Topic || got.Key != want.Key || got.DedupKey != want.DedupKey:
		t.Errorf("topic %q key %q dedup key %q, want %q %q %q",
			got.Topic, got.Key, got.DedupKey, want.Topic, want.Key, want.DedupKey)
	case !bytes.Equal(got.Payload, want.Payload):
		t.Errorf("payload of %d bytes differs from that of %d bytes that was enqueued", len(got.Payload), len(want.Payload))
	case !maps.Equal(got.Headers, want.Headers):
		t.Errorf("headers %q, want %q", got.Headers, want.Headers)
	}
}

func sameMessages(t *testing.T, rows []outbox.Row, want []outbox.Message) {
	t.Helper()
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i := range rows {
		if rows[i].Unreadable != nil {
			t.Errorf("row %d is unreadable: %v", i, rows[i].Unreadable)
		}
		sameMessage(t, rows[i].Message, want[i])
	}
}
