package pgrepl

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"
	"unsafe"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// within reports whether part is a piece of whole's memory.
func within(whole, part []byte) bool {
	if len(part) == 0 {
		return true
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	start := uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return first >= start && first+uintptr(len(part)) <= start+uintptr(len(whole))
}

// FuzzDecode reads any bytes as messages, cut at each 0xfe, as one stream.
func FuzzDecode(f *testing.F) {
	join := func(messages ...[]byte) []byte { return bytes.Join(messages, []byte{0xfe}) }
	f.Add(join(message('B', "884", 16, 0, 1), relation7(), message('I', "4121b1b", 7, 'N', 2, 't', "1", 't', "v"), message('C', "1888", 0, 16, 32, 0)))
	f.Add(join(relation7(), message('U', "4121b1121b1b", 7, 'K', 2, 't', "1", 'n', 'N', 2, 't', "2", 't', "x")))
	f.Add(join(relation7(), message('U', "4121b1", 7, 'N', 2, 'b', "1", 'u'), message('D', "4121b1b", 7, 'O', 2, 't', "1", 't', "v")))
	f.Add(join(relation7(), message('T', "4144", 2, 3, 7, 7), message('Y', "4ss", 5, "shop", "mood"), message('O', "8s", 16, "far")))
	f.Add(join(message('M', "18sb", 1, 16, "weir", "content"), []byte{'S', 1}))
	f.Fuzz(func(t *testing.T, in []byte) {
		var d Decoder
		for _, data := range bytes.Split(in, []byte{0xfe}) {
			m, err := d.Decode(data)
			if err != nil {
				if !errors.Is(err, pgwire.ErrMalformed) && !errors.Is(err, ErrUnsupported) {
					t.Fatalf("error %v", err)
				}
				continue
			}
			check := func(rel *Relation, row []Value) {
				if rel == nil || len(row) != len(rel.Columns) {
					t.Fatalf("row of %d values in %+v", len(row), rel)
				}
				for _, v := range row {
					if !within(data, v.Data) || (v.Data == nil) != (v.Kind == Null || v.Kind == Unchanged) {
						t.Fatalf("value %+v", v)
					}
				}
			}
			switch m := m.(type) {
			case *Relation:
				if d.Relation(m.OID) != m {
					t.Fatal("the relation is not remembered")
				}
			case *Insert:
				check(m.Relation, m.New)
			case *Update:
				check(m.Relation, m.New)
				if m.OldKind != OldNone {
					check(m.Relation, m.Old)
				} else if len(m.Old) != 0 {
					t.Fatalf("%+v", m)
				}
			case *Delete:
				check(m.Relation, m.Old)
			case *LogicalMessage:
				if !within(data, m.Content) {
					t.Fatal("the content lies elsewhere")
				}
			}
		}
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add(keepalive(7, 1)[pgwire.HeaderLen:])
	f.Add(data(7, "seven")[pgwire.HeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		frame, err := parseFrame(body)
		if err != nil {
			return
		}
		if frame.Keepalive() != (body[0] == frameKeepalive) || !within(body, frame.Data) {
			t.Errorf("%+v", frame)
		}
	})
}

func FuzzParsePart(f *testing.F) {
	f.Add([]byte("nbase.tar\x00\x00"))
	f.Add([]byte("m"))
	f.Add([]byte("ddata"))
	f.Add([]byte("p\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, body []byte) {
		kind, rest, err := parsePart(body)
		if err == nil && (kind != body[0] || len(rest) != len(body)-1) {
			t.Errorf("part %q of %d bytes", kind, len(rest))
		}
	})
}

// FuzzTexts reads what servers write as text.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{"16/B374D848", "0000000A00000002000000FF", "16MB", "15.18 (Debian)", "1\t0/A\treason\n", "# x\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := ParseLSN(s); err == nil {
			if again, err := ParseLSN(l.String()); err != nil || again != l {
				t.Errorf("%s: %s, %v", l, again, err)
			}
		}
		if g, err := ParseSegment(s, 16<<20); err == nil {
			if again, err := ParseSegment(g.Name(), 16<<20); err != nil || again != g {
				t.Errorf("%+v: %+v, %v", g, again, err)
			}
		}
		if n, err := parseSize(s); err == nil && n < 0 {
			t.Errorf("%q: %d", s, n)
		}
		if v, err := parseVersion(s); err == nil && v < 100000 {
			t.Errorf("%q: %d", s, v)
		}
		if list, err := (History{Timeline: 9, Content: []byte(s)}).Ancestors(); err == nil && len(list) > 8 {
			t.Errorf("%q: %v", s, list)
		}
	})
}

