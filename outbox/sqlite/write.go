package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// inList is a list of numbers as one parameter, see numbers.
const inList = "(SELECT value FROM json_each(?))"

// numbers encodes a list as JSON.
func numbers(seqs []int64) string {
	b := []byte{'['}
	for i, seq := range seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, seq, 10)
	}
	return string(append(b, ']'))
}

// sameID compares a row's id, which a producer may have written as 16 bytes of text.
const sameID = "CAST(id AS BLOB) = ?"

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

// Ack implements [outbox.Lease].
func (l *lease) Ack(ctx context.Context, rows []outbox.Ref) error {
	return l.inWriteTx(ctx, "acknowledge rows of", func(tx *sql.Tx) error {
		if len(rows) == 0 {
			return nil
		}
		seqs := make([]int64, len(rows))
		done := "DELETE FROM {outbox} WHERE seq = ? AND " + sameID
		if l.hist {
			done = "UPDATE {outbox} SET status = 1, done_at = " + nowMicros + " WHERE status = 0 AND seq = ? AND " + sameID
		}
		note, err := tx.PrepareContext(ctx, l.s.sql(done))
		if err != nil {
			return err
		}
		defer note.Close()
		for i, row := range rows {
			seqs[i] = row.Seq
			if _, err := note.ExecContext(ctx, row.Seq, row.ID[:]); err != nil {
				return err
			}
		}
		list := numbers(seqs)
		return l.s.exec(ctx, tx, "DELETE FROM {parked} WHERE seq IN "+inList, list)
	})
}

// noteOf is the condition that a note p of failed attempts belongs to a row o. Notes of an older
// weir, and in tables not migrated since, have only the number.
func noteOf(ids bool) string {
	if !ids {
		return "o.seq = p.seq"
	}
	return "o.seq = p.seq AND (p.id IS NULL OR p.id = CAST(o.id AS BLOB))"
}

// Park implements [outbox.Lease].
func (l *lease) Park(ctx context.Context, p []outbox.Parking) error {
	return l.inWriteTx(ctx, "park rows of", func(tx *sql.Tx) error {
		for _, n := range p {
			column, value, update := "", "", ""
			if l.ids {
				column, value, update = ", id", ", CAST(o.id AS BLOB)", ", id = excluded.id"
			}
			err := l.s.exec(ctx, tx, "INSERT INTO {parked} (seq, attempts, due_at, error"+column+") "+
				"SELECT o.seq, ?, "+nowMicros+" + ?, ?"+value+" FROM {outbox} o WHERE "+l.pending()+"o.seq = ? AND "+sameID+
				" ON CONFLICT (seq) DO UPDATE SET attempts = excluded.attempts, due_at = excluded.due_at, error = excluded.error"+update,
				n.Attempts, n.Delay.Microseconds(), shorten(n.Error), n.Seq, n.ID[:])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Parked implements [outbox.Lease].
func (l *lease) Parked(ctx context.Context) (out []outbox.Parking, err error) {
	err = l.inReadTx(ctx, "read notes of", func(tx *sql.Tx) error {
		out = nil
		rows, err := tx.QueryContext(ctx, l.s.sql("SELECT p.seq, p.attempts, p.due_at - "+nowMicros+", p.error, o.bucket, o.msg_key, o.id "+
			"FROM {parked} p CROSS JOIN {outbox} o WHERE "+l.pending()+noteOf(l.ids)+" ORDER BY p.seq"))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var p outbox.Parking
			var micros int64
			var bucket sql.NullInt64
			var key string
			var id []byte
			if err := rows.Scan(&p.Seq, &p.Attempts, &micros, &p.Error, &bucket, &key, &id); err != nil {
				return err
			}
			if p.Delay = time.Duration(micros) * time.Microsecond; l.contains(bucket, key, id) {
				p.ID = outbox.ID(id)
				out = append(out, p)
			}
		}
		return rows.Err()
	})
	return out, err
}

// Bury implements [outbox.Lease].
func (l *lease) Bury(ctx context.Context, b []outbox.Burial) error {
	return l.inWriteTx(ctx, "bury rows of", func(tx *sql.Tx) error {
		for _, n := range b {
			err := l.s.exec(ctx, tx, "INSERT INTO {dead} (seq, "+messageColumns+", created_at, attempts, reason, error) "+
				"SELECT o.seq, "+messageColumns+", o.created_at, ?, ?, ? FROM {outbox} o WHERE "+l.pending()+"o.seq = ? AND "+sameID,
				n.Attempts, n.Reason, shorten(n.Error), n.Seq, n.ID[:])
			if err != nil {
				return err
			}
			if err := l.s.exec(ctx, tx, "DELETE FROM {outbox} AS o WHERE "+l.pending()+"o.seq = ? AND "+sameID, n.Seq, n.ID[:]); err != nil {
				return err
			}
			if err := l.s.exec(ctx, tx, "DELETE FROM {parked} WHERE seq = ?", n.Seq); err != nil {
				return err
			}
		}
		return nil
	})
}

// Promote implements [outbox.Store].
func (s *Store) Promote(ctx context.Context, limit int) (moved int, next time.Duration, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, s.sql("SELECT seq FROM {scheduled} WHERE available_at <= "+nowMicros+" ORDER BY available_at, seq LIMIT ?"), limit)
		if err != nil {
			return err
		}
		seqs, err := collect(rows)
		if err != nil {
			return err
		}
		if moved = len(seqs); moved > 0 {
			list := numbers(seqs)
			if err := s.exec(ctx, tx, "INSERT INTO {outbox} ("+messageColumns+") SELECT "+messageColumns+" FROM {scheduled} WHERE seq IN "+inList+" ORDER BY available_at, seq", list); err != nil {
				return err
			}
			if err := s.exec(ctx, tx, "DELETE FROM {scheduled} WHERE seq IN "+inList, list); err != nil {
				return err
			}
		}
		var micros sql.NullInt64
		if err := tx.QueryRowContext(ctx, s.sql("SELECT MIN(available_at) - "+nowMicros+" FROM {scheduled}")).Scan(&micros); err != nil {
			return err
		}
		if next = -1; micros.Valid {
			next = time.Duration(min(max(0, micros.Int64), 24*time.Hour.Microseconds())) * time.Microsecond
		}
		return nil
	})
	if err != nil {
		return 0, 0, s.fail("promote scheduled rows of", err)
	}
	return moved, next, nil
}

// collect reads a column of numbers.
func collect(rows *sql.Rows) (out []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, rows.Err()
}
