package binlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Checksum algorithms.
const (
	checksumNone  = 0
	checksumCRC32 = 1
)

const checksumLen = 4

// framer converts bytes to events: it verifies them and tracks their position in the log.
// Stream and File share it.
type framer struct {
	file     string
	pos      uint64 // after the last event that is in the file
	checksum byte   // of the following events
	offset   int64  // of the next event in the input, for errors; -1: use the event's own position
	event    Event
}

// frame processes the bytes of a whole event. The event is valid until the next call, and
// aliases raw.
func (f *framer) frame(raw []byte) (*Event, error) {
	h, err := ParseHeader(raw)
	if err != nil {
		return nil, f.at(err)
	}
	if int(h.Size) != len(raw) {
		return nil, f.at(fmt.Errorf("%s event of %d bytes: its header says %d: %w", h.Type, len(raw), h.Size, ErrMalformed))
	}
	e := &f.event
	*e = Event{Header: h, Raw: raw, File: f.file}
	if h.Type == FormatDescriptionEvent {
		err = f.format(e)
	} else if f.checksum == checksumCRC32 {
		e.tail = checksumLen
	}
	if err == nil {
		err = f.verify(e)
	}
	if err == nil {
		err = f.place(e)
	}
	if err != nil {
		return nil, f.at(err)
	}
	if f.offset >= 0 {
		f.offset += int64(len(raw))
	}
	return e, nil
}

// at adds the position of the current event to an error.
func (f *framer) at(err error) error {
	if _, ok := err.(*ChecksumError); ok {
		return err // has the position already
	}
	return fmt.Errorf("event at %s:%d: %w", f.file, f.here(), err)
}

func (f *framer) here() int64 {
	if f.offset >= 0 {
		return f.offset
	}
	return int64(f.pos)
}

// Layout of FORMAT_DESCRIPTION's body: version 2 bytes, server 50, created 4, header length 1,
// then a byte for each type of event, the checksum algorithm, and always a checksum.
const (
	formatFixed   = 2 + 50 + 4 + 1
	formatVersion = 4
)

// format processes a FORMAT_DESCRIPTION event.
func (f *framer) format(e *Event) error {
	body := e.Raw[HeaderLen:]
	if len(body) < formatFixed+1+checksumLen {
		return fmt.Errorf("FORMAT_DESCRIPTION of %d bytes: %w", len(body), ErrMalformed)
	}
	if v := binary.LittleEndian.Uint16(body); v != formatVersion {
		return fmt.Errorf("FORMAT_DESCRIPTION: log format %d, want %d: %w", v, formatVersion, ErrMalformed)
	}
	if n := body[formatFixed-1]; n != HeaderLen {
		return fmt.Errorf("FORMAT_DESCRIPTION: event headers of %d bytes: %w", n, ErrMalformed)
	}
	f.checksum = body[len(body)-checksumLen-1]
	if f.checksum > checksumCRC32 {
		return fmt.Errorf("FORMAT_DESCRIPTION: checksum algorithm %d: unknown: %w", f.checksum, ErrMalformed)
	}
	e.tail = checksumLen
	return nil
}

// verify compares the event's checksum, if there is one.
func (f *framer) verify(e *Event) error {
	if f.checksum != checksumCRC32 {
		return nil
	}
	n := len(e.Raw) - checksumLen
	if n < HeaderLen {
		return fmt.Errorf("%s event of %d bytes: no room for its checksum: %w", e.Type, len(e.Raw), ErrMalformed)
	}
	want := binary.LittleEndian.Uint32(e.Raw[n:])
	got := crc32.ChecksumIEEE(e.Raw[:n])
	if got != want && e.Type == FormatDescriptionEvent && e.Flags&FlagInUse != 0 {
		// Servers set and clear the flag in the file without updating the checksum.
		head := [HeaderLen]byte(e.Raw)
		binary.LittleEndian.PutUint16(head[17:], e.Flags&^FlagInUse)
		got = crc32.Update(crc32.ChecksumIEEE(head[:]), crc32.IEEETable, e.Raw[HeaderLen:n])
	}
	if got != want {
		return &ChecksumError{File: f.file, Offset: f.here(), Type: e.Type, Want: want, Got: got}
	}
	return nil
}

// place sets the event's file and position, and follows rotations.
func (f *framer) place(e *Event) error {
	stored := e.Stored()
	switch {
	case stored && e.LogPos == 0:
		f.pos += uint64(e.Size)
		e.End = f.pos
	case stored:
		// Positions in headers have 32 bits. A file grows beyond 4 GiB if its last transaction
		// does.
		e.End = f.pos&^(1<<32-1) | uint64(e.LogPos)
		if e.End < f.pos {
			e.End += 1 << 32
		}
		f.pos = e.End
	}
	if e.Type != RotateEvent {
		return nil
	}
	to, err := parseRotate(e.Body())
	if err != nil {
		return err
	}
	f.file, f.pos = to.File, to.Pos
	if !stored {
		e.File = f.file // it names the file that begins with it
	}
	return nil
}
