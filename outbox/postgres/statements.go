package postgres

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// rowColumns are the columns that rows are decoded from, in this order.
const rowColumns = "seq, id, topic, msg_key, payload, headers, dedup_key, created_at"

// maxError is the most bytes of an error that are kept.
const maxError = 8 << 10

// statements are the statements of a lease. They do not change, so that the server plans each
// of them once.
type statements struct {
	head, gaps             string // $1 after, $2 limit; $3, $4 first and last of the gaps
	headBounded, gapBounds string // the same with bytes, the last parameter
	ack, ackBetween        string // $1 numbers, $2 ids; $3, $4 first and last creation
	unpark                 string // $1 numbers
	park, bury             string // $1-$5 columns, $6 shard, $7 epoch
	parked, forget         string
	fetch, pending         string
	holders                string // see mark
}

func newStatements(n names, m meta, shard int) statements {
	t := n.q("")
	where := m.pending()
	if m.shards > 1 {
		first, last := outbox.ShardBuckets(shard, m.shards)
		where += fmt.Sprintf(" AND bucket BETWEEN %d AND %d", first, last)
	}
	head := "SELECT " + rowColumns + " FROM " + t + " WHERE seq > $1 AND " + where + " ORDER BY seq LIMIT $2"
	// Each gap is one index scan. The result is not sorted: the gaps come before the head,
	// and reader.order sorts the rows in the rare case that they overlap.
	gaps := "(SELECT r.* FROM unnest($3::bigint[], $4::bigint[]) AS g(a, b) CROSS JOIN LATERAL (SELECT " + rowColumns +
		" FROM " + t + " WHERE seq BETWEEN g.a AND g.b AND " + where + " ORDER BY seq LIMIT $2) AS r ORDER BY r.seq LIMIT $2)" +
		" UNION ALL (" + head + ")"
	return statements{
		head: head, gaps: gaps,
		headBounded: bounded(head, 3), gapBounds: bounded(gaps, 5),
		ack: ackText(t, m), ackBetween: ackText(t, m) + ackBetween,
		unpark: "DELETE FROM " + n.q("_parked") + " WHERE seq = ANY($1)",
		park:   parkText(n, m, true), bury: buryText(n, m, true),
		parked: "SELECT p.seq, t.id, p.attempts, (extract(epoch FROM p.next_at - clock_timestamp()) * 1000000)::bigint, p.error FROM " +
			n.q("_parked") + " AS p JOIN " + t + " AS t ON " + m.noteOf() + " WHERE " + where + " ORDER BY p.seq",
		forget: "DELETE FROM " + n.q("_parked") + " AS p WHERE NOT EXISTS (SELECT FROM " + t + " AS t WHERE " + m.noteOf() + " AND " + m.pending() + ")",
		fetch:  "SELECT " + rowColumns + " FROM " + t + " WHERE seq = ANY($1) AND " + m.pending() + " ORDER BY seq",
		pending: "SELECT seq FROM " + t + " WHERE seq > $1 AND seq <= $2 AND " + where +
			" ORDER BY seq LIMIT $3",
		holders: holdersText(n),
	}
}

// bounded ends a statement's rows after the one with which the total payload exceeds parameter
// p. octet_length does not detoast payloads, so the server reads only those that it sends.
func bounded(inner string, p int) string {
	return fmt.Sprintf("SELECT %s FROM (SELECT r.*, sum(octet_length(payload)::bigint) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING)"+
		" - octet_length(payload) AS before FROM (%s) AS r) AS r WHERE before <= $%d ORDER BY seq LIMIT $2", rowColumns, inner, p)
}

// ackBetween limits an ack to the partitions of a time range.
const ackBetween = " AND t.created_at BETWEEN $3 AND $4"

// named joins a table t with a list of rows by number and id: if the table was emptied,
// another row may have the number now.
const named = "unnest($1::bigint[], $2::uuid[]) AS d(seq, id) WHERE t.seq = d.seq AND t.id = d.id"

func ackText(t string, m meta) string {
	if m.layout == outbox.History {
		return "UPDATE " + t + " AS t SET status = 1, done_at = clock_timestamp() FROM " + named + " AND t.status = 0"
	}
	return "DELETE FROM " + t + " AS t USING " + named
}

