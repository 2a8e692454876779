package backupdata

import (
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"time"
)

// start is the time of the first row of every table.
var start = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// row writes the values of a row, separated by tabs. Values are escaped for COPY and LOAD DATA,
// which both use \\, \t, \n, \r and \N.
type row struct {
	dialect Dialect
	rng     *rand.Rand
	b       []byte
	id      int64     // of this row
	at      time.Time // increases from row to row
	first   bool
	scratch []byte
}

func (r *row) begin() {
	if !r.first {
		r.b = append(r.b, '\t')
	}
	r.first = false
}

func (r *row) int(v int64) { r.begin(); r.b = strconv.AppendInt(r.b, v, 10) }

// money writes an amount in hundredths.
func (r *row) money(cents int64) {
	r.begin()
	r.b = strconv.AppendInt(r.b, cents/100, 10)
	r.b = append(r.b, '.', byte('0'+cents/10%10), byte('0'+cents%10))
}

func (r *row) float(v float64) { r.begin(); r.b = strconv.AppendFloat(r.b, v, 'g', -1, 64) }

func (r *row) bool(v bool) {
	r.begin()
	switch {
	case r.dialect == MySQL && v:
		r.b = append(r.b, '1')
	case r.dialect == MySQL:
		r.b = append(r.b, '0')
	case v:
		r.b = append(r.b, 't')
	default:
		r.b = append(r.b, 'f')
	}
}

func (r *row) null() { r.begin(); r.b = append(r.b, '\\', 'N') }

// time writes the time of this row, up to most after that of the row before.
func (r *row) time(most time.Duration) {
	r.begin()
	r.at = r.at.Add(time.Duration(r.rng.Int64N(int64(most))).Truncate(time.Microsecond))
	r.b = r.at.AppendFormat(r.b, "2006-01-02 15:04:05.000000")
}

// text writes characters, escaped.
func (r *row) text(v []byte) {
	r.begin()
	for _, c := range v {
		switch c {
		case '\\':
			r.b = append(r.b, '\\', '\\')
		case '\t':
			r.b = append(r.b, '\\', 't')
		case '\n':
			r.b = append(r.b, '\\', 'n')
		case '\r':
			r.b = append(r.b, '\\', 'r')
		default:
			r.b = append(r.b, c)
		}
	}
}

// bytes writes bytes in hexadecimal, as in PostgreSQL's text format.
func (r *row) bytes(v []byte) {
	r.begin()
	if r.dialect == PostgreSQL {
		r.b = append(r.b, '\\', '\\', 'x')
	}
	r.b = hex.AppendEncode(r.b, v)
}

// of picks an element.
func of[T any](r *row, all []T) T { return all[r.rng.IntN(len(all))] }

// skewed picks a number in [1, n], small ones much more often: few products make most of the
// sales.
func (r *row) skewed(n int64) int64 {
	u := r.rng.Float64()
	return 1 + int64(u*u*u*float64(n))
}

// words writes about n words with punctuation into the scratch buffer.
func (r *row) words(n int) []byte {
	b := r.scratch[:0]
	sentence := 0
	for i := range n {
		w := word(r.rng)
		if sentence == 0 {
			b = append(b, w[0]-'a'+'A')
			b = append(b, w[1:]...)
			sentence = 6 + r.rng.IntN(18)
		} else {
			b = append(b, w...)
		}
		sentence--
		switch {
		case i == n-1 || sentence == 0:
			b = append(b, '.')
			sentence = 0
			if i < n-1 && r.rng.IntN(7) == 0 {
				b = append(b, "\n\n"...)
				continue
			}
		case r.rng.IntN(12) == 0:
			b = append(b, ',')
		}
		if i < n-1 {
			b = append(b, ' ')
		}
	}
	r.scratch = b
	return b
}
