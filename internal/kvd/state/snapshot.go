package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/tidwall/btree"
)

// A snapshot is
//
//	magic     8 bytes, the last one is the format's version
//	chunk     length u32 | payload | crc u32          repeated
//	end       0 u32 | crc u32
//
// in little endian. A crc is the CRC-32C of all bytes before it, other crcs
// excepted: chunks that are lost, doubled or swapped do not fit. The payloads
// hold, one after the other and none of them cut by a chunk's end:
//
//	header    revision, clock, number of leases, number of items; digest u64
//	lease     id, ttl, deadline                         in the order of ids
//	item      key, value, revision, deadline, lease     in the order of keys
//
// where a number is a varint and a string follows its length as one. Equal
// states have equal snapshots.
const (
	magic = "weirkv\x00\x01"
	// chunkSize is when a chunk ends: after the item that reaches it.
	chunkSize = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frozen is the state as it was when Snapshot was called.
type frozen struct {
	items    *btree.Map[string, *item]
	leases   *btree.Map[uint64, lease]
	clock    int64
	revision uint64
	digest   uint64
}

// Snapshot returns the state as it is now, to be written later, once, perhaps by
// another goroutine. It takes no time; until it is written or dropped, what
// changes in the store is copied, a few kilobytes for the first change to each
// node of the tree.
func (s *Store) Snapshot() io.WriterTo {
	s.epoch++
	return &frozen{items: s.items.Copy(), leases: s.leases.Copy(), clock: s.clock, revision: s.revision, digest: s.Digest()}
}

// WriteTo writes the snapshot.
func (f *frozen) WriteTo(w io.Writer) (int64, error) {
	c := chunker{w: w}
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

// chunkHead is the room for a chunk's length.
const chunkHead = 4

// chunker frames chunks. The first error stays.
type chunker struct {
	w   io.Writer
	n   int64
	crc uint32
	err error
}

func (c *chunker) start() []byte {
	return make([]byte, chunkHead, 4096)
}

func (c *chunker) flushIfFull(b []byte) []byte {
	if len(b) < chunkSize {
		return b
	}
	return c.flush(b)
}

// flush writes the chunk b, whose payload follows the room for its length, and
// returns the room for the next one.
func (c *chunker) flush(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-chunkHead))
	c.crc = crc32.Update(c.crc, castagnoli, b)
	c.write(binary.LittleEndian.AppendUint32(b, c.crc))
	return b[:chunkHead]
}

func (c *chunker) raw(b []byte) {
	c.crc = crc32.Update(c.crc, castagnoli, b)
	c.write(b)
}

func (c *chunker) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n, c.err = c.n+int64(n), err
}