// tape plays bytes and swallows what is written.
type tape struct {
	net.Conn // nil: whatever is not below is not called
	rest     []byte
	cut      int // the most bytes that one read returns
}

func (p *tape) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(b, p.rest[:min(len(p.rest), p.cut)])
	p.rest = p.rest[n:]
	return n, nil
}

func (p *tape) Write(b []byte) (int, error)      { return len(b), nil }
func (p *tape) Close() error                     { return nil }
func (p *tape) SetDeadline(time.Time) error      { return nil }
func (p *tape) SetReadDeadline(time.Time) error  { return nil }
func (p *tape) SetWriteDeadline(time.Time) error { return nil }

// FuzzAnswers has a server answer each command with any bytes: no answer may
// crash or hang, and none that is cut off may pass for whole.
func FuzzAnswers(f *testing.F) {
	ready := pgwire.AppendReadyForQuery(nil, 'I')
	row := func(values ...string) []byte {
		fields := make([]pgwire.Field, len(values))
		raw := make([][]byte, len(values))
		for i, v := range values {
			raw[i] = []byte(v)
		}
		return pgwire.AppendCommandComplete(pgwire.AppendDataRow(pgwire.AppendRowDescription(nil, fields), raw), "SELECT")
	}
	join := func(messages ...[]byte) []byte { return bytes.Join(messages, nil) }
	f.Add(byte(0), join(row("a", "b"), pgwire.AppendNotice(nil, pgwire.NewError("0", "x")), ready))
	f.Add(byte(0), []byte("Z\x00\x00\x00\x07IIII"))
	f.Add(byte(0), join(pgwire.AppendError(nil, pgwire.NewError("42601", "x")), ready))
	both := pgwire.AppendMessage(nil, pgwire.ServerCopyBothResponse, []byte{0, 0, 0})
	f.Add(byte(1), join(both, data(1<<24, "seven"), keepalive(9, 1), pgwire.AppendCopyDone(nil), row("2", "0/A"), ready))
	f.Add(byte(1), join(row("2", "0/A"), ready))
	copies := pgwire.AppendMessage(nil, pgwire.ServerCopyOutResponse, []byte{0, 0, 0})
	part := func(s string) []byte { return pgwire.AppendCopyData(nil, []byte(s)) }
	f.Add(byte(2), join(row("0/A", "1"), row("", "", "12"), copies, part("nbase.tar\x00\x00"), part("dx"), part("m"), part("d{}"), pgwire.AppendCopyDone(nil), row("0/B", "1"), pgwire.AppendCommandComplete(nil, "BASE_BACKUP"), ready))
	f.Add(byte(3), join(row("0/A", "1"), row("", "", "12"), copies, part("x"), pgwire.AppendCopyDone(nil), row("0/B", "1"), pgwire.AppendCommandComplete(nil, "SELECT"), ready))
	f.Add(byte(4), join(row("id", "1", "0/1000000", ""), ready, row("16MB"), ready, both, data(1<<24, "seven"), data(1<<24+5, "more")))
	f.Fuzz(func(t *testing.T, what byte, answer []byte) {
		version := 150000
		if what == 3 {
			version = 140000
		}
		c := newConn(&pgwire.Backend{Conn: &tape{rest: answer, cut: 7}}, Logical, version)
		defer c.Close()
		ctx := context.Background()
		var err error
		switch what {
		case 0:
			_, err = c.Query(ctx, "x")
		case 1:
			var s *Stream
			if s, err = c.StartPhysical(ctx, PhysicalConfig{Start: 1}); err == nil {
				for err == nil {
					_, err = s.Receive(ctx)
				}
				s.Next()
				return
			}
		case 2, 3:
			_, err = c.BaseBackup(ctx, BackupConfig{Manifest: true}, &crate{}, nil)
		default:
			if _, _, err = c.ReceiveWAL(ctx, ReceiveConfig{Slot: "s", Start: 1 << 24}, newShelf()); err == nil {
				t.Error("ReceiveWAL has no end")
			}
			return
		}
		if err == nil && !bytes.Contains(answer, []byte{'Z', 0, 0, 0, 5}) {
			t.Error("an answer that never ended")
		}
	})
}
