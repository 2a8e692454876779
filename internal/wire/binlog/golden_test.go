package binlog

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "record the logs in testdata anew from real servers, and what they hold")

// goldenStatements make the logs in testdata, which hold what either server
// logs in its own way. They are small: they are seeds for fuzzing, too.
var goldenStatements = []string{
	"CREATE TABLE t (id INT UNSIGNED PRIMARY KEY AUTO_INCREMENT, n DECIMAL(20,5), b BIT(9), e ENUM('x','y'), s SET('p','q'), d DATETIME(3), ti TIME(2), ts TIMESTAMP(6) NULL, c CHAR(5), k BINARY(4), v VARCHAR(300), j JSON, o BLOB, f FLOAT, g DOUBLE, y YEAR, da DATE)",
	"INSERT INTO t VALUES (1,-12.5,257,'y','p,q','2026-01-02 03:04:05.678','-01:02:03.45','2026-01-02 03:04:05.678901','abc',x'01020000',REPEAT('v',260),'[1]','blob',1.5,-2.5,2026,'2026-01-02')",
	"INSERT INTO t (id) VALUES (4000000000),(3)",
	"BEGIN", "UPDATE t SET v = 'updated' WHERE id = 1", "DELETE FROM t WHERE id = 3", "COMMIT",
	"XA START 'x'", "DELETE FROM t", "XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'",
	"CREATE TABLE u SELECT 1 AS one",
}

// TestRecordedLogs reads logs that servers have written, those of MySQL too
// where it is not installed.
func TestRecordedLogs(t *testing.T) {
	if *rewrite {
		eachServer(t, recordGolden)
	}
	paths, err := filepath.Glob("testdata/*.binlog")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no logs in testdata: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := OpenFile(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r := NewReader(f, ReaderConfig{})
			got := strings.Join(lines(t, r), "\n") + "\nposition " + r.Position().String() + "\nexecuted " + r.Executed().String() + "\n"
			golden := strings.TrimSuffix(path, ".binlog") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, golden)), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// recordGolden records a log without checksums, which fuzzing would not get
