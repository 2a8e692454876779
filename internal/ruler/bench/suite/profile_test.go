package suite

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
)

// TestFewSamplesTellNoShares has one profile that is worth reading and one of seven
// samples, whose shares would be chance.
func TestFewSamplesTellNoShares(t *testing.T) {
	of := func(name string, samples int64) CPUProfile {
		return CPUProfile{Case: name, Role: "client", Breakdown: &measure.CPUBreakdown{
			Seconds: float64(samples) / 100, Samples: samples, Categories: []measure.Category{{Name: "application", Exclusive: 1, Cumulative: 1}},
		}}
	}
	got := ProfileSection([]CPUProfile{of("direct", 7), of("weir", 400)})
	if text := strings.Join(got.Text, "\n"); !strings.Contains(text, "direct, client: 7 samples (0.07 s of CPU time) are too few for shares") {
		t.Errorf("it says: %s", text)
	}
	if cols := got.Tables[0].Columns; len(cols) != 2 || cols[1].Name != "weir, client" {
		t.Errorf("columns: %v", cols)
	}
	if last := got.Tables[0].Rows[len(got.Tables[0].Rows)-1]; last[0].Text != "samples" || last[1].Text != "400" {
		t.Errorf("last row: %v", last)
	}
	if len(got.Charts[0].Categories) != 1 {
		t.Errorf("the chart shows %v", got.Charts[0].Categories)
	}
	if none := ProfileSection([]CPUProfile{of("direct", 99)}); len(none.Tables)+len(none.Charts) > 0 || len(none.Text) != 1 {
		t.Errorf("of too few alone: %+v", none)
	}
}

func TestFunctionNamesFitATable(t *testing.T) {
	for symbol, want := range map[string]string{
		"syscall.RawSyscall6": "syscall.RawSyscall6",
		"github.com/weirdb/weir/internal/proxy/netloop.(*Loop).turn":                                                                               "internal/proxy/netloop.(*Loop).turn",
		"github.com/weirdb/weir/internal/proxy/core.(*Server[go.shape.*github.com/weirdb/weir/internal/proxy/mysql.bind,go.shape.[]uint8]).OnData": "internal/proxy/core.(*Server[...]).OnData",
		"odd]name[": "odd]name[",
	} {
		if got := functionName(symbol); got != want {
			t.Errorf("%s: %s, want %s", symbol, got, want)
		}
	}
}
