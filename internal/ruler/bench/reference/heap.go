package reference

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// tellingStatements is the smallest number of statements after which a leak per statement can
// be told from the memory of pools, caches and the collector's timing.
const tellingStatements = 100_000

// heapOf finds the heap of a case, with at least two readings.
func (m *Measured) heapOf(part, side string) (*suite.Heap, string) {
	t := m.parts[part]
	if t == nil {
		return nil, "not in this plan"
	}
	for i := range t.Heaps {
		if h := &t.Heaps[i]; h.Case == side && len(h.Readings) > 1 && h.Statements() > 0 {
			return h, ""
		}
	}
	if why := t.State.why(); why != "" {
		return nil, why
	}
	return nil, "no heap profile was taken"
}

// heapFigure reads a figure about the proxy's heap.
func heapFigure(part, unit string, of func(*suite.Heap) float64) Measure {
	return func(m *Measured) (Figure, string) {
		h, why := m.heapOf(part, "weir auto")
		if h == nil {
			return Figure{}, why
		}
		v := of(h)
		return Figure{Interval: bench.Interval{Median: v, Lo: v, Hi: v, N: 1}, Unit: unit}, ""
	}
}

// heapSite names the site that keeps most, or the one with the given rank, with its share.
func heapSite(part string, rank int) Measure {
	return func(m *Measured) (Figure, string) {
		h, why := m.heapOf(part, "weir auto")
		switch {
		case h == nil:
			return Figure{}, why
		case rank >= len(h.Kept):
			return Figure{}, none
		}
		return Figure{Text: fmt.Sprintf("%s, %s kB", h.Kept[rank].Function, bench.Figure(float64(h.Kept[rank].Bytes)/1e3))}, ""
	}
}

// longLoad judges the growth of the heap under long loads; false if no part has one.
func (m *Measured) longLoad(parts []string) (Judgement, bool) {
	out := Judgement{Verdict: Holds}
	told := 0
	for _, part := range parts {
		t := m.parts[part]
		if t == nil || t.Leak == nil {
			continue
		}
		told++
		l := t.Leak
		out.Evidence += fmt.Sprintf("%s: %.0f s, %d readings; %s. ", part, l.Seconds, len(l.Points), l.Verdict())
		switch {
		case l.Grows():
			out.Verdict = DoesNotHold
		case !l.Flat() && out.Verdict == Holds:
			out.Verdict = CannotTell
		}
	}
	out.Evidence = strings.TrimSpace(out.Evidence)
	return out, told > 0
}

// keepsNothing judges long loads, if there are any. Three short ones can only refute that
// nothing leaks: if the heap of a part grows from each reading to the next, by an object or
// more per statement. Otherwise they confirm nothing: leaks that need hours, or many
// connections, do not show within seconds.
func keepsNothing(parts ...string) func(*Measured) Judgement {
	return func(m *Measured) Judgement {
		if j, ok := m.longLoad(parts); ok {
			return j
		}
		out := Judgement{Verdict: CannotTell}
		told, small := 0, 0
		for _, part := range parts {
			h, why := m.heapOf(part, "weir auto")
			if h == nil {
				out.Evidence += sentence(part+": "+why) + " "
				continue
			}
			told++
			last := len(h.Readings) - 1
			each, always := h.Growth()
			out.Evidence += fmt.Sprintf("%s: from %s to %s kB over %d statements, %.2f B for each. ", part, bench.Figure(h.Readings[0].Bytes/1e3), bench.Figure(h.Readings[last].Bytes/1e3), h.Statements(), each)
			switch {
			case each < suite.SmallestObject:
				small++
			case h.Statements() < tellingStatements:
				out.Evidence += fmt.Sprintf("%d statements are needed to tell. ", tellingStatements)
			case always:
				out.Verdict = DoesNotHold
			}
		}
		if told > 0 && small == told {
			out.Evidence += "No object is kept for each statement; seconds cannot show that hours leave nothing."
		}
		out.Evidence = strings.TrimSpace(out.Evidence)
		return out
	}
}
