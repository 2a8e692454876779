package myload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// headerLen is the length of a packet's header: three bytes of length, one of sequence number.
const headerLen = 4

// maxPacket limits a server's packet; answers to our statements are much smaller.
const maxPacket = 1 << 20

// appendExecute appends a COM_STMT_EXECUTE with the arguments as BIGINTs, each time with their
// types, as go-sql-driver/mysql does.
func appendExecute(b []byte, statement uint32, op *operation) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, mywire.ComStmtExecute)
	b = binary.LittleEndian.AppendUint32(b, statement)
	b = append(b, 0, 1, 0, 0, 0) // no cursor, one iteration
	b = append(b, 0, 1)          // no NULL among the arguments, their types follow
	for range op.args[:op.nargs] {
		b = append(b, byte(mywire.TypeLongLong), 0)
	}
	for _, a := range op.args[:op.nargs] {
		b = binary.LittleEndian.AppendUint64(b, uint64(a))
	}
	return end(b, at)
}

// appendText appends a COM_QUERY with the arguments as literals.
func appendText(b []byte, t load.Template, op *operation) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, mywire.ComQuery)
	return end(t.Append(b, op.args[:op.nargs]...), at)
}

// end fills in the length of the packet that starts at at. A command's first packet has number
// 0.
func end(b []byte, at int) []byte {
	n := len(b) - at - headerLen
	b[at], b[at+1], b[at+2] = byte(n), byte(n>>8), byte(n>>16)
	return b
}

// stage is which packet of an answer comes next.
type stage int

const (
	stageFirst stage = iota
	stageColumns
	stageColumnsEnd
	stageRows
)

// reply collects the packets that answer one operation.
type reply struct {
	binary   bool // rows have the format of prepared statements
	keepsEOF bool // an EOF packet separates columns and rows
	stage    stage
	next     byte // sequence number of the next packet
	columns  int  // columns still to come
	answer   answer
	state    [5]byte // SQLSTATE of an error
	detail   string  // text of an error, or the note of an OK
}

// reset prepares r for the answer to the next command.
func (r *reply) reset() { *r = reply{binary: r.binary, keepsEOF: r.keepsEOF, next: 1} }

// consume parses whole packets of b and returns their length. It stops after the answer's last
// packet, with done true.
func (r *reply) consume(b []byte) (n int, done bool, err error) {
	for len(b)-n >= headerLen {
		size := int(b[n]) | int(b[n+1])<<8 | int(b[n+2])<<16
		if size == 0 || size > maxPacket {
			return n, false, fmt.Errorf("packet of %d bytes", size)
		}
		if len(b)-n < headerLen+size {
			return n, false, nil
		}
		if b[n+3] != r.next {
			return n, false, fmt.Errorf("packet %d has number %d", r.next, b[n+3])
		}
		r.next++
		payload := b[n+headerLen : n+headerLen+size]
		n += headerLen + size
		if done, err = r.packet(payload); done || err != nil {
			return n, done, err
		}
	}
	return n, false, nil
}

func (r *reply) packet(p []byte) (done bool, err error) {
	switch r.stage {
	case stageFirst:
		return r.first(p)
	case stageColumns:
		return false, r.column(p)
	case stageColumnsEnd:
		if p[0] != 0xfe || len(p) != 5 {
			return false, fmt.Errorf("packet %#x instead of the end of the columns", p[0])
		}
		r.stage = stageRows
		return false, nil
	default:
		switch {
		case p[0] == 0xff:
			return true, r.failure(p)
		case p[0] == 0xfe && r.keepsEOF && len(p) == 5:
			r.answer.warnings, r.answer.status = binary.LittleEndian.Uint16(p[1:]), binary.LittleEndian.Uint16(p[3:])
			return true, nil
		case p[0] == 0xfe && !r.keepsEOF:
			return true, r.ok(p)
		}
		return false, r.row(p)
	}
}

func (r *reply) first(p []byte) (done bool, err error) {
	switch p[0] {
	case 0x00:
		return true, r.ok(p)
	case 0xff:
		return true, r.failure(p)
	case 1:
		if len(p) != 1 {
			return false, fmt.Errorf("column count of %d bytes", len(p))
		}
		r.columns, r.stage = 1, stageColumns
		return false, nil
	default:
		return false, fmt.Errorf("packet %#x instead of a result of one column", p[0])
	}
}

// ok parses an OK packet: affected rows, insert id, status, warnings and a note.
func (r *reply) ok(p []byte) error {
	var good bool
	a := &r.answer
	rest := p[1:]
	if a.affected, rest, good = lenenc(rest); !good {
		return errors.New("OK packet ends in its affected rows")
	}
	if a.insertID, rest, good = lenenc(rest); !good || len(rest) < 4 {
		return errors.New("OK packet ends before its status")
	}
	a.status, a.warnings = binary.LittleEndian.Uint16(rest), binary.LittleEndian.Uint16(rest[2:])
	if note := rest[4:]; len(note) > 0 {
		r.detail = string(note)
	}
	return nil
}

// failure parses an ERR packet: a code, "#", an SQLSTATE, a text.
func (r *reply) failure(p []byte) error {
	if len(p) < 9 || p[3] != '#' {
		return errors.New("error packet without an SQLSTATE")
	}
	r.answer.code = binary.LittleEndian.Uint16(p[1:])
	copy(r.state[:], p[4:])
	r.detail = string(p[9:])
	if r.answer.code == 0 {
		return errors.New("error packet without a code")
	}
	return nil
}

// column parses a column definition. Only the type matters, which is in the fixed-length block
// at the end.
func (r *reply) column(p []byte) error {
	if len(p) < 12 {
		return errors.New("column definition is too short")
	}
	if typ := p[len(p)-6]; typ != byte(mywire.TypeLong) {
		return fmt.Errorf("column is of type %d, not INT", typ)
	}
	if r.columns--; r.columns > 0 {
		return nil
	}
	r.stage = stageRows
	if r.keepsEOF {
		r.stage = stageColumnsEnd
	}
	return nil
}

// row parses the single column of a row. Only the first row's value is kept.
func (r *reply) row(p []byte) error {
	r.answer.rows++
	v, err := r.value(p)
	if err == nil && r.answer.rows == 1 {
		r.answer.value = v
	}
	return err
}

func (r *reply) value(p []byte) (int64, error) {
	if r.binary {
		if len(p) != 6 || p[0] != 0 || p[1] != 0 {
			return 0, fmt.Errorf("row %x is not that of one INT", p)
		}
		return int64(int32(binary.LittleEndian.Uint32(p[2:]))), nil
	}
	if p[0] > 250 || int(p[0]) != len(p)-1 {
		return 0, fmt.Errorf("row %q is not that of one column", p)
	}
	v, err := strconv.ParseInt(string(p[1:]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("column is not a number: %w", err)
	}
	return v, nil
}

// lenenc parses a length-encoded integer.
func lenenc(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	size := 0
	switch b[0] {
	case 0xfb, 0xff:
		return 0, nil, false
	case 0xfc:
		size = 2
	case 0xfd:
		size = 3
	case 0xfe:
		size = 8
	default:
		return uint64(b[0]), b[1:], true
	}
	if len(b) < 1+size {
		return 0, nil, false
	}
	for i := size; i > 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n, b[1+size:], true
}
