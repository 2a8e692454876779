package binlog

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// builder writes a log as a server would, for what servers do not do on demand.
type builder struct {
	crc    bool
	silent bool   // leave out the positions of what stands inside transactions, as MariaDB does from 11.4 on
	log    []byte // without Magic
	bounds []int  // where events begin
}

func newBuilder(crc bool) *builder {
	b := &builder{crc: crc}
	body := binary.LittleEndian.AppendUint16(nil, formatVersion)
	body = append(body, make([]byte, 50+4)...)
	body = append(body, HeaderLen)
	body = append(body, make([]byte, 42)...)
	alg := byte(checksumNone)
	if crc {
		alg = checksumCRC32
	}
	b.add(FormatDescriptionEvent, append(body, alg))
	return b
}

// add appends an event. FORMAT_DESCRIPTION always has room for a checksum.
func (b *builder) add(typ EventType, body []byte) *builder {
	b.bounds = append(b.bounds, len(b.log))
	sum := b.crc || typ == FormatDescriptionEvent
	size := HeaderLen + len(body)
	if sum {
		size += checksumLen
	}
	e := make([]byte, HeaderLen, size)
	binary.LittleEndian.PutUint32(e, 1700000000)
	e[4] = byte(typ)
	binary.LittleEndian.PutUint32(e[5:], 7)
	binary.LittleEndian.PutUint32(e[9:], uint32(size))
	if end := uint32(len(Magic) + len(b.log) + size); !b.silent || typ != TableMapEvent && typ != WriteRowsEvent {
		binary.LittleEndian.PutUint32(e[13:], end)
	}
	e = append(e, body...)
	if sum {
		e = binary.LittleEndian.AppendUint32(e, crc32.ChecksumIEEE(e))
	}
	b.log = append(b.log, e...)
	return b
}

func (b *builder) gtid(seq uint64, flags byte) *builder {
	body := binary.LittleEndian.AppendUint64(nil, seq)
	return b.add(MariaGTIDEvent, append(body, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0))
}

func (b *builder) query(sql string) *builder {
	body := make([]byte, 13)
	return b.add(QueryEvent, append(append(body, 0), sql...))
}

func (b *builder) xid() *builder { return b.add(XIDEvent, make([]byte, 8)) }

// table maps table 1, s.t (id BIGINT, payload BLOB).
func (b *builder) table() *builder {
	return b.add(TableMapEvent, []byte{
		1, 0, 0, 0, 0, 0, 1, 0, 1, 's', 0, 1, 't', 0, 2, typeLongLong, typeBlob, 1, 2, 0,
	})
}

// insert adds rows of table 1, with ids from first on and payloads of size bytes.
func (b *builder) insert(first, rows, size int) *builder {
	body := []byte{1, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 3}
	for i := range rows {
		body = append(body, 0)
		body = binary.LittleEndian.AppendUint64(body, uint64(first+i))
		body = binary.LittleEndian.AppendUint16(body, uint16(size))
		body = append(body, make([]byte, size)...)
	}
	return b.add(WriteRowsEvent, body)
}

func (b *builder) rotate(file string) *builder {
	return b.add(RotateEvent, append(binary.LittleEndian.AppendUint64(nil, 4), file...))
}

func (b *builder) file() []byte { return append([]byte(Magic), b.log...) }

// packets are the log's events as a server sends them.
func (b *builder) packets() (sent []byte) {
	seq := byte(0)
	for i, at := range b.bounds {
		to := len(b.log)
		if i+1 < len(b.bounds) {
			to = b.bounds[i+1]
		}
		p := mywire.AppendPacket(nil, seq, append([]byte{packetEvent}, b.log[at:to]...))
		sent, seq = append(sent, p...), mywire.NextSeq(p)
	}
	return sent
}

// events is a Source of events that were made by hand.
type events struct {
	framer framer
	left   [][]byte
}

func (s *events) Next(context.Context) (*Event, error) {
	if len(s.left) == 0 {
		return nil, io.EOF
	}
	raw := s.left[0]
	s.left = s.left[1:]
	return s.framer.frame(raw)
}