// past, plain and compressed.
func recordGolden(t *testing.T, s target) {
	_, c := s.database(t)
	run(t, c, "SET sql_mode = ''", "SET GLOBAL binlog_checksum = NONE", "SET GLOBAL binlog_row_metadata = FULL")
	defer run(t, c, "SET GLOBAL binlog_checksum = CRC32", "SET GLOBAL binlog_row_metadata = MINIMAL")
	for _, name := range []string{"plain", "compressed"} {
		run(t, c, "DROP TABLE IF EXISTS t, u", "FLUSH BINARY LOGS")
		if name == "compressed" {
			run(t, c, s.compress(t, c))
			if !s.maria() {
				run(t, c, "SET gtid_next = 'AUTOMATIC:tag'")
			}
		}
		start := s.end(t, c)
		run(t, c, goldenStatements...)
		run(t, c, "SET @done = 1", "FLUSH BINARY LOGS")
		content := read(t, filepath.Join(s.DataDir(), start.File))
		if err := os.WriteFile(filepath.Join("testdata", string(s.Flavor())+"-"+name+".binlog"), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func seeds(f *testing.F) (all [][]byte) {
	f.Helper()
	paths, err := filepath.Glob("testdata/*.binlog")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// FuzzFile reads a log of any bytes, down to the last value.
func FuzzFile(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := NewFile(bytes.NewReader(b), "fuzz")
		if err != nil {
			return
		}
		r := NewReader(file, ReaderConfig{Heartbeats: true})
		drain(t, r)
		if file.Offset() > int64(len(b)) {
			t.Errorf("offset %d of %d bytes", file.Offset(), len(b))
		}
		_ = r.Executed().String()
	})
}

// drain reads everything that a reader yields, and checks what must hold of any
// log.
func drain(t *testing.T, r *Reader) {
	open := false
	for {
		rec, err := r.Next(context.Background())
		if err != nil {
			if _, again := r.Next(context.Background()); again == nil {
				t.Fatalf("an event after %v", err)
			}
			return
		}
		switch rec.Kind {
		case Begin:
			if open {
				t.Fatal("a transaction inside another")
			}
			open = true
		case Commit, Rollback, Prepare:
			if !open {
				t.Fatal("the end of no transaction")
			}
			open = false
		case Changes:
			for rec.Rows.Next() {
				text(rec.Rows.Before)
				text(rec.Rows.After)
			}
		}
	}
}

func text(row Row) {
	for _, v := range row {
		v.AppendText(nil)
		v.Time()
		v.Duration()
		v.Int64()
	}
}

// FuzzEvent reads single events of any type and content.
func FuzzEvent(f *testing.F) {
	for _, b := range seeds(f) {
		file, err := NewFile(bytes.NewReader(b), "seed")
		for err == nil {
			var e *Event
			if e, err = file.Next(context.Background()); err == nil {
				f.Add(byte(e.Type), bytes.Clone(e.Body()))
			}
		}
	}
	f.Add(byte(HeartbeatV2Event), []byte{1, 2, 3})
	f.Fuzz(func(_ *testing.T, typ byte, body []byte) {
		e := &Event{Header: Header{Type: EventType(typ), Size: uint32(HeaderLen + len(body))}, Raw: append(make([]byte, HeaderLen), body...)}
		_, _ = ParseQuery(e)
		_, _ = parseGTID(e)
		_, _ = parseRotate(body)
		_, _ = parseXID(body)
		_, _ = parseMySQLSet(body)
		_, _ = parseMariaList(body)
		_, _ = (&Tracker{}).Observe(e)
		var p payload
		for err := p.open(body); err == nil; {
			_, err = p.next()
		}
	})
}

// FuzzRow decodes rows of any bytes by any table.
func FuzzRow(f *testing.F) {
	f.Add([]byte{typeLong, typeVarchar, typeNewDecimal}, []byte{10, 0, 5, 2}, []byte{0, 1, 0, 0, 0, 1, 'x', 0x80, 0, 1}, byte(WriteRowsEvent))
	f.Add([]byte{typeTime2, typeDatetime2, typeTimestamp2, typeBit, typeJSON}, []byte{6, 6, 6, 1, 1, 4}, bytes.Repeat([]byte{0x80}, 60), byte(PartialUpdateRowsEvent))
	f.Add([]byte{typeVarcharCompressed, typeBlobCompressed, typeString, typeEnum}, []byte{255, 0, 2, 0xee, 0xfe, 247, 1}, bytes.Repeat([]byte{1}, 60), byte(UpdateRowsCompressedV1Event))
	f.Fuzz(func(_ *testing.T, types, meta, data []byte, event byte) {
		shape, ok := rowsShapeOf(EventType(event))
		if !ok || len(types) > 200 {
			return
		}
		table := append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 's', 0, 1, 't', 0, byte(len(types))}, types...)
		table = append(append(table, byte(len(meta))), meta...)
		table = append(table, make([]byte, (len(types)+7)/8)...)
		if len(meta) > 250 {
			return
		}
		parsed, err := parseTable(table)
		if err != nil {
			return
		}
		var body []byte
		if shape.v2 {
			body = append(body, 2, 0)
		}
		body = append(body, byte(len(types)))
		present := bytes.Repeat([]byte{0xff}, (len(types)+7)/8)
		if body = append(body, present...); shape.action == Update {
			body = append(body, present...)
		}
		var rows Rows
		if rows.open(parsed, shape, cursor{b: append(body, data...)}) != nil {
			return
		}
		for rows.Next() {
			text(rows.Before)
			text(rows.After)
		}
	})
}

// FuzzGTIDSet parses sets and reads back what it prints and encodes.
func FuzzGTIDSet(f *testing.F) {
	for _, s := range []string{"", "0-1-5", "0-1-5,2-7-9", testUUID + ":1-5:7", testUUID + ":tag:1-3:9, " + testUUID + ":4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseGTIDSet(s)
		if err != nil {
			return
		}
		again, err := ParseGTIDSet(set.String())
		if err != nil || again.String() != set.String() {
			t.Fatalf("%q reads as %s, and that as %s, %v", s, set, again, err)
		}
		for o := range set.origins {
			if len(o.tag) > 32 {
				return // longer than servers have, and than is encoded
			}
		}
		back, err := parseMySQLSet(set.appendMySQL(nil))
		if len(set.domains) == 0 && (err != nil || back.String() != set.String()) {
			t.Fatalf("%q encoded reads as %s, %v", s, back, err)
		}
	})
}

// FuzzStream takes anything for what a server sends.
func FuzzStream(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0xfe})
	f.Add([]byte{20, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := streamOf(bytes.NewReader(sent), 64)
		for {
			if _, err := s.Next(context.Background()); err != nil {
				if errors.Is(err, io.EOF) && err != io.EOF {
					t.Fatalf("%v counts as the end of the log", err)
				}
				return
			}
		}
	})
}
