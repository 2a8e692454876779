package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// MaxMessage bounds an encoded message between replicas, in bytes; a client may
// send MaxClientMessage at most. The former leaves room for a witness pool.
const (
	MaxMessage       = 64 << 20
	MaxClientMessage = wire.MaxCommand + 1<<20
)

// The kinds of frame, the first byte of a payload. The numbers are on the wire.
const (
	frameMessages byte = iota // messages, each behind its length
	framePing                 // a stamp of 8 bytes, to be sent back
	framePong                 // the stamp

	frameHello     // the handshake, in the order in which its frames are sent
	frameChallenge //
	frameProof     //
	frameWelcome   //
	frameRefusal   // instead of any of them

	frameSnapshot // what is to be sent: size and description
	frameResume   // where to begin
	frameChunk    // bytes of it
	frameEnd      // all are sent
	frameStored   // all are durable
)

const (
	headerBytes = 8 // length u32, CRC-32C u32
	// frameTarget is the size at which a frame of messages is closed and the next one
	// begins, so that a checksum covers little and the receiver does not have to gather
	// much before it can begin.
	frameTarget = 256 << 10
	// maxPerFrame bounds the messages of a frame, since a message of a few bytes takes
	// 200 when it is decoded.
	maxPerFrame = 8192
	// maxFrame leaves room for one message of the largest size in a frame that
	// is not closed yet.
	maxFrame       = MaxMessage + frameTarget + 64
	maxClientFrame = MaxClientMessage + frameTarget + 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errCorrupt is wrapped by all errors about bytes that are not what was sent.
var errCorrupt = errors.New("corrupt frame")

// frames is a run of frames being built. The zero value is empty.
type frames struct {
	buf   []byte // whole frames, then the open one
	open  int    // where the open frame begins, if count is not 0
	count int    // messages in the open frame
}

// add appends a message whose size is known. It returns how many messages the
// frame holds that it closed, 0 if it closed none.
func (f *frames) add(m *wire.Message, size int) (closed int) {
	if f.count == 0 {
		f.open = len(f.buf)
		f.buf = append(f.buf, 0, 0, 0, 0, 0, 0, 0, 0, frameMessages)
	}
	f.count++
	f.buf = binary.AppendUvarint(f.buf, uint64(size))
	f.buf = m.Append(f.buf)
	if len(f.buf)-f.open >= frameTarget || f.count == maxPerFrame {
		return f.close()
	}
	return 0
}

// close ends the open frame and returns how many messages it has, 0 if there
// was none.
func (f *frames) close() int {
	n := f.count
	if n > 0 {
		binary.LittleEndian.PutUint32(f.buf[f.open:], uint32(len(f.buf)-f.open-headerBytes))
		f.count = 0
	}
	return n
}

// control appends a frame of another kind. The open frame must be closed.
func (f *frames) control(kind byte, body []byte) {
	f.buf = append(f.buf, 0, 0, 0, 0, 0, 0, 0, 0, kind)
	binary.LittleEndian.PutUint32(f.buf[len(f.buf)-headerBytes-1:], uint32(1+len(body)))
	f.buf = append(f.buf, body...)
}

// checksum fills in the checksums of whole frames.
func checksum(run []byte) {
	for len(run) > 0 {
		n := headerBytes + int(binary.LittleEndian.Uint32(run))
		binary.LittleEndian.PutUint32(run[4:], crc32.Checksum(run[headerBytes:n], castagnoli))
		run = run[n:]
	}
}

// inbox splits a stream into frames. Its buffer begins small, since most
// clients send little, grows up to largest while reads fill it, and beyond that
// only for a larger frame, as its bytes arrive.
type inbox struct {
	src  io.Reader
	max  int // largest payload accepted
	most int // maximum size of the buffer while no frame needs more
	buf  []byte
	r, w int // what is buffered: buf[r:w]
	full bool
}

// Sizes of an inbox's buffer, and of the memory that an idle queue keeps. There
// are few replicas and may be many clients.
const (
	firstBuffer   = 4 << 10
	replicaBuffer = 128 << 10
	clientBuffer  = 32 << 10
	replicaKeep   = 1 << 20
	clientKeep    = 64 << 10
)

// next returns the payload of the next frame that is completely buffered, which
// stays valid until fill, or false if there is none.
func (b *inbox) next() (payload []byte, ok bool, err error) {
	have := b.buf[b.r:b.w]
	if len(have) < headerBytes {
		return nil, false, nil
	}
	n, sum := int(binary.LittleEndian.Uint32(have)), binary.LittleEndian.Uint32(have[4:])
	if n < 1 || n > b.max {
		return nil, false, fmt.Errorf("%w: length %d, must be from 1 to %d", errCorrupt, n, b.max)
	}
	if len(have)-headerBytes < n {
		return nil, false, nil
	}
	payload = have[headerBytes : headerBytes+n]
	if got := crc32.Checksum(payload, castagnoli); got != sum {
		return nil, false, fmt.Errorf("%w: checksum %08x, header says %08x", errCorrupt, got, sum)
	}
	b.r += headerBytes + n
	return payload, true, nil
}

// fill reads once. The buffer has free space.
func (b *inbox) fill() error {
	b.makeRoom()
	n, err := b.src.Read(b.buf[b.w:])
	b.w += n
	b.full = b.w == len(b.buf)
	if n > 0 {
		return nil // the error will come again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// makeRoom moves what is buffered to the front and adapts the buffer's size.
func (b *inbox) makeRoom() {
	have := b.w - b.r
	size := max(len(b.buf), firstBuffer)
	switch {
	case have == size: // one frame, larger than the buffer: grow as it arrives
		size *= 2
	case b.full && size < b.most:
		size *= 2
	case size > b.most && have < b.most && size > firstBuffer:
		size = max(b.most, firstBuffer)
	}
	if size != len(b.buf) {
		fresh := make([]byte, size)
		copy(fresh, b.buf[b.r:b.w])
		b.buf = fresh
	} else if b.r > 0 {
		copy(b.buf, b.buf[b.r:b.w])
	}
	b.r, b.w = 0, have
}

// frame waits for the next frame, for handshakes and snapshots, which know what
// comes. The payload is valid until the next call.
func (b *inbox) frame() (kind byte, body []byte, err error) {
	for {
		payload, ok, err := b.next()
		if err != nil {
			return 0, nil, err
		}
		if ok {
			return payload[0], payload[1:], nil
		}
		if err := b.fill(); err != nil {
			return 0, nil, err
		}
	}
}

// messages decodes the bodies of message frames and counts them. All bytes that the
// messages refer to are in one new piece of memory; the messages themselves are in
// into, which is cleared, where they fit there.
func messages(bodies [][]byte, into []wire.Message, flow *flow) ([]wire.Message, error) {
	bytes, count := 0, 0
	for _, body := range bodies {
		n, err := countMessages(body)
		if err != nil {
			return nil, err
		}
		flow.frame(n)
		bytes, count = bytes+len(body), count+n
	}
	memory := make([]byte, 0, bytes)
	out := into[:min(count, cap(into))]
	if len(out) < count {
		out = make([]wire.Message, count)
	}
	i := 0
	for _, body := range bodies {
		from := len(memory)
		memory = append(memory, body...)
		for rest := memory[from:]; len(rest) > 0; i++ {
			size, n := binary.Uvarint(rest)
			end := n + int(size)
			if err := out[i].Decode(rest[n:end:end]); err != nil {
				return nil, fmt.Errorf("%w: %w", errCorrupt, err)
			}
			rest = rest[end:]
		}
	}
	return out, nil
}

func countMessages(body []byte) (count int, err error) {
	for ; len(body) > 0; count++ {
		size, n := binary.Uvarint(body)
		if n <= 0 || size == 0 || size > uint64(len(body)-n) {
			return 0, fmt.Errorf("%w: a message's length does not fit", errCorrupt)
		}
		body = body[n+int(size):]
	}
	if count == 0 || count > maxPerFrame {
		return 0, fmt.Errorf("%w: %d messages, must be from 1 to %d", errCorrupt, count, maxPerFrame)
	}
	return count, nil
}
