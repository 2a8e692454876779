package session

import "testing"

// Each login asks for limits, and where there are no rules an answer takes no memory.
func TestLimitsTakeNoMemory(t *testing.T) {
	o := &Options{}
	if n := testing.AllocsPerRun(100, func() { _ = o.LimitsOf("app", "anna") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
