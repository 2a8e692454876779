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

// micros1970 is a moment as microseconds since 1970, a number in every driver's
// settings.
func micros1970(moment string) string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + moment + ")"
}

// rowColumns are what decoder.row reads, of the table that alias names.
func rowColumns(alias string) string {
	return alias + ".seq, " + messageColumnsOf(alias) + ", " + micros1970(alias+".created_at")
}

const rowWidth = 9

// scan runs a query and calls f with each row until it returns false; the rest
// of the answer is not sent then. Byte slices are valid during the call. It asks
// the driver itself: database/sql takes longer to hand over a row than the server
// to make it.
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
		// A KILL QUERY that came when its statement was over hits this one.
		if err = c.exec(ctx, "DO 0"); isError(err, errInterrupted) {
			err = nil
		}
	}
	return err
}

// interrupt ends the statement that c runs, from another session: else all that
// is left of its answer would have to be read.
func (c *session) interrupt(ctx context.Context) error {
	return c.store.with(ctx, func(other *session) error {
		return other.exec(ctx, fmt.Sprintf("KILL QUERY %d", c.id))
	})
}

// integer reads a number, which drivers hand over parsed or as text. NULL is not
// ok.
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

// text reads a text or bytes; NULL is nil.
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

// decoder makes rows out of what a query yields. The memory that rows refer to
// is made anew and never touched again, in pieces, so that a row that is kept
// keeps no more than its piece.
type decoder struct {
	first, last int // buckets of the shard
	all         bool
	bytes       []byte          // the piece that payloads are put into
	text        strings.Builder // the piece that texts are put into
	topic       string          // the last one: most rows share it
}

const piece = 128 << 10

// row decodes the columns of rowColumns. It is not ok when the row belongs to
// another shard.
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

// ours reports whether a row belongs to the decoder's shard. A producer in plain
// SQL leaves the bucket open; it is then what outbox.Enqueue would have written.
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

// keep copies b into the present piece.
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

// keepText is keep for texts.
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
