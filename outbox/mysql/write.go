package mysql

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// Statements on rows by number join a list of them, a JSON document as a table, so that the
// server looks them up one by one in the primary key, whatever its statistics. With IN (...)
// the optimizer may choose a scan if the table was nearly empty at its last analysis, and a
// locking scan waits for rows of producers that have not committed.

// inUTF8 sets the character set of text columns of such a list, which otherwise is the
// database's: UNHEX cannot read UTF-16, and some sets lack characters.
const inUTF8 = " CHARACTER SET utf8mb4"

// numbersTable returns a list of numbers as table d with column s.
func numbersTable(seqs []int64) string {
	b := make([]byte, 0, 64+20*len(seqs))
	b = append(b, "JSON_TABLE('["...)
	for i, seq := range seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, seq, 10)
	}
	return string(append(b, "]', '$[*]' COLUMNS (s BIGINT PATH '$')) d"...))
}

// refsTable is numbersTable with the ids in hexadecimal as column i and, unless made is nil, the
// creation times as column c. made has microseconds since 1970.
func refsTable(refs []outbox.Ref, made []int64) string {
	b := make([]byte, 0, 128+90*len(refs))
	b = append(b, "JSON_TABLE('["...)
	for i := range refs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendInt(b, refs[i].Seq, 10)
		b = append(b, `,"`...)
		b = hex.AppendEncode(b, refs[i].ID[:])
		if made != nil {
			b = append(b, `","`...)
			b = time.UnixMicro(made[i]).UTC().AppendFormat(b, "2006-01-02 15:04:05.000000")
		}
		b = append(b, `"]`...)
	}
	b = append(b, "]', '$[*]' COLUMNS (s BIGINT PATH '$[0]', i CHAR(32)"+inUTF8+" PATH '$[1]'"...)
	if made != nil {
		b = append(b, ", c DATETIME(6) PATH '$[2]'"...)
	}
	return string(append(b, ")) d"...))
}

// note is a Parking or Burial as an element of a JSON list.
type note struct {
	Seq      int64  `json:"s"`
	ID       string `json:"i"` // hexadecimal
	Attempts int    `json:"a"`
	Delay    int64  `json:"d"` // microseconds
	Reason   string `json:"r"`
	Error    string `json:"e"`
}

// notesTable returns a list of notes as table d with columns s, i, a, d, r and e. The JSON is in
// hexadecimal, so that no SQL mode affects it.
func notesTable(notes []note) (string, error) {
	text, err := json.Marshal(notes)
	if err != nil {
		return "", err
	}
	return "JSON_TABLE(CONVERT(X'" + hex.EncodeToString(text) + "' USING utf8mb4), '$[*]' COLUMNS (" +
		"s BIGINT PATH '$.s', i CHAR(32)" + inUTF8 + " PATH '$.i', a INT PATH '$.a', d BIGINT PATH '$.d', r VARCHAR(32)" + inUTF8 + " PATH '$.r', e TEXT" + inUTF8 + " PATH '$.e')) d", nil
}

// maxError is the most bytes of an error that are kept.
const maxError = 4000

