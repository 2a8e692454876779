package mysql

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/wire/binlog"
)

// groupBytes is the approximate number of bytes of events in one BINLOG statement. In base64
// that fits into every server's max_allowed_packet, unless a single event is longer.
const groupBytes = 512 << 10

// Layout of the bodies of TABLE_MAP and row events: the table's number, flags.
const (
	tableIDLen   = 6
	rowFlags     = binlog.HeaderLen + tableIDLen
	statementEnd = 1 // a flag
)

// tableMap is a table of the statement that is replayed.
type tableMap struct {
	raw    []byte
	wanted bool
}

// rowGroup collects the events of one BINLOG statement.
type rowGroup struct {
	events []byte
	last   int // where the last row event begins, and whether it has a checksum
	summed bool
	named  map[uint64]bool // tables whose map is in events
	rows   int
}

func isRows(t binlog.EventType) bool {
	switch t {
	case binlog.WriteRowsV1Event, binlog.UpdateRowsV1Event, binlog.DeleteRowsV1Event, binlog.WriteRowsEvent, binlog.UpdateRowsEvent,
		binlog.DeleteRowsEvent, binlog.PartialUpdateRowsEvent, binlog.WriteRowsCompressedV1Event, binlog.UpdateRowsCompressedV1Event,
		binlog.DeleteRowsCompressedV1Event, binlog.WriteRowsCompressedEvent, binlog.UpdateRowsCompressedEvent, binlog.DeleteRowsCompressedEvent:
		return true
	}
	return false
}

func tableID(body []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
}

// tableMap records a table of a statement, and whether it is replayed.
func (p *replayer) tableMap(e *binlog.Event) error {
	body := e.Body()
	const names = tableIDLen + 2
	if len(body) <= names || len(body) < names+1+int(body[names])+1 {
		return binlog.ErrMalformed
	}
	database := string(body[names+1 : names+1+int(body[names])])
	p.maps[tableID(body)] = tableMap{append([]byte(nil), e.Raw...), p.wanted(database)}
	return nil
}

// rows collects a row event, and replays what is collected at the end of its statement, or
// before it grows too long.
func (p *replayer) rows(ctx context.Context, e *binlog.Event) error {
	body := e.Body()
	if len(body) < tableIDLen+2 {
		return binlog.ErrMalformed
	}
	id := tableID(body)
	m, known := p.maps[id]
	if m.wanted {
		if err := p.begin(ctx); err != nil {
			return err
		}
		g := &p.group
		if g.named == nil {
			g.named = map[uint64]bool{}
		}
		if !g.named[id] {
			// Before all rows: a map opens its table for the rows that follow.
			g.events = append(append([]byte(nil), m.raw...), g.events...)
			g.last += len(m.raw)
			g.named[id] = true
		}
		g.last, g.summed = len(g.events), len(e.Raw) > binlog.HeaderLen+len(body)
		g.events = append(g.events, e.Raw...)
		clearEnd(g.events[g.last:], g.summed)
		g.rows++
	}
	const dummy = 0xffffff // it only ends a statement
	if !known && id != dummy {
		return fmt.Errorf("rows of table %d, which nothing describes: %w", id, binlog.ErrMalformed)
	}
	if binary.LittleEndian.Uint16(body[tableIDLen:])&statementEnd != 0 {
		err := p.flush(ctx)
		clear(p.maps)
		return err
	}
	if len(p.group.events) >= groupBytes {
		return p.flush(ctx)
	}
	return nil
}

// clearEnd and setEnd change whether a row event ends its statement.
func clearEnd(raw []byte, summed bool) {
	binary.LittleEndian.PutUint16(raw[rowFlags:], binary.LittleEndian.Uint16(raw[rowFlags:])&^statementEnd)
	sign(raw, summed)
}

func setEnd(raw []byte, summed bool) {
	binary.LittleEndian.PutUint16(raw[rowFlags:], binary.LittleEndian.Uint16(raw[rowFlags:])|statementEnd)
	sign(raw, summed)
}

func sign(raw []byte, summed bool) {
	if n := len(raw) - 4; summed {
		binary.LittleEndian.PutUint32(raw[n:], crc32.ChecksumIEEE(raw[:n]))
	}
}

// flush replays what is collected, as a statement of its own.
func (p *replayer) flush(ctx context.Context) error {
	g := &p.group
	if g.rows == 0 {
		return nil
	}
	if p.s == nil { // the caller only looks for what could not be replayed
		p.group = rowGroup{events: g.events[:0]}
		return nil
	}
	setEnd(g.events[g.last:], g.summed)
	if err := p.exec(ctx, "BINLOG '"+base64.StdEncoding.EncodeToString(g.events)+"'"); err != nil {
		return fmt.Errorf("apply %d row events: %w", g.rows, err)
	}
	p.result.Rows += g.rows
	p.group = rowGroup{events: g.events[:0]}
	return nil
}

