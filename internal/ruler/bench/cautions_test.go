package bench

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
)

// rounds cuts the samples of every case to the first n, and evaluates again.
func rounds(r *Result, n int) *Result {
	for _, c := range r.Cases {
		c.Samples = c.Samples[:n]
	}
	r.Evaluate()
	return r
}

func TestCautionsStandAboveAll(t *testing.T) {
	disturb := func(rounds int) func(*Sample) {
		return func(s *Sample) {
			if s.Round < rounds {
				s.Machine = &measure.Activity{Seconds: 1, PressureKnown: true, MemoryWait: 0.5}
			}
		}
	}
	pair := func(change ...func(*Sample)) *Result {
		return result(testCase("direct", "", 1000, 8, change...), testCase("grouped", "auto", 2000, 8, change...))
	}
	for _, tc := range []struct {
		name string
		in   *Result
		want string // a part of the only caution; "" for none
	}{
		{"quiet", pair(), ""},
		{"a third disturbed", pair(disturb(2)), ""},
		{"most disturbed", pair(disturb(5)), "disturbed 10 of 12 rounds: do not quote absolute figures"},
		{"one round", rounds(pair(), 1), "1 of 1 experiments had only one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := Document("x", tc.in)
			var said []string
			for _, f := range doc.Findings {
				said = append(said, f.Claim)
			}
			if len(said) > 1 || (len(said) == 0) != (tc.want == "") || !strings.Contains(strings.Join(said, ""), tc.want) {
				t.Errorf("said %q, want %q", said, tc.want)
			}
		})
	}
}

func TestOneRoundDecidesNothing(t *testing.T) {
	r := rounds(result(testCase("direct", "", 1000, 8), testCase("grouped", "auto", 2000, 8)), 1)
	if got := claims(r, "ratio"); got != "" {
		t.Errorf("ratio of one round: %q", got)
	}
	c, err := Compare(r.Cases[0], r.Cases[1], "rate")
	if err != nil || c.Verdict != CannotTell || RatioText(c.Ratio) != "2.00x (one pair: cannot tell)" {
		t.Errorf("one pair: %s, %s, %v", RatioText(c.Ratio), c.Verdict, err)
	}
}

// A case is the fastest when the rounds tell it from every other one: the highest
// median of two that are the same, or of one round, says nothing.
func TestFastest(t *testing.T) {
	slow, fast := testCase("slow", "", 1000, 8), testCase("fast", "auto", 2000, 8)
	for _, tc := range []struct {
		name string
		in   *Result
		want string
	}{
		{"twice as fast", result(slow, fast), "fast"},
		{"two alike", result(slow, fast, testCase("as fast", "", 2001, 8)), ""},
		{"one round", rounds(result(testCase("slow", "", 1000, 8), testCase("fast", "auto", 2000, 8)), 1), ""},
		{"alone", result(fast), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if c := Fastest(tc.in); c != nil {
				got = c.Name
			}
			if got != tc.want {
				t.Errorf("the fastest is %q, want %q", got, tc.want)
			}
		})
	}
}
