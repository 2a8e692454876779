package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/tidwall/btree"
)

// The format of a snapshot:
//
//	magic     8 bytes, the last one is the format's version
//	chunk     length u32 | payload | crc u32          repeated
//	end       0 u32 | crc u32
//
// in little endian. A crc is the CRC-32C of all bytes before it except other crcs, so that
// lost, duplicate or swapped chunks are detected. The payloads contain, one after the other and
// none split between chunks:
//
//	header    revision, clock, number of leases, number of items; digest u64
//	lease     id, ttl, deadline                         in the order of ids
//	item      key, value, revision, deadline, lease     in the order of keys
//
// where a number is a varint and a string follows its length. Equal states have equal
// snapshots.
const (
	magic = "weirkv\x00\x01"
	// chunkSize is the size at which a chunk ends, after the current item.
	chunkSize = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshot is the state at the time of a call to Snapshot.
type snapshot struct {
	items    *btree.Map[string, *item]
	leases   *btree.Map[uint64, lease]
	clock    int64
	revision uint64
	digest   uint64
}

// Snapshot returns the current state, to be written later, once, possibly by another goroutine.
// It takes no time. Until it is written or dropped, changed parts of the store are copied: a
// few kilobytes for the first change to each node of the tree.
func (s *Store) Snapshot() io.WriterTo {
	s.epoch++
	return &snapshot{items: s.items.Copy(), leases: s.leases.Copy(), clock: s.clock, revision: s.revision, digest: s.Digest()}
}

// WriteTo writes the snapshot.
func (f *snapshot) WriteTo(w io.Writer) (int64, error) {
	c := chunkWriter{w: w}
	c.raw([]byte(magic))
	b := c.start()
	b = binary.AppendUvarint(b, f.revision)
	b = binary.AppendUvarint(b, uint64(f.clock))
	b = binary.AppendUvarint(b, uint64(f.leases.Len()))
	b = binary.AppendUvarint(b, uint64(f.items.Len()))
	b = binary.LittleEndian.AppendUint64(b, f.digest)
	f.leases.Scan(func(id uint64, l lease) bool {
		b = binary.AppendUvarint(b, id)
		b = binary.AppendUvarint(b, uint64(l.ttl))
		b = binary.AppendUvarint(b, uint64(l.deadline))
		b = c.flushIfFull(b)
		return c.err == nil
	})
	f.items.Scan(func(key string, it *item) bool {
		b = binary.AppendUvarint(b, uint64(len(key)))
		b = append(b, key...)
		b = binary.AppendUvarint(b, uint64(len(it.value)))
		b = append(b, it.value...)
		b = binary.AppendUvarint(b, it.revision)
		b = binary.AppendUvarint(b, uint64(it.deadline))
		b = binary.AppendUvarint(b, it.lease)
		b = c.flushIfFull(b)
		return c.err == nil
	})
	if len(b) > chunkHead {
		b = c.flush(b)
	}
	c.flush(b)
	if c.err != nil {
		return c.n, fmt.Errorf("write snapshot: %w", c.err)
	}
	return c.n, nil
}

// chunkHead is the size of a chunk's length.
const chunkHead = 4

// chunkWriter writes chunks. The first error stays.
type chunkWriter struct {
	w   io.Writer
	n   int64
	crc uint32
	err error
}

func (c *chunkWriter) start() []byte {
	return make([]byte, chunkHead, 4096)
}

func (c *chunkWriter) flushIfFull(b []byte) []byte {
	if len(b) < chunkSize {
		return b
	}
	return c.flush(b)
}

// flush writes the chunk b, whose payload follows the room for its length, and returns the room
// for the next one.
func (c *chunkWriter) flush(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-chunkHead))
	c.crc = crc32.Update(c.crc, castagnoli, b)
	c.write(binary.LittleEndian.AppendUint32(b, c.crc))
	return b[:chunkHead]
}

func (c *chunkWriter) raw(b []byte) {
	c.crc = crc32.Update(c.crc, castagnoli, b)
	c.write(b)
}

func (c *chunkWriter) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n, c.err = c.n+int64(n), err
}
