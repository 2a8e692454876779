package clitest

import (
	"encoding/json"
	"testing"
)

// DashboardQueries returns the queries of a Grafana dashboard. It fails the test if a panel has
// no query or overlaps another.
func DashboardQueries(t *testing.T, text []byte) (queries []string) {
	t.Helper()
	var dashboard struct {
		Title, UID string
		Panels     []struct {
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" {
		t.Error("the dashboard has no name")
	}
	taken := map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %s shows nothing", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panel %s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			if target.LegendFormat == "" {
				t.Errorf("panel %s: %s has no name", p.Title, target.Expr)
			}
			queries = append(queries, target.Expr)
		}
	}
	return queries
}
