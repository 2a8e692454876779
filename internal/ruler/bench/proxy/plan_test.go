package proxybench

import (
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Plan smoke has an experiment of each kind that plan full has, so that any of them can be tried
// within a minute.
func TestSmokeHasEveryKindOfExperiment(t *testing.T) {
	for _, e := range []suite.Engine{suite.PostgreSQL, suite.MariaDB} {
		kinds := make(map[string]bool)
		for _, s := range Steps(Options{Engine: e, Plan: Plans()["smoke"]}) {
			kinds[kind(s)] = true
		}
		for _, s := range Steps(Options{Engine: e, Plan: Plans()["full"]}) {
			if !kinds[kind(s)] {
				t.Errorf("%s: plan smoke has nothing like %s", e, s.Names[0])
			}
		}
	}
}

// kind is the group of a step, or the name of one that has none.
func kind(s suite.Step) string {
	if s.Group != "" {
		return s.Group
	}
	return s.Names[0]
}
