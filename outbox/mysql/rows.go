package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// micros1970 converts a time to microseconds since 1970, which no driver setting affects.
func micros1970(moment string) string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + moment + ")"
}

// rowColumns returns the columns that decoder.row reads, qualified by alias.
func rowColumns(alias string) string {
	return alias + ".seq, " + messageColumnsOf(alias) + ", " + micros1970(alias+".created_at")
}

const rowWidth = 9

// scan runs a query and calls f with each row until f returns false; then it stops the
// statement. Byte slices are valid during the call. It uses the driver directly, because
// database/sql takes longer to pass on a row than the server to produce it.
func (c *session) scan(ctx context.Context, text string, f func(values []driver.Value) (more bool, err error)) error {
	stopped := false
	err := c.Raw(func(conn any) error {
		q, ok := conn.(driver.QueryerContext)
		if !ok {
			return fmt.Errorf("the driver (%T) runs no query without preparing it", conn)
		}
		rows, err := q.QueryContext(ctx, text, nil)
		if err != nil {
			return err
		}
		values := make([]driver.Value, len(rows.Columns()))
		for err == nil {
			if err = rows.Next(values); err != nil {
				break
			}
			var more bool
			if more, err = f(values); err == nil && !more {
				stopped = true
				err = c.interrupt(ctx)
				break
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if e := rows.Close(); err == nil && !(stopped && isError(e, errInterrupted)) {
			err = e
		}
		return err
	})
	if err == nil && stopped {
		// A KILL QUERY that came after the end of its statement hits this one.
		if err = c.exec(ctx, "DO 0"); isError(err, errInterrupted) {
			err = nil
		}
	}
	return err
}

// interrupt ends c's statement from another session: otherwise the rest of its result would
// have to be read.
func (c *session) interrupt(ctx context.Context) error {
	return c.pool.with(ctx, func(other *session) error {
		return other.exec(ctx, fmt.Sprintf("KILL QUERY %d", c.id))
	})
}

// integer converts a number, which the driver returns parsed or as text. ok is false for NULL.
func integer(v driver.Value) (n int64, ok bool, err error) {
	switch v := v.(type) {
	case nil:
		return 0, false, nil
	case int64:
		return v, true, nil
	case uint64:
		return int64(v), true, nil
	case []byte:
		n, err = strconv.ParseInt(string(v), 10, 64)
		return n, true, err
	case string:
		n, err = strconv.ParseInt(v, 10, 64)
		return n, true, err
	}
	return 0, false, fmt.Errorf("a %T where a number was expected", v)
}

// text converts text or bytes; NULL is nil.
func text(v driver.Value) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case []byte:
		return v, nil
	case string:
		return []byte(v), nil
	}
	return nil, fmt.Errorf("a %T where text was expected", v)
}

// decoder decodes rows. It copies their content to chunks of memory, which it never reuses; a
// row that is kept keeps one chunk alive.
type decoder struct {
	first, last int // buckets of the shard
	all         bool
	bytes       []byte          // the current chunk of payloads
	text        strings.Builder // the current chunk of strings
	topic       string          // the last topic: most rows share it
}

const piece = 128 << 10

// row decodes rowColumns. ok is false if the row belongs to another shard.
func (d *decoder) row(values []driver.Value) (r outbox.Row, ok bool, err error) {
	var parts [7][]byte // id, topic, msg_key, payload, headers, dedup_key
	for i := range 6 {
		if parts[i], err = text(values[2+i]); err != nil {
			return r, false, err
		}
	}
	id, key := parts[0], parts[2]
	if ok, err = d.inShard(values[1], key, id); err != nil || !ok {
		return r, false, err
	}
	if r.Seq, _, err = integer(values[0]); err != nil {
		return r, false, err
	}
	micros, _, err := integer(values[8])
	if err != nil {
		return r, false, err
	}
	r.CreatedAt = time.UnixMicro(micros).UTC()
	copy(r.ID[:], id)
	if string(parts[1]) != d.topic {
		d.topic = string(parts[1])
	}
	r.Topic = d.topic
	r.Key, r.DedupKey = d.copyText(key), d.copyText(parts[5])
	r.Payload = d.copyBytes(parts[3])
	if len(parts[4]) > 0 {
		r.Headers, r.Unreadable = outbox.DecodeHeaders(parts[4])
	}
	return r, true, nil
}

// inShard reports whether a row belongs to the decoder's shard. Rows inserted by plain SQL have
// no bucket; it is computed as outbox.Enqueue would.
func (d *decoder) inShard(bucket driver.Value, key, id []byte) (bool, error) {
	if d.all {
		return true, nil
	}
	b, known, err := integer(bucket)
	if err != nil {
		return false, err
	}
	if !known || b < 0 {
		var fixed outbox.ID
		copy(fixed[:], id)
		b = int64(outbox.Bucket(string(key), fixed))
	}
	return int64(d.first) <= b && b <= int64(d.last), nil
}

// copyBytes copies b to the current chunk.
func (d *decoder) copyBytes(b []byte) []byte {
	if len(b) > piece/4 {
		return append([]byte(nil), b...)
	}
	if cap(d.bytes)-len(d.bytes) < len(b) {
		d.bytes = make([]byte, 0, piece)
	}
	at := len(d.bytes)
	d.bytes = append(d.bytes, b...)
	return d.bytes[at:len(d.bytes):len(d.bytes)]
}

// copyText is copyBytes for strings.
func (d *decoder) copyText(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if d.text.Cap()-d.text.Len() < len(b) {
		d.text = strings.Builder{}
		d.text.Grow(max(piece/4, len(b)))
	}
	at := d.text.Len()
	d.text.Write(b)
	return d.text.String()[at:]
}
