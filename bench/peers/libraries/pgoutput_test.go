// Package libraries_test compares parts that weir has written itself with the library that
// could replace them, on the same input. docs/dependencies.md has the results and what
// follows from them.
//
//	go test -C bench/peers -bench . -benchmem ./libraries/...
package libraries_test

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/wire/pgrepl"
)

// recorded holds the messages of pgoutput, protocol version 1, that PostgreSQL 15 has sent for
// 40 messages of an outbox in one INSERT, one with NULLs, 8 UPDATEs, 5 DELETEs and a TRUNCATE.
//
//go:embed testdata/pgoutput.hex
var recorded []byte

func pgoutput(tb testing.TB) (messages [][]byte) {
	tb.Helper()
	for line := range bytes.Lines(recorded) {
		m, err := hex.AppendDecode(nil, bytes.TrimSpace(line))
		if err != nil {
			tb.Fatal(err)
		}
		messages = append(messages, m)
	}
	return messages
}

// weirRow and libraryRow append the values of an inserted row, or nothing for another message.
func weirRow(dst [][]byte, m pgrepl.Message) [][]byte {
	if m, ok := m.(*pgrepl.Insert); ok {
		for _, v := range m.New {
			dst = append(dst, v.Data)
		}
	}
	return dst
}

func libraryRow(dst [][]byte, m pglogrepl.Message) [][]byte {
	if m, ok := m.(*pglogrepl.InsertMessage); ok {
		for _, c := range m.Tuple.Columns {
			dst = append(dst, c.Data)
		}
	}
	return dst
}

// TestPgoutput checks that both see the same values, so that the benchmark compares the same
// work.
func TestPgoutput(t *testing.T) {
	messages := pgoutput(t)
	var d pgrepl.Decoder
	values := 0
	for i, data := range messages {
		ours, err := d.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := pglogrepl.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		a, b := weirRow(nil, ours), libraryRow(nil, theirs)
		if len(a) != len(b) {
			t.Fatalf("message %d: %d values and %d", i, len(a), len(b))
		}
		for j := range a {
			if !bytes.Equal(a[j], b[j]) {
				t.Fatalf("message %d: value %d is %q and %q", i, j, a[j], b[j])
			}
		}
		values += len(a)
	}
	if want := 41 * 6; values != want {
		t.Fatalf("%d values, want %d", values, want)
	}
}

// TestPgoutputCut counts the beginnings of the recorded messages on which the library panics;
// weir's decoder returns an error for each.
func TestPgoutputCut(t *testing.T) {
	messages := pgoutput(t)
	var cuts, panics, accepted int
	for _, data := range messages {
		for n := range data {
			var d pgrepl.Decoder
			if m, err := d.Decode(data[:n]); err == nil {
				t.Fatalf("weir takes %d bytes of %x as %T", n, data, m)
			}
			cuts++
			func() {
				defer func() {
					if recover() != nil {
						panics++
					}
				}()
				if _, err := pglogrepl.Parse(data[:n]); err == nil {
					accepted++
				}
			}()
		}
	}
	t.Logf("pglogrepl: of %d messages cut short, %d panic and %d are accepted", cuts, panics, accepted)
}

func BenchmarkPgoutput(b *testing.B) {
	messages := pgoutput(b)
	b.Run("weir", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			var d pgrepl.Decoder
			for _, data := range messages {
				if _, err := d.Decode(data); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("pglogrepl", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			for _, data := range messages {
				if _, err := pglogrepl.Parse(data); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// cost makes a benchmark report its allocations and the CPU time of an operation, which says
// more than the clock on a machine that others use. The caller calls the result at the end.
func cost(b *testing.B) (report func()) {
	b.Helper()
	b.ReportAllocs()
	before := cpuTime(b)
	return func() {
		b.Helper()
		b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
