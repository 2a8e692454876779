package bulk

import "testing"

// Steps that were not announced, such as those of a comparison after the data, add to the total,
// so that progress is never 18 of 12.
func TestStepsDoNotPassTheirTotal(t *testing.T) {
	var p Progress
	p.Expect(1000, 3)
	for i := range 5 {
		p.Begin("object")()
		if s := p.Snapshot(); s.Steps != int64(i+1) || s.TotalSteps != int64(max(3, i+1)) {
			t.Errorf("%d of %d steps after %d", s.Steps, s.TotalSteps, i+1)
		}
	}
	var unknown Progress
	unknown.Begin("object")()
	if s := unknown.Snapshot(); s.TotalSteps != 0 {
		t.Errorf("a total of %d where none is known", s.TotalSteps)
	}
}
