package messages

import (
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// hiddenRows finds relays that only take rows within a time window: older rows are never
// delivered, and the rate is that of the rest.
func hiddenRows(r *bench.Result) []bench.Finding {
	var evidence []string
	worst := 0.0
	for _, c := range r.Cases {
		for j := range c.Samples {
			o := Of(c.Samples[j].Parts)
			if o == nil || slices.Contains([]string{"", "0s"}, o.Settings["window"]) || o.Ledger.Committed == 0 {
				continue
			}
			share := float64(o.Ledger.Pending) / float64(o.Ledger.Committed)
			if share < 0.01 {
				continue
			}
			worst = max(worst, share)
			evidence = append(evidence, fmt.Sprintf("%s, window %s: %s of %s rows are outside and are not delivered", c.Name, o.Settings["window"], bench.Count(float64(o.Ledger.Pending)), bench.Count(float64(o.Ledger.Committed))))
			break
		}
	}
	return bench.Found(evidence, bench.Finding{
		ID: "hidden-rows", Severity: bench.Warn,
		Claim:  fmt.Sprintf("A window hides rows: up to %.1f %% of the committed rows lie outside of it and are never delivered. The rate is that of the rest.", 100*worst),
		Advice: "A window is safe only if older rows are known to be delivered.",
	})
}

// disorder says how many messages came out of order. The relay of a round that is not invalid
// does not promise otherwise.
func disorder(r *bench.Result) []bench.Finding {
	var evidence []string
	for _, c := range r.Cases {
		if l := total(c); l.Disordered > 0 {
			evidence = append(evidence, fmt.Sprintf("%s: %d of %d", c.Name, l.Disordered, l.Delivered))
		}
	}
	return bench.Found(evidence, bench.Finding{ID: "disorder", Severity: bench.Warn, Claim: "Messages were delivered after later ones of the same key."})
}

// duplicates says how many messages came more than once.
func duplicates(r *bench.Result) []bench.Finding {
	var evidence []string
	for _, c := range r.Cases {
		if l := total(c); l.Duplicates > 0 {
			evidence = append(evidence, fmt.Sprintf("%s: %d beside %d", c.Name, l.Duplicates, l.Delivered))
		}
	}
	return bench.Found(evidence, bench.Finding{ID: "duplicates", Severity: bench.Warn, Claim: "Messages were delivered more than once, though nothing had crashed."})
}

// total adds up what the rounds of a case delivered, how often and in which order.
func total(c *bench.Case) (sum Ledger) {
	for j := range c.Samples {
		if o := Of(c.Samples[j].Parts); o != nil {
			sum.Disordered += o.Ledger.Disordered
			sum.Duplicates += o.Ledger.Duplicates
			sum.Delivered += o.Ledger.Delivered
		}
	}
	return sum
}
