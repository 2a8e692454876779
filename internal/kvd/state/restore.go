package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Errors of Restore for invalid snapshots.
var (
	errNoSnapshot = errors.New("not a snapshot of this version")
	errChecksum   = errors.New("wrong checksum")
	errContent    = errors.New("wrong content")
)

// maxChunk is the largest payload: a chunk that is not full yet gets an item of the largest key
// and value.
const maxChunk = chunkSize + wire.MaxKey + wire.MaxValue + 64

// Restore replaces the whole state by a snapshot, or fails and changes nothing. It reads no
// byte after the snapshot. The changes that lead to the new state are unknown: Changes is empty
// and History knows nothing before it.
func (s *Store) Restore(r io.Reader) error {
	fresh := New(Config{})
	if err := fresh.load(&chunkReader{r: r}); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	s.items, s.index, s.leases, s.held, s.expiry = fresh.items, fresh.index, fresh.leases, fresh.held, fresh.expiry
	s.epoch = 0 // no snapshot shares these items
	s.clock, s.revision, s.bytes, s.sum, s.timed = fresh.clock, fresh.revision, fresh.bytes, fresh.sum, fresh.timed
	s.log.forgetAll(s.revision)
	return nil
}

// load fills an empty Store.
func (s *Store) load(u *chunkReader) error {
	u.magic()
	u.record()
	s.revision = u.number()
	s.clock = u.signed()
	leases, items := u.number(), u.number()
	digest := u.fixed()
	for i := uint64(0); i < leases && u.err == nil; i++ {
		s.loadLease(u)
	}
	for i := uint64(0); i < items && u.err == nil; i++ {
		s.loadItem(u)
	}
	u.end()
	if u.err == nil && s.Digest() != digest {
		u.fail(fmt.Errorf("%w: digest %x, want %x", errContent, s.Digest(), digest))
	}
	return u.err
}

func (s *Store) loadLease(u *chunkReader) {
	u.record()
	id, l := u.number(), lease{ttl: u.signed(), deadline: u.signed()}
	last, _, some := s.leases.Max()
	switch {
	case u.err != nil:
	case id == 0 || id > s.revision || some && id <= last:
		u.fail(fmt.Errorf("%w: lease %d after %d", errContent, id, last))
	case l.deadline <= s.clock:
		u.fail(fmt.Errorf("%w: lease %d has expired", errContent, id))
	default:
		s.setLease(id, l)
	}
}

func (s *Store) loadItem(u *chunkReader) {
	u.record()
	k := u.string(wire.MaxKey)
	it := item{value: u.string(wire.MaxValue), revision: u.number(), deadline: u.signed(), lease: u.number()}
	if u.err != nil {
		return
	}
	last, _, some := s.items.Max()
	_, leased := s.leases.Get(it.lease)
	switch {
	case some && string(k) <= last:
		u.fail(fmt.Errorf("%w: key %.64q after %.64q", errContent, k, last))
	case it.revision == 0 || it.revision > s.revision:
		u.fail(fmt.Errorf("%w: key %.64q has revision %d of %d", errContent, k, it.revision, s.revision))
	case it.deadline != 0 && it.deadline <= s.clock:
		u.fail(fmt.Errorf("%w: key %.64q has expired", errContent, k))
	case it.lease != 0 && !leased:
		u.fail(fmt.Errorf("%w: key %.64q has unknown lease %d", errContent, k, it.lease))
	default:
		it.key, it.value = string(k), bytes.Clone(it.value)
		s.items.Load(it.key, &it)
		s.index[it.key] = &it
		s.indexItem(&it)
	}
}

// chunkReader reads what a chunkWriter wrote. The first error stays, and everything read after it is
// zero.
type chunkReader struct {
	r     io.Reader
	crc   uint32
	chunk bytes.Buffer // b is its unread part
	b     []byte
	err   error
}

func (u *chunkReader) fail(err error) {
	if u.err == nil {
		u.err = err
	}
	u.b = nil
}

// fill reads n bytes into u.b and checksums them.
func (u *chunkReader) fill(n int64) {
	u.chunk.Reset()
	// Memory is allocated as data arrives, not by the announced length.
	if _, err := io.CopyN(&u.chunk, u.r, n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		u.fail(err)
		return
	}
	u.b = u.chunk.Bytes()
	u.crc = crc32.Update(u.crc, castagnoli, u.b)
}

func (u *chunkReader) magic() {
	if u.fill(int64(len(magic))); u.err == nil && string(u.b) != magic {
		u.fail(errNoSnapshot)
	}
	u.b = nil
}

// next reads a chunk and returns the length of its payload.
func (u *chunkReader) next() uint32 {
	if u.err != nil {
		return 0
	}
	u.fill(chunkHead)
	if u.err != nil {
		return 0
	}
	n := binary.LittleEndian.Uint32(u.b)
	if n > maxChunk {
		u.fail(fmt.Errorf("%w: chunk of %d bytes", errContent, n))
		return 0
	}
	u.fill(int64(n))
	payload := u.b
	var crc [4]byte
	if _, err := io.ReadFull(u.r, crc[:]); u.err == nil && err != nil {
		u.fail(io.ErrUnexpectedEOF)
	}
	if u.err == nil && binary.LittleEndian.Uint32(crc[:]) != u.crc {
		u.fail(errChecksum)
	}
	if u.err != nil {
		return 0
	}
	u.b = payload
	return n
}

// record starts a record: in the next chunk, if this one was read completely.
func (u *chunkReader) record() {
	if len(u.b) == 0 && u.err == nil && u.next() == 0 {
		u.fail(fmt.Errorf("%w: it ends too early", errContent))
	}
}

// end checks that the last chunk was read completely and that none follows.
func (u *chunkReader) end() {
	if u.err == nil && (len(u.b) > 0 || u.next() > 0) {
		u.fail(fmt.Errorf("%w: something is left over", errContent))
	}
}

func (u *chunkReader) number() uint64 {
	v, n := binary.Uvarint(u.b)
	if n <= 0 {
		u.fail(fmt.Errorf("%w: bad number", errContent))
		return 0
	}
	u.b = u.b[n:]
	return v
}

// signed reads a number that is a time or a duration.
func (u *chunkReader) signed() int64 {
	v := int64(u.number())
	if v < 0 {
		u.fail(fmt.Errorf("%w: number out of range", errContent))
		return 0
	}
	return v
}

// fixed reads a number of 8 bytes.
func (u *chunkReader) fixed() uint64 {
	if len(u.b) < 8 {
		u.fail(fmt.Errorf("%w: bad number", errContent))
		return 0
	}
	v := binary.LittleEndian.Uint64(u.b)
	u.b = u.b[8:]
	return v
}

// string reads a string of at most limit bytes, which is valid until the next record.
func (u *chunkReader) string(limit uint64) []byte {
	n := u.number()
	if n > limit || n > uint64(len(u.b)) {
		u.fail(fmt.Errorf("%w: string of %d bytes", errContent, n))
		return nil
	}
	v := u.b[:n]
	u.b = u.b[n:]
	return v
}
