package sim

import (
	"strings"
	"testing"
	"time"
)

func TestTotalsNameTheSeed(t *testing.T) {
	r := Result{Seed: 7, Config: Config{Replicas: 3, Preset: "curp", Profile: "crash", SessionIdle: time.Hour}, Violations: []Violation{{Check: "lost", Text: "x"}}}
	var b strings.Builder
	if err := (&Totals{Seeds: 1, Next: 8, Failures: []Result{r}}).Print(&b, time.Second); err != nil || !strings.Contains(b.String(), "broken by seed 7: lost: x\n") {
		t.Errorf("%v: %s", err, b.String())
	}
	if err := Verdict([]Result{{}}); err != nil {
		t.Errorf("of a run without violations: %v", err)
	}
	if err := Verdict([]Result{{}, r}); err == nil || !strings.Contains(err.Error(), "--seed 7 ") {
		t.Errorf("%v", err)
	}
}