// shorten cuts an error to maxError bytes, between characters.
func shorten(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxError {
		return text
	}
	end := maxError
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

func parkingNotes(p []outbox.Parking) []note {
	out := make([]note, len(p))
	for i, n := range p {
		out[i] = note{Seq: n.Seq, ID: hex.EncodeToString(n.ID[:]), Attempts: n.Attempts, Delay: n.Delay.Microseconds(), Error: shorten(n.Error)}
	}
	return out
}

func burialNotes(b []outbox.Burial) []note {
	out := make([]note, len(b))
	for i, n := range b {
		out[i] = note{Seq: n.Seq, ID: hex.EncodeToString(n.ID[:]), Attempts: n.Attempts, Reason: n.Reason, Error: shorten(n.Error)}
	}
	return out
}

// fence returns the first table and a condition of a statement that only the leader may run: its
// row of the lease table, with its epoch. Statements that change rows lock it, so that the next
// leader waits for them.
func (l *lease) fence() (from, where string) {
	return l.s.sql("{lease} l STRAIGHT_JOIN "), fmt.Sprintf("l.shard = %d AND l.epoch = %d", l.shard, l.epoch)
}

// Ack implements [outbox.Lease].
func (l *lease) Ack(ctx context.Context, rows []outbox.Ref) error {
	if err := l.deposed(); err != nil {
		return l.fail("acknowledge rows of", err)
	}
	if len(rows) == 0 {
		return nil
	}
	err := l.withKeyLogging(ctx, true, func(c *session) error {
		hit, err := l.ack(ctx, c, rows)
		if err != nil {
			return err
		}
		if hit < int64(len(rows)) { // they are gone, or the lease is lost
			if err := l.confirm(ctx, c); err != nil {
				return err
			}
		}
		if parked := l.forget(numbersOf(rows)); len(parked) > 0 {
			return l.unpark(ctx, c, parked)
		}
		return nil
	})
	if err != nil {
		return l.fail("acknowledge rows of", err)
	}
	return nil
}

// ack acknowledges rows and returns how many it found.
func (l *lease) ack(ctx context.Context, c *session, rows []outbox.Ref) (hit int64, err error) {
	from, fenced := l.fence()
	if !l.hist && len(rows) > fewRows && l.rangeBackoff.over() {
		if ranges, rest := l.ranges(slices.Clone(rows)); len(ranges) > 0 {
			hit, err := l.ackRanges(ctx, c, from, fenced, ranges, rest)
			if !isError(err, errDeadlock, errLockWait) {
				return hit, err
			}
			l.rangeBackoff.start()
		}
	}
	for _, text := range l.ackTexts(from, fenced, rows) {
		err := retry(ctx, func() error {
			n, err := c.affected(ctx, text)
			hit += n
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return hit, nil
}

func numbersOf(rows []outbox.Ref) []int64 {
	seqs := make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	return seqs
}

// pendingOf returns the condition for pending rows in a join with the outbox table.
func pendingOf(history bool) string {
	if history {
		return " AND o.status = 0"
	}
	return ""
}

// named joins rows of the outbox table by number and id with a list of those.
const named = " STRAIGHT_JOIN {outbox} o ON o.seq = d.s AND o.id = UNHEX(d.i)"

// noteOf is the condition that a note p of failed attempts belongs to a row o. Notes of an older
// weir, and in tables not migrated since, have only the number.
func noteOf(ids bool) string {
	if !ids {
		return "o.seq = p.seq"
	}
	return "o.seq = p.seq AND (p.id IS NULL OR p.id = o.id)"
}

// parkSQL returns the statement that records failed attempts of existing rows.
func (s *Store) parkSQL(from, where string, history, ids bool, p []outbox.Parking) (string, error) {
	list, err := notesTable(parkingNotes(p))
	if err != nil {
		return "", err
	}
	column, value, update := "", "", ""
	if ids {
		column, value, update = ", id", ", o.id", ", id = VALUES(id)"
	}
	return s.sql("INSERT INTO {parked} (seq, attempts, due_at, error"+column+") "+
		"SELECT d.s, d.a, UTC_TIMESTAMP(6) + INTERVAL d.d MICROSECOND, d.e"+value+" FROM ") + from + list +
		s.sql(named) + pendingOf(history) + " WHERE " + where +
		" ON DUPLICATE KEY UPDATE attempts = VALUES(attempts), due_at = VALUES(due_at), error = VALUES(error)" + update, nil
}

// Park implements [outbox.Lease].
func (l *lease) Park(ctx context.Context, p []outbox.Parking) error {
	if err := l.deposed(); err != nil {
		return l.fail("park rows of", err)
	}
	if len(p) == 0 {
		return nil
	}
	from, fenced := l.fence()
	text, err := l.s.parkSQL(from, fenced, l.hist, l.ids, p)
	if err != nil {
		return l.fail("park rows of", err)
	}
	l.deliveries.mu.Lock()
	for _, n := range p {
		l.parked[n.Seq] = struct{}{}
	}
	l.deliveries.mu.Unlock()
	err = l.with(ctx, func(c *session) error {
		if err := retry(ctx, func() error { return c.exec(ctx, text) }); err != nil {
			return err
		}
		return l.confirm(ctx, c)
	})
	if err != nil {
		return l.fail("park rows of", err)
	}
	return nil
}

// Parked implements [outbox.Lease].
func (l *lease) Parked(ctx context.Context) ([]outbox.Parking, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("read notes of", err)
	}
	var out []outbox.Parking
	err := l.with(ctx, func(c *session) error {
		// Notes of rows that are done, which the previous leader did not delete.
		stale := l.s.sql("DELETE p FROM {parked} p LEFT JOIN {outbox} o ON "+noteOf(l.ids)) + pendingOf(l.hist) + " WHERE o.seq IS NULL"
		if err := retry(ctx, func() error { return c.exec(ctx, stale) }); err != nil {
			return err
		}
		rows, err := c.QueryContext(ctx, l.s.sql("SELECT p.seq, p.attempts, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), p.due_at), p.error, o.bucket, o.msg_key, o.id "+
			"FROM {parked} p STRAIGHT_JOIN {outbox} o ON "+noteOf(l.ids))+pendingOf(l.hist)+" ORDER BY p.seq")
		if err != nil {
			return err
		}
		defer rows.Close()
		d := decoder{first: l.first, last: l.last, all: l.all}
		for rows.Next() {
			var p outbox.Parking
			var micros int64
			var bucket any
			var key, id []byte
			if err := rows.Scan(&p.Seq, &p.Attempts, &micros, &p.Error, &bucket, &key, &id); err != nil {
				return err
			}
			p.Delay = time.Duration(micros) * time.Microsecond
			if ours, err := d.inShard(bucket, key, id); err != nil {
				return err
			} else if ours {
				p.ID = outbox.ID(id)
				out = append(out, p)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return nil, l.fail("read notes of", err)
	}
	l.deliveries.mu.Lock()
	for _, p := range out {
		l.parked[p.Seq] = struct{}{}
	}
	l.deliveries.mu.Unlock()
	return out, nil
}

// bury moves rows to the dead letters. It is called in a transaction.
func (s *Store) bury(ctx context.Context, c *session, history bool, b []outbox.Burial) error {
	b = slices.SortedFunc(slices.Values(b), func(x, y outbox.Burial) int { return cmp.Compare(x.Seq, y.Seq) })
	list, err := notesTable(burialNotes(b))
	if err != nil {
		return err
	}
	seqs := make([]int64, len(b))
	for i := range b {
		seqs[i] = b[i].Seq
	}
	for _, text := range []string{
		s.sql("INSERT INTO {dead} (seq, "+messageColumns+", created_at, attempts, reason, error) "+
			"SELECT o.seq, "+messageColumnsOf("o")+", o.created_at, d.a, d.r, d.e FROM ") + list +
			s.sql(named) + pendingOf(history),
		"DELETE o FROM " + list + s.sql(named) + pendingOf(history),
		"DELETE p FROM " + numbersTable(seqs) + s.sql(" STRAIGHT_JOIN {parked} p ON p.seq = d.s"),
	} {
		if err := c.exec(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// Bury implements [outbox.Lease].
func (l *lease) Bury(ctx context.Context, b []outbox.Burial) error {
	if err := l.deposed(); err != nil {
		return l.fail("bury rows of", err)
	}
	if len(b) == 0 {
		return nil
	}
	err := l.inTx(ctx, func(c *session) error {
		// The lock makes the next leader wait until this transaction ends.
		if err := c.exec(ctx, l.s.sql(fmt.Sprintf("SELECT epoch FROM {lease} WHERE shard = %d LOCK IN SHARE MODE", l.shard))); err != nil {
			return err
		}
		if err := l.confirm(ctx, c); err != nil {
			return err
		}
		return l.s.bury(ctx, c, l.hist, b)
	})
	if err != nil {
		return l.fail("bury rows of", err)
	}
	seqs := make([]int64, len(b))
	for i := range b {
		seqs[i] = b[i].Seq
	}
	l.forget(seqs)
	return nil
}
