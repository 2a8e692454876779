package live

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// span is what history.json has.
type span struct {
	Every int64                 `json:"every"`
	T     []int64               `json:"t"`
	V     map[string][]*float64 `json:"v"`
}

func read(t *testing.T, text []byte) (s span) {
	t.Helper()
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return s
}

// start is the beginning of ten seconds.
var start = time.Unix(1_700_000_000, 0)

func TestRingKeepsTenMinutesAndSixHours(t *testing.T) {
	t.Parallel()
	r := NewRing([]Series{{Key: "i"}, {Key: "top", Peak: true}})
	const samples = 7 * 3600
	for i := range samples {
		r.Add(start.Add(time.Duration(i)*time.Second), []float64{float64(i), float64(i % 10)})
	}
	now := start.Add((samples - 1) * time.Second)

	fine := read(t, r.AppendJSON(nil, now, 10*time.Minute))
	if n := len(fine.T); n != finePoints || fine.Every != 1000 || fine.T[n-1] != now.UnixMilli() || fine.T[0] != now.Add(-599*time.Second).UnixMilli() {
		t.Errorf("ten minutes: %d points each %d ms, %d to %d", n, fine.Every, fine.T[0], fine.T[n-1])
	}
	if got := *fine.V["i"][0]; math.Abs(got-(samples-600)) > 5 { // four digits are shown
		t.Errorf("the oldest of ten minutes is %v", got)
	}
	if two := read(t, r.AppendJSON(nil, now, 2*time.Minute)); len(two.T) != 121 {
		t.Errorf("two minutes: %d points", len(two.T))
	}

	coarse := read(t, r.AppendJSON(nil, now, 6*time.Hour))
	if n := len(coarse.T); n < coarsePoints-2 || n > coarsePoints || coarse.Every != 10_000 {
		t.Errorf("six hours: %d points each %d ms", n, coarse.Every)
	}
	for i := range coarse.T {
		if *coarse.V["top"][i] != 9 {
			t.Fatalf("the largest of ten seconds is %v, want 9", *coarse.V["top"][i])
		}
	}
	if hour := read(t, r.AppendJSON(nil, now, time.Hour)); len(hour.T) < 358 || len(hour.T) > 360 {
		t.Errorf("an hour: %d points", len(hour.T))
	}
}

func TestRingFoldsWhatIsKnown(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	r := NewRing([]Series{{Key: "mean"}, {Key: "peak", Peak: true}, {Key: "never"}})
	r.Add(start, []float64{1, -5, nan})
	r.Add(start.Add(time.Second), []float64{nan, nan, nan})
	r.Add(start.Add(9*time.Second), []float64{5, -7, math.Inf(1)})
	r.Add(start.Add(60*time.Second), []float64{0, 0, nan}) // after a gap
	r.Add(start.Add(70*time.Second), []float64{0, 0, nan})
	got := string(r.AppendJSON(nil, start.Add(70*time.Second), time.Hour))
	want := `{"every":10000,"t":[1700000009000,1700000060000],"v":{"mean":[3,0],"peak":[-5,0],"never":[null,null]}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := string(NewRing(nil).AppendJSON(nil, start, time.Hour)); got != `{"every":10000,"t":[],"v":{}}` {
		t.Errorf("an empty ring: %s", got)
	}
}

// The memory is what the comment of Ring says, and stays.
func TestRingDoesNotGrow(t *testing.T) {
	series := make([]Series, 30)
	values := make([]float64, len(series))
	r := NewRing(series)
	i := 0
	if n := testing.AllocsPerRun(5000, func() {
		r.Add(start.Add(time.Duration(i)*time.Second), values)
		i++
	}); n != 0 {
		t.Errorf("%v allocations for a sample", n)
	}
	bytes := 0
	for _, p := range []points{r.fine, r.coarse} {
		bytes += 8 * cap(p.at)
		for _, v := range p.values {
			bytes += 4 * cap(v)
		}
	}
	if bytes != (600+2160)*(8+4*30) {
		t.Errorf("%d bytes", bytes)
	}
}
