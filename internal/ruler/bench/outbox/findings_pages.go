package outboxbench

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// scattered is how many times as many pages per row a claim may read before it counts as one
// that reads rows it does not take.
const scattered = 10

// pagesOfClaims says which claims read many pages for each row that they take.
func pagesOfClaims(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, Partition) {
		var cases []*bench.Case
		for _, c := range r.Cases {
			if c.Summary["claim_pages"].N > 0 {
				cases = append(cases, c)
			}
		}
		if len(cases) < 2 {
			continue
		}
		pages := func(c *bench.Case) float64 { return c.Summary["claim_pages"].Median }
		slices.SortStableFunc(cases, func(a, b *bench.Case) int { return cmp.Compare(pages(a), pages(b)) })
		least, most := cases[0], cases[len(cases)-1]
		f := bench.Finding{ID: "claim-pages", Severity: bench.Info}
		for _, c := range cases {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s: a claim reads %s pages for each row that it takes", c.Name, bench.Figure(pages(c))))
		}
		if pages(most) < scattered*pages(least) {
			f.Claim = fmt.Sprintf("No claim reads many more pages than another: %s reads %s per row, %s reads %s.", least.Name, bench.Figure(pages(least)), most.Name, bench.Figure(pages(most)))
		} else {
			f.Severity = bench.Warn
			f.Claim = fmt.Sprintf("%s: a claim reads %s pages for each row that it takes, %.0f times as many as %s: it scans rows that it does not take.", most.Name, bench.Figure(pages(most)), pages(most)/pages(least), least.Name)
		}
		out = append(out, f)
	}
	return out
}

// pageScatter says how many more pages a relay needs with larger payloads: pages requested from
// the server's cache, and pages read from disk.
func pageScatter(results []*bench.Result) []bench.Finding {
	type reading struct {
		size            float64
		requests, reads float64
	}
	relays := make(map[string][]reading)
	var order []string
	for _, r := range bench.Where(results, FactorPhase, Payload) {
		size, err := strconv.ParseFloat(r.Experiment.Factors["payload"], 64)
		if err != nil {
			continue
		}
		for _, c := range r.Cases {
			q, ok := c.Summary["page_requests"]
			if !ok || setting(c, "claim") != "skip-locked" {
				continue
			}
			if relays[c.Name] == nil {
				order = append(order, c.Name)
			}
			relays[c.Name] = append(relays[c.Name], reading{size, q.Median, c.Summary["page_reads"].Median / 1000})
		}
	}
	var out []bench.Finding
	for _, name := range order {
		all := relays[name]
		slices.SortFunc(all, func(a, b reading) int { return cmp.Compare(a.size, b.size) })
		if len(all) < 2 {
			continue
		}
		first, last := all[0], all[len(all)-1]
		f := bench.Finding{
			ID: "page-scatter", Severity: bench.Info,
			Claim: fmt.Sprintf("%s: a message of %g bytes requests %s pages, one of %g bytes %s.", name, first.size, bench.Figure(first.requests), last.size, bench.Figure(last.requests)),
		}
		read := false
		for _, a := range all {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%g B: %s pages requested and %s read per message", a.size, bench.Figure(a.requests), bench.Figure(a.reads)))
			read = read || a.reads > 0.01
		}
		if !read {
			f.Claim += " All of them were in the server's cache, which is larger than the backlog: these figures do not include reads from the disk."
		}
		out = append(out, f)
	}
	return out
}

// mixedGrid names the best combination next to producers, and says whether combinations differ
// at all.
func mixedGrid(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, Grid) {
		cases := claiming(r, "skip-locked")
		if len(cases) < 2 {
			continue
		}
		best, worst := cases[0], cases[len(cases)-1]
		f := bench.Finding{ID: "mixed-grid", Severity: bench.Info}
		for _, c := range cases[:min(6, len(cases))] {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s, commit to delivery p95 %s ms", c.PerSecond("msg/s"), bench.Figure(c.Summary["deliver_p95"].Median)))
		}
		what := fmt.Sprintf("%s, of %d combinations of workers x batch", r.Experiment.Title, len(cases))
		switch k, err := bench.Compare(worst, best, "rate"); {
		case err != nil || k.Ratio.N < 2:
			f.Claim = fmt.Sprintf("%s: cannot tell which is best, since each had one round; the highest rate is that of %s.", what, best.Name)
		case !bench.Ahead(best, worst):
			f.Claim = fmt.Sprintf("%s none differs from another in the rate of enqueuing: the producers are the limit.", strings.TrimSuffix(what, ":"))
		default:
			f.Claim = fmt.Sprintf("%s, with %s the producers enqueue most, %s times as much as with %s.", what, best.Name, bench.Figure(k.Ratio.Median), worst.Name)
		}
		out = append(out, f)
	}
	return out
}

// outOfBandPays says from which size on payloads are better kept outside the outbox.
func outOfBandPays(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	f := bench.Finding{ID: "out-of-band", Severity: bench.Info}
	var pays, costs, open []string
	for _, r := range bench.Where(results, FactorPhase, OutOfBand) {
		size := r.Experiment.Factors["payload"] + " bytes"
		if _, producers := r.Experiment.Factors["producers"]; producers {
			size += " enqueued"
		}
		for _, c := range r.Cases {
			text, k := compared(r, c.Name, "rate")
			if text == "" || c.Invalid() {
				continue
			}
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s, %s: %s of the rate with payloads in the outbox", size, c.Name, text))
			switch {
			case c.Name == referenceOnly: // nothing is consumed
			case k.Ratio.N < 2 || k.Verdict == bench.CannotTell:
				open = append(open, size)
			case k.Ratio.Lo > 1:
				pays = append(pays, size)
			default:
				costs = append(costs, size)
			}
		}
	}
	if len(f.Evidence) == 0 {
		return nil
	}
	var parts []string
	for _, p := range []struct {
		sizes []string
		text  string
	}{{pays, "it pays at "}, {costs, "it does not at "}, {open, "it cannot be told at "}} {
		if len(p.sizes) > 0 {
			parts = append(parts, p.text+strings.Join(p.sizes, ", "))
		}
	}
	f.Claim = "Payloads in a separate table, read and removed by the consumer: " + strings.Join(parts, "; ") + "."
	if len(pays) == 0 {
		f.Advice = "A table on the same server writes the same bytes and adds statements. Only another store, whose bytes are not in this server's log, could pay off."
	}
	return append(out, f)
}
