package live

import (
	"math"
	"strconv"
	"time"
)

// The page keeps a point per second for ten minutes, and a point per ten seconds for six hours.
const (
	finePoints   = 600
	fineEvery    = time.Second
	fineSpan     = finePoints * fineEvery
	coarsePoints = 2160
	coarseEvery  = 10 * time.Second
)

// Ring is the history of a page's values. Its memory is allocated at once and does not grow:
// (600 + 2160) points of 8 bytes for the time and 4 for each value, which is 353 KB for 30
// values. It is not safe for concurrent use.
type Ring struct {
	series       []Series
	fine, coarse points

	// The current ten seconds.
	bucket int64     // number of the interval since 1970; 0: none
	last   int64     // time of the newest sample in it
	fold   []float64 // sum, or largest value
	seen   []int     // number of known values
}

// points are a fixed number of samples; the newest replaces the oldest.
type points struct {
	at     []int64     // Unix milliseconds
	values [][]float32 // by series; NaN: unknown
	next   int
	full   bool
}

func newPoints(n, series int) points {
	p := points{at: make([]int64, n), values: make([][]float32, series)}
	all := make([]float32, n*series)
	for i := range p.values {
		p.values[i], all = all[:n:n], all[n:]
	}
	return p
}

func (p *points) add(at int64, values func(i int) float64) {
	p.at[p.next] = at
	for i := range p.values {
		p.values[i][p.next] = float32(values(i))
	}
	if p.next++; p.next == len(p.at) {
		p.next, p.full = 0, true
	}
}

// order calls do with the indexes of the points since a time, oldest first.
func (p *points) order(since int64, do func(place int)) {
	n, first := p.next, 0
	if p.full {
		n, first = len(p.at), p.next
	}
	for i := range n {
		if place := (first + i) % len(p.at); p.at[place] >= since {
			do(place)
		}
	}
}

// NewRing returns a ring without points.
func NewRing(series []Series) *Ring {
	return &Ring{
		series: series, fine: newPoints(finePoints, len(series)), coarse: newPoints(coarsePoints, len(series)),
		fold: make([]float64, len(series)), seen: make([]int, len(series)),
	}
}

// Add adds a sample; values are in the order of the series, NaN if unknown.
func (r *Ring) Add(at time.Time, values []float64) {
	ms := at.UnixMilli()
	r.fine.add(ms, func(i int) float64 { return values[i] })
	if bucket := ms / coarseEvery.Milliseconds(); bucket != r.bucket {
		r.flush()
		r.bucket = bucket
	}
	r.last = ms
	for i, v := range values {
		switch {
		case math.IsNaN(v):
			continue
		case !r.series[i].Peak:
			r.fold[i] += v
		case r.seen[i] == 0 || v > r.fold[i]:
			r.fold[i] = v
		}
		r.seen[i]++
	}
}

// flush ends the current ten seconds.
func (r *Ring) flush() {
	if r.bucket == 0 {
		return
	}
	r.coarse.add(r.last, func(i int) float64 {
		switch {
		case r.seen[i] == 0:
			return math.NaN()
		case r.series[i].Peak:
			return r.fold[i]
		}
		return r.fold[i] / float64(r.seen[i])
	})
	clear(r.fold)
	clear(r.seen)
}

// AppendJSON appends the points of a time span before now to text:
//
//	{"every":1000,"t":[…],"v":{"key":[…]}}
//
// Unknown values are null. Spans of more than ten minutes have a point per ten seconds.
func (r *Ring) AppendJSON(text []byte, now time.Time, span time.Duration) []byte {
	p, every := &r.fine, fineEvery
	if span > fineSpan {
		p, every = &r.coarse, coarseEvery
	}
	since := now.Add(-span).UnixMilli()
	text = append(text, `{"every":`...)
	text = strconv.AppendInt(text, every.Milliseconds(), 10)
	text = append(text, `,"t":[`...)
	list := func(each func(place int)) {
		first := true
		p.order(since, func(place int) {
			if !first {
				text = append(text, ',')
			}
			first = false
			each(place)
		})
		text = append(text, ']')
	}
	list(func(place int) { text = strconv.AppendInt(text, p.at[place], 10) })
	text = append(text, `,"v":{`...)
	for i, s := range r.series {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendQuote(text, s.Key)
		text = append(text, ':', '[')
		list(func(place int) { text = appendValue(text, float64(p.values[i][place])) })
	}
	return append(text, '}', '}')
}

// appendValue appends a number with four digits, enough for a chart, or null.
func appendValue(text []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(text, "null"...)
	}
	return strconv.AppendFloat(text, v, 'g', 4, 64)
}
