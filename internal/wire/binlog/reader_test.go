package binlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readerOf(t *testing.T, b *builder, cfg ReaderConfig) *Reader {
	t.Helper()
	f, err := NewFile(bytes.NewReader(b.file()), "log.000001")
	if err != nil {
		t.Fatal(err)
	}
	return NewReader(f, cfg)
}

// TestEventsWithoutPositions reads and records a log in which only the first and
// the last event of a transaction say where they are.
func TestEventsWithoutPositions(t *testing.T) {
	for _, crc := range []bool{true, false} {
		b := newBuilder(crc)
		b.silent = true
		b.gtid(1, 0).table().insert(1, 3, 10).insert(4, 1, 2000).xid().gtid(2, 0).table().insert(5, 1, 7).xid()
		f, err := NewFile(bytes.NewReader(b.file()), "log.000001")
		if err != nil {
			t.Fatal(err)
		}
		var copied bytes.Buffer
		r := NewRecorder(func(Position) (io.WriteCloser, error) { return nopCloser{&copied}, nil })
		for i := 0; ; i++ {
			e, err := f.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := uint64(len(Magic) + b.bounds[i]); e.Start() != want {
				t.Errorf("%s event begins at %d, want %d", e.Type, e.Start(), want)
			}
			if err := r.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(copied.Bytes(), b.file()) {
			t.Errorf("the copy has %d bytes, the log %d and others", copied.Len(), len(b.file()))
		}
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestTransactionWithoutAnEndIsRolledBack(t *testing.T) {
	const whole = 0
	for name, b := range map[string]*builder{
		"another begins":   newBuilder(true).gtid(1, whole).table().insert(1, 1, 0).gtid(2, whole).table().insert(2, 1, 0).xid(),
		"the file ends":    newBuilder(true).gtid(1, whole).table().insert(1, 1, 0).rotate("log.000002").gtid(2, whole).table().insert(2, 1, 0).xid(),
		"the server stops": newBuilder(false).gtid(1, whole).table().insert(1, 1, 0).add(StopEvent, nil).gtid(2, whole).table().insert(2, 1, 0).xid(),
		"no GTIDs":         newBuilder(false).query("BEGIN").table().insert(1, 1, 0).query("BEGIN").table().insert(2, 1, 0).xid(),
	} {
		want := []string{"begin", "insert t (1,)", "rollback", "begin", "insert t (2,)", "commit"}
		if diff := cmp.Diff(want, lines(t, readerOf(t, b, ReaderConfig{}))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTransactionsRolledBackInTheLog(t *testing.T) {
	b := newBuilder(true).gtid(1, 0).table().insert(1, 1, 0).query("SAVEPOINT `a`").query("ROLLBACK TO `a`").query("ROLLBACK")
	want := []string{"begin", "insert t (1,)", "statement ROLLBACK TO `a`", "rollback"}
	if diff := cmp.Diff(want, lines(t, readerOf(t, b, ReaderConfig{}))); diff != "" {
		t.Error(diff)
	}
}

func TestRecordsSayWhereAndWhen(t *testing.T) {
	b := newBuilder(true).gtid(1, mariaStandalone).query("CREATE TABLE t (id INT)").gtid(2, 0).table().insert(1, 2, 0).xid()
	end := uint64(len(b.file()))
	b.gtid(3, 0).table().insert(3, 1, 0) // its end has not come yet
	r := readerOf(t, b, ReaderConfig{Executed: &GTIDSet{}})
	var commits []Record
	for {
		rec, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind == Commit {
			commits = append(commits, *rec)
		}
	}
	if len(commits) != 2 {
		t.Fatalf("%d commits, want 2", len(commits))
	}
	got := commits[1]
	if want := (Position{"log.000001", end}); got.Position != want || r.Position() != want {
		t.Errorf("commit at %s, reader at %s, want %s", got.Position, r.Position(), want)
	}
	if got.GTID.String() != "0-7-2" || r.Executed().String() != "0-7-2" {
		t.Errorf("GTID %s, executed %s, want 0-7-2", got.GTID, r.Executed())
	}
	if !got.Time.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("committed at %v", got.Time)
	}
}

func TestPositionFollowsWhatIsGivenOut(t *testing.T) {
	b := newBuilder(true)
	before := uint64(len(b.file()))
	b.gtid(1, mariaStandalone).query("DROP TABLE t")
	r := readerOf(t, b, ReaderConfig{})
	for _, kind := range []RecordKind{Begin, Statement, Commit} {
		rec, err := r.Next(t.Context())
		if err != nil || rec.Kind != kind {
			t.Fatalf("%+v, %v, want kind %d", rec, err, kind)
		}
		want := before
		if kind == Commit {
			want = uint64(len(b.file()))
		}
		if r.Position().Pos != want {
			t.Errorf("after kind %d the reader is at %s, want %d", kind, r.Position(), want)
		}
	}
}

func TestPositionsBeyond4GiB(t *testing.T) {
	b := newBuilder(false).gtid(1, 0)
	s := &events{framer: framer{file: "f", pos: 1<<32 - 40, offset: -1}}
	first := b.log[b.bounds[1]:]
	binary.LittleEndian.PutUint32(first[13:], uint32(1<<32-40+len(first)-1<<32))
	s.left = [][]byte{first}
	e, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(1<<32 - 40 + len(first)); e.End != want || e.Start() != 1<<32-40 {
		t.Errorf("event from %d to %d, want to %d", e.Start(), e.End, want)
	}
}

func TestReaderRefusesWhatItCannotKnow(t *testing.T) {
	rows := func(id byte) []byte { return []byte{id, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 3, 0} }
	for _, tc := range []struct {
		name string
		b    *builder
		want error
	}{
		{"rows of no table", newBuilder(true).gtid(1, 0).add(WriteRowsEvent, rows(9)), ErrMalformed},
		{"rows with other columns", newBuilder(true).gtid(1, 0).table().add(WriteRowsEvent, []byte{1, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, 7, 0}), ErrMalformed},
		{"unknown column type", newBuilder(true).gtid(1, 0).add(TableMapEvent, []byte{1, 0, 0, 0, 0, 0, 1, 0, 1, 's', 0, 1, 't', 0, 1, 20, 0, 0}), ErrMalformed},
		{"short table", newBuilder(true).gtid(1, 0).add(TableMapEvent, []byte{1, 0, 0, 0, 0, 0, 1, 0, 1, 's', 0, 1}), ErrMalformed},
		{"incident", newBuilder(true).add(IncidentEvent, []byte{1, 0, 0}), ErrIncident},
		{"short rotation", newBuilder(true).add(RotateEvent, []byte{4}), ErrMalformed},
		{"short statement", newBuilder(true).gtid(1, 0).add(QueryEvent, []byte{4}), ErrMalformed},
		{"encrypted", newBuilder(true).add(StartEncryptionEvent, make([]byte, 17)), ErrEncrypted},
	} {
		r := readerOf(t, tc.b, ReaderConfig{})
		var err error
		for err == nil {
			_, err = r.Next(t.Context())
		}
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "log.000001") {
			t.Errorf("%s: %v, want %v and the place", tc.name, err, tc.want)
		}
	}
}

func TestEventsOfUnknownTypesArePassedOver(t *testing.T) {
	dummy := []byte{0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 2, 0, 0}
	b := newBuilder(true).add(200, []byte{1, 2, 3}).gtid(1, 0).add(201, nil).table().insert(1, 1, 0).add(WriteRowsEvent, dummy).xid()
	if diff := cmp.Diff([]string{"begin", "insert t (1,)", "commit"}, lines(t, readerOf(t, b, ReaderConfig{}))); diff != "" {
		t.Error(diff)
	}
}

func TestRowsThatEndEarlyAreAnError(t *testing.T) {
	b := newBuilder(true).gtid(1, 0).table().add(WriteRowsEvent, []byte{1, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 3, 0, 1, 2, 3})
	r := readerOf(t, b, ReaderConfig{})
	for range 2 {
		rec, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind != Changes {
			continue
		}
		if rec.Rows.Next() || !errors.Is(rec.Rows.Err(), ErrMalformed) {
			t.Errorf("%v", rec.Rows.Err())
		}
	}
}

func TestRecorderNamesGaps(t *testing.T) {
	b := newBuilder(true).gtid(1, 0).table().insert(1, 1, 0).xid()
	feed := func(skip int) error {
		f, err := NewFile(bytes.NewReader(b.file()), "log.000001")
		if err != nil {
			t.Fatal(err)
		}
		r := NewRecorder(func(Position) (io.WriteCloser, error) { return discard{}, nil })
		for i := 0; ; i++ {
			e, err := f.Next(t.Context())
			if err != nil {
				return r.Close()
			}
			if i == skip {
				continue
			}
			if err := r.Write(e); err != nil {
				return err
			}
		}
	}
	if err := feed(-1); err != nil {
		t.Error(err)
	}
	for skip := range 4 {
		if err := feed(skip); !errors.Is(err, ErrMalformed) {
			t.Errorf("without event %d: %v", skip, err)
		}
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Close() error                { return nil }
