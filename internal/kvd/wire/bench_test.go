package wire

import "testing"

func BenchmarkMessage(b *testing.B) {
	m := Message{Kind: Strong, View: 3, Session: 1000, Seq: 100_000, Ack: 99_990, Data: make([]byte, 120)}
	form := m.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for room := form; b.Loop(); {
			room = m.Append(room[:0])
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := m.Decode(form); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCommand(b *testing.B) {
	c := Command{Verb: Set, Key: "key:000000000001", Value: make([]byte, 100)}
	form := c.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for room := form; b.Loop(); {
			room = c.Append(room[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseCommand(form); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("borrow", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Borrow(form); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkResult(b *testing.B) {
	r := Result{Found: true, Value: make([]byte, 100), Revision: 1_000_000}
	form := r.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for room := form; b.Loop(); {
			room = r.Append(room[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseResult(form); err != nil {
				b.Fatal(err)
			}
		}
	})
}
