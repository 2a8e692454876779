package netloop

import (
	"testing"
	"time"
)

func TestPressureHasTwoThresholds(t *testing.T) {
	var p pressure
	for i, step := range []struct {
		share float64
		want  bool
	}{{0, false}, {0.19, false}, {0.2, true}, {0.15, true}, {0.1, false}, {0.15, false}, {0.9, true}, {0, false}} {
		if p.judge(step.share); p.pressed != step.want {
			t.Errorf("step %d, share %v: pressed %v", i, step.share, p.pressed)
		}
	}
}

func TestParseSchedstat(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
		ok   bool
	}{{"104 2500 7\n", 2500, true}, {"0 0 0", 0, true}, {"", 0, false}, {"1\n", 0, false}, {"1 x 2", 0, false}} {
		if got, ok := parseSchedstat([]byte(c.text)); got != c.want || ok != c.ok {
			t.Errorf("%q: %v, %v", c.text, got, ok)
		}
	}
}

func TestPressureOfThisThread(t *testing.T) {
	var p pressure
	p.watch(0)
	defer p.end()
	if p.fd < 0 {
		t.Skip("this system has no /proc/thread-self/schedstat")
	}
	if _, ok := p.read(); !ok {
		t.Error("the thread's statistics cannot be read")
	}
	p.look(time.Second)
	p.end()
	p.look(2 * time.Second)
	if p.at != time.Second {
		t.Errorf("looked at %v without statistics", p.at)
	}
}
