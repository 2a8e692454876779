package postgres

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/outbox"
)

// tailColumns maps the columns of a row to those of the log.
type tailColumns struct {
	of                                                              *pgrepl.Relation
	seq, bucket, id, topic, key, payload, headers, dedup, createdAt int
}

func newTailColumns(r *pgrepl.Relation) (*tailColumns, error) {
	c := &tailColumns{of: r}
	for name, at := range map[string]*int{
		"seq": &c.seq, "bucket": &c.bucket, "id": &c.id, "topic": &c.topic, "msg_key": &c.key,
		"payload": &c.payload, "headers": &c.headers, "dedup_key": &c.dedup, "created_at": &c.createdAt,
	} {
		if *at = r.Column(name); *at < 0 {
			return nil, fmt.Errorf("the log has no column %s of %s.%s", name, r.Namespace, r.Name)
		}
	}
	return c, nil
}

// row decodes an inserted row. It does not keep values.
func (c *tailColumns) row(values []pgrepl.Value) (row outbox.Row, bucket int, err error) {
	// fixed returns the bytes of a value of a fixed-size type.
	fixed := func(i, size int) []byte {
		if i < len(values) && values[i].Kind == pgrepl.Binary && len(values[i].Data) == size {
			return values[i].Data
		}
		err = fmt.Errorf("the log has column %d of %s.%s in an unexpected format", i, c.of.Namespace, c.of.Name)
		return make([]byte, size)
	}
	free := func(i int) []byte {
		if i < len(values) {
			return values[i].Data
		}
		return nil
	}
	row.Seq = int64(binary.BigEndian.Uint64(fixed(c.seq, 8)))
	bucket = int(int16(binary.BigEndian.Uint16(fixed(c.bucket, 2))))
	copy(row.ID[:], fixed(c.id, 16))
	row.CreatedAt = time.UnixMicro(int64(binary.BigEndian.Uint64(fixed(c.createdAt, 8))) + pgEpoch).UTC()
	row.Topic, row.Key, row.DedupKey = string(free(c.topic)), string(free(c.key)), string(free(c.dedup))
	row.Payload = append(make([]byte, 0, len(free(c.payload))), free(c.payload)...)
	if headers := free(c.headers); len(headers) > 0 {
		row.Headers, row.Unreadable = outbox.DecodeHeaders(headers)
	}
	return row, bucket, err
}
