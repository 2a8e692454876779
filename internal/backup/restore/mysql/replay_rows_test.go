package mysql

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/weirdb/weir/internal/wire/binlog"
)

// queryEvent makes a QUERY event of variables, a database and a statement.
func queryEvent(vars, database, sql string) *binlog.Event {
	body := make([]byte, 13)
	body[8] = byte(len(database))
	binary.LittleEndian.PutUint16(body[9:], 1051)
	binary.LittleEndian.PutUint16(body[11:], uint16(len(vars)))
	body = append(body, vars+database+"\x00"+sql...)
	return &binlog.Event{
		Header: binlog.Header{Type: binlog.QueryEvent, Timestamp: 1700000000, Size: uint32(binlog.HeaderLen + len(body))},
		Raw:    append(make([]byte, binlog.HeaderLen), body...),
	}
}

func TestSessionOf(t *testing.T) {
	vars := "\x00\x00\x00\x00\x04" + // foreign keys are not checked
		"\x01\x08\x00\x00\x00\x00\x00\x00\x00" + "\x06\x03std" + "\x03\x02\x00\x01\x00" + "\x04\x2d\x00\x2d\x00\x08\x00" +
		"\x05\x06+05:00" + "\x0c\x02a\x00b\x00" + "\x80\x40\xe2\x01" + "\xf0rest"
	set, failed, mode := sessionOf(queryEvent(vars, "db", "SELECT 1"))
	const want = "SET timestamp = 1700000000.123456, foreign_key_checks = 0, unique_checks = 1, sql_mode = 8, auto_increment_increment = 2, " +
		"auto_increment_offset = 1, character_set_client = 45, collation_connection = 45, collation_server = 8, time_zone = '+05:00'"
	if set != want || failed != 1051 || mode != 8 {
		t.Errorf("%d, %s", failed, set)
	}
}

// FuzzSessionOf looks for variables that are read beyond their end.
func FuzzSessionOf(f *testing.F) {
	f.Add("\x00\x00\x00\x00\x04\x0c\x02a\x00b\x00", "db", "DROP TABLE x")
	f.Add("\x05\xff", "", "")
	f.Fuzz(func(t *testing.T, vars, database, sql string) {
		if len(vars) > 1<<16-1 || len(database) > 255 {
			return
		}
		e := queryEvent(vars, database, sql)
		if _, err := binlog.ParseQuery(e); err == nil {
			sessionOf(e)
		}
	})
}

// FuzzRows looks for maps and rows that are read beyond their end.
func FuzzRows(f *testing.F) {
	f.Add([]byte("\x07\x00\x00\x00\x00\x00\x01\x00\x03sys\x00\x01t\x00"), []byte("\x07\x00\x00\x00\x00\x00\x00\x00\x02\x00"))
	f.Fuzz(func(t *testing.T, table, rows []byte) {
		p := &replayer{maps: map[uint64]tableMap{}, result: &ReplayResult{}, o: ReplayOptions{Databases: []string{"none"}}}
		event := func(kind binlog.EventType, body []byte) *binlog.Event {
			return &binlog.Event{Header: binlog.Header{Type: kind}, Raw: append(make([]byte, binlog.HeaderLen), body...)}
		}
		if err := p.tableMap(event(binlog.TableMapEvent, table)); err != nil && !errors.Is(err, binlog.ErrMalformed) {
			t.Fatal(err)
		}
		for _, m := range p.maps {
			if m.wanted {
				return // it would go to a server
			}
		}
		if err := p.rows(context.Background(), event(binlog.WriteRowsEvent, rows)); err != nil && !errors.Is(err, binlog.ErrMalformed) {
			t.Fatal(err)
		}
	})
}