// Codes of the variables before a statement in the log, in the order of their introduction, and
// their lengths if those are fixed.
const (
	varFlags = iota
	varMode
	varCatalog
	varAutoIncrement
	varCharset
	varZone
	varCatalogNZ
	varTimeNames
	varDatabaseCharset
	varTableMap
	varDataWritten
	varInvoker
	varUpdated
	varMicroseconds

	varMariaMicroseconds = 128
	varMariaXID          = 129
)

// Flags of varFlags.
const (
	noForeignKeyChecks = 1 << 26
	relaxedUnique      = 1 << 27
)

// ansiQuotes is a bit of sql_mode.
const ansiQuotes = 4

// sessionOf returns the statement that gives a session the settings of a QUERY event's, the
// number of the error that the statement had there, 0 for none, and its sql_mode. An unknown
// variable ends the list, as in the servers: the important ones come first.
func sessionOf(e *binlog.Event) (set string, failed uint16, mode uint64) {
	body := e.Body()
	const fixed = 4 + 4 + 1 + 2 + 2 // thread, seconds, length of the database, error, length of the variables
	parts := []string{""}
	micro := uint32(0)
	v := varReader{b: body[fixed : fixed+int(binary.LittleEndian.Uint16(body[11:]))]}
	for len(v.b) > 0 && !v.bad {
		switch v.number(1) {
		case varFlags:
			f := v.number(4)
			parts = append(parts, "foreign_key_checks = "+bit(f&noForeignKeyChecks == 0), "unique_checks = "+bit(f&relaxedUnique == 0))
		case varMode:
			mode = v.number(8)
			parts = append(parts, fmt.Sprintf("sql_mode = %d", mode))
		case varCatalog:
			v.text()
			v.number(1)
		case varAutoIncrement:
			parts = append(parts, fmt.Sprintf("auto_increment_increment = %d, auto_increment_offset = %d", v.number(2), v.number(2)))
		case varCharset:
			parts = append(parts, fmt.Sprintf("character_set_client = %s, collation_connection = %d, collation_server = %d", clientCharset(v.number(2)), v.number(2), v.number(2)))
		case varZone:
			parts = append(parts, "time_zone = "+my.Literal(v.text()))
		case varCatalogNZ:
			v.text()
		case varTimeNames:
			parts = append(parts, fmt.Sprintf("lc_time_names = %d", v.number(2)))
		case varDatabaseCharset:
			v.number(2)
		case varTableMap:
			v.number(8)
		case varDataWritten:
			v.number(4)
		case varInvoker:
			v.text()
			v.text()
		case varUpdated:
			v.updated()
		case varMicroseconds, varMariaMicroseconds:
			micro = uint32(v.number(3))
		case varMariaXID:
			v.number(8)
		default:
			v.b = nil
		}
	}
	parts[0] = "SET timestamp = " + strconv.FormatUint(uint64(e.Timestamp), 10) + fmt.Sprintf(".%06d", micro)
	return strings.Join(parts, ", "), binary.LittleEndian.Uint16(body[9:]), mode
}

// clientCharset returns a client's character set for the number of its collation. MariaDB
// numbers its UCA 14.0 collations in blocks of 256 for each character set.
func clientCharset(collation uint64) string {
	const first = 2048
	if names := []string{"utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32"}; collation >= first && collation-first < uint64(len(names))<<8 {
		return names[(collation-first)>>8]
	}
	return strconv.FormatUint(collation, 10)
}

func bit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// varReader reads the variables. Reading past the end sets bad and returns zeros.
type varReader struct {
	b   []byte
	bad bool
}

func (v *varReader) bytes(n int) []byte {
	if n > len(v.b) {
		v.b, v.bad = nil, true
		return make([]byte, min(n, 8))
	}
	s := v.b[:n]
	v.b = v.b[n:]
	return s
}

func (v *varReader) number(n int) uint64 {
	var x uint64
	for i, b := range v.bytes(n) {
		x |= uint64(b) << (8 * i)
	}
	return x
}

func (v *varReader) text() string {
	n := int(v.number(1))
	s := string(v.bytes(n))
	if v.bad {
		return ""
	}
	return s
}

// updated skips names of databases that each end with a zero.
func (v *varReader) updated() {
	const tooMany = 254
	n := v.number(1)
	if n == tooMany {
		return
	}
	for range n {
		for !v.bad && v.number(1) != 0 {
		}
	}
}