// fence is the condition that the epoch has not changed. It locks the row of the lease, so
// that no relay increments the epoch before the statement commits.
func fence(n names, fenced bool) (with, and, result string) {
	if !fenced {
		return "", "", "1"
	}
	return "stands AS MATERIALIZED (SELECT 1 FROM " + n.q("_lease") + " WHERE shard = $6 AND epoch = $7 FOR SHARE), ",
		" AND EXISTS (SELECT FROM stands)", "(SELECT count(*)::integer FROM stands)"
}

func parkText(n names, m meta, fenced bool) string {
	with, and, result := fence(n, fenced)
	id, update := "", ""
	if m.noteIDs {
		id, update = ", id", ", id = EXCLUDED.id"
	}
	return "WITH " + with + "alive AS (SELECT t.seq, t.id FROM " + n.q("") + " AS t, " + named + " AND " + m.pending() + and + "), " +
		"noted AS (INSERT INTO " + n.q("_parked") + " (seq, attempts, next_at, error" + id + ")" +
		" SELECT seq, attempts, clock_timestamp() + delay * interval '1 microsecond', error" + id +
		" FROM unnest($1::bigint[], $3::integer[], $4::bigint[], $5::text[]) AS p(seq, attempts, delay, error) JOIN alive USING (seq)" +
		" ON CONFLICT (seq) DO UPDATE SET attempts = EXCLUDED.attempts, next_at = EXCLUDED.next_at, error = EXCLUDED.error" + update + ")" +
		" SELECT " + result
}

// buryText gives a dead letter a negative number if another dead letter, from before the table
// was emptied, has its number.
func buryText(n names, m meta, fenced bool) string {
	with, and, result := fence(n, fenced)
	return "WITH " + with + "gone AS (DELETE FROM " + n.q("") + " AS t USING " + named + " AND " + m.pending() + and +
		" RETURNING t.seq, " + messageColumnsOf("t") + ", t.created_at), " +
		"unparked AS (DELETE FROM " + n.q("_parked") + " WHERE seq = ANY($1)" + and + "), " +
		"buried AS (INSERT INTO " + n.q("_dead") + " (seq, " + messageColumns + ", created_at, attempts, reason, error)" +
		" SELECT CASE WHEN EXISTS (SELECT FROM " + n.q("_dead") + " AS o WHERE o.seq = gone.seq)" +
		" THEN (SELECT least(min(o.seq), 0) FROM " + n.q("_dead") + " AS o) - row_number() OVER (ORDER BY gone.seq) ELSE gone.seq END, " +
		messageColumns + ", created_at, attempts, reason, error FROM gone" +
		" JOIN unnest($1::bigint[], $3::integer[], $4::text[], $5::text[]) AS b(seq, attempts, reason, error) USING (seq))" +
		" SELECT " + result
}

// columns are the parameters of parkText and buryText.
type columns struct {
	seqs     []int64
	ids      [][16]byte
	attempts []int32
	delays   []int64 // microseconds
	reasons  []string
	errors   []string
}

func parkingColumns(p []outbox.Parking) (c columns) {
	at := map[int64]int{} // the last one counts
	for _, one := range p {
		i, again := at[one.Seq]
		if !again {
			i = len(c.seqs)
			at[one.Seq] = i
			c.seqs, c.ids, c.attempts = append(c.seqs, one.Seq), append(c.ids, [16]byte{}), append(c.attempts, 0)
			c.delays, c.errors = append(c.delays, 0), append(c.errors, "")
		}
		c.ids[i], c.attempts[i], c.delays[i], c.errors[i] = one.ID, int32(one.Attempts), int64(one.Delay/time.Microsecond), clean(one.Error)
	}
	return c
}

func burialColumns(b []outbox.Burial) (c columns) {
	seen := map[int64]bool{}
	for _, one := range b {
		if seen[one.Seq] {
			continue
		}
		seen[one.Seq] = true
		c.seqs, c.ids, c.attempts = append(c.seqs, one.Seq), append(c.ids, one.ID), append(c.attempts, int32(one.Attempts))
		c.reasons, c.errors = append(c.reasons, clean(one.Reason)), append(c.errors, clean(one.Error))
	}
	return c
}

// clean makes text valid for a column: UTF-8 without NUL, cut to maxError.
func clean(text string) string {
	if len(text) > maxError {
		cut := maxError
		for cut > maxError-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}
