package outboxctl

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/version"
	"github.com/weirdb/weir/outbox"
)

// page describes what the live page records and shows.
func page() live.Page {
	series := live.Keys([]string{"delivery_p95", "delivery_p99", "oldest", "pending", "destination_lag"},
		"delivered", "read", "acked", "repeated", "bytes", "delivery_p50", "publish_p50", "publish_p95", "batch", "ack_rows",
		"in_flight", "in_flight_bytes", "waiting_keys", "deferred", "scheduled", "parked", "dead", "retries", "buried", "outages", "stray",
		"blocked", "failing", "log_kept", "gaps", "leading", "tailing", "held", "shards",
	)
	return live.Page{
		Title: "weir outbox relay", Series: series, Links: []string{"status.json"},
		Tiles: []live.Tile{
			{Label: "Delivered", Key: "delivered", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "bytes", Format: live.Bytes, Label: "per second"}}},
			{Label: "Delivery p50", Key: "delivery_p50", Format: live.Seconds, Note: "insert to confirmation"},
			{Label: "Delivery p95", Key: "delivery_p95", Format: live.Seconds, Parts: []live.Part{{Key: "delivery_p99", Format: live.Seconds, Label: "p99"}}},
			{Label: "Backlog", Key: "pending", Format: live.Count, Parts: []live.Part{{Key: "in_flight", Format: live.Count, Label: "in flight"}}},
			{Label: "Oldest pending", Key: "oldest", Format: live.Seconds, Note: "by the last count", Alarm: 60},
			{Label: "Waiting keys", Key: "waiting_keys", Format: live.Count, Parts: []live.Part{{Key: "deferred", Format: live.Count, Label: "messages behind"}}},
			{Label: "Dead letters", Key: "dead", Format: live.Count, Note: "weir outbox inspect --state dead", Alarm: 0.5},
			{Label: "Leads", Key: "leading", Format: live.Count, Parts: []live.Part{{Key: "shards", Format: live.Count, Label: "shards exist"}, {Key: "tailing", Format: live.Count, Label: "by the log"}}},
		},
		Charts: []live.Chart{
			{Title: "Messages", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("read", "read", 5), live.Draw("delivered", "delivered", 1), live.Draw("acked", "recorded", 3)}},
			{Title: "Delivery", Unit: "from insert to confirmation", Format: live.Seconds, Decades: true, Lines: []live.Line{live.Draw("delivery_p50", "p50", 1), live.Draw("delivery_p95", "p95", 4), live.Draw("delivery_p99", "p99", 2)}},
			{Title: "Backlog", Unit: "messages", Format: live.Count, Lines: []live.Line{live.Draw("pending", "pending", 2), live.Draw("in_flight", "in flight", 1), live.Draw("scheduled", "scheduled", 5)}},
			{Title: "Lag", Format: live.Seconds, Lines: []live.Line{live.Draw("oldest", "oldest pending", 2), live.Draw("destination_lag", "of the slowest destination", 1)}},
			{Title: "Broker", Unit: "time for a batch", Format: live.Seconds, Decades: true, Lines: []live.Line{live.Draw("publish_p50", "p50", 1), live.Draw("publish_p95", "p95", 2)}},
			{Title: "Batches", Unit: "mean, messages", Format: live.Count, Lines: []live.Line{live.Draw("batch", "to the broker", 2), live.Draw("ack_rows", "recorded at once", 3)}},
			{Title: "Failures", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("retries", "attempts repeated", 2), live.Draw("buried", "buried", 4), live.Draw("outages", "no broker", 1), live.Draw("repeated", "the broker had it", 5)}},
			{Title: "Held back", Format: live.Count, Lines: []live.Line{live.Draw("waiting_keys", "keys wait", 2), live.Draw("deferred", "messages behind them", 4), live.Draw("failing", "messages that failed", 3), live.Draw("blocked", "destinations blocked", 1), live.Draw("gaps", "open gaps", 5)}},
			{Title: "Kept for this relay", Format: live.Bytes, Lines: []live.Line{live.Draw("log_kept", "of the server's log", 2), live.Draw("in_flight_bytes", "payloads in flight", 1)}},
		},
	}
}

// panels is the source of the live page. It is used by one goroutine.
type panels struct {
	s      *Service
	recent []Snapshot // that Detail has shown, the latest last, at most rateSnapshots
}

const (
	// rateSnapshots is the number of snapshots over which the rate of a destination is
	// averaged.
	rateSnapshots = 5
	// stale is the age from which a snapshot is not used for rates.
	stale = 10 * time.Second
)

// Sample implements live.Source.
func (p *panels) Sample(_ context.Context, s *live.Sample) error {
	snap := p.s.Snapshot()
	st := &snap.Stats
	s.Rate("delivered", float64(st.Delivered))
	s.Rate("read", float64(st.Read))
	s.Rate("acked", float64(st.Acked))
	s.Rate("repeated", float64(st.Repeated))
	s.Rate("bytes", float64(st.Bytes))
	s.Rate("retries", float64(st.Retries))
	s.Rate("outages", float64(st.Outages))
	s.Rate("stray", float64(st.Stray))
	var buried uint64
	for _, n := range st.Buried {
		buried += n
	}
	s.Rate("buried", float64(buried))
	s.Quantiles(seconds(&st.Delivery), live.Quantile{Key: "delivery_p50", Of: 0.5}, live.Quantile{Key: "delivery_p95", Of: 0.95}, live.Quantile{Key: "delivery_p99", Of: 0.99})
	s.Quantiles(seconds(&st.Publish), live.Quantile{Key: "publish_p50", Of: 0.5}, live.Quantile{Key: "publish_p95", Of: 0.95})
	s.Mean("batch", float64(st.Batches.Sum()), float64(st.Batches.Count()))
	s.Mean("ack_rows", float64(st.Acks.Sum()), float64(st.Acks.Count()))
	s.Level("in_flight", float64(st.InFlight))
	s.Level("in_flight_bytes", float64(st.InFlightBytes))
	s.Level("waiting_keys", float64(st.Parked))
	s.Level("deferred", float64(st.Deferred))
	s.Level("blocked", float64(st.Blocked))
	s.Level("failing", float64(failing(st.Destinations)))
	for i := range st.Destinations {
		s.Highest("destination_lag", st.Destinations[i].Lag(snap.At).Seconds())
	}
	s.Level("log_kept", float64(st.LogKept))
	s.Level("gaps", float64(st.Gaps))
	s.Level("leading", float64(st.Leading))
	s.Level("tailing", float64(st.Tailing))
	if !snap.CountedAt.IsZero() {
		s.Level("pending", float64(snap.Status.Pending))
		s.Level("oldest", snap.Status.Oldest.Seconds())
		s.Level("scheduled", float64(snap.Status.Scheduled))
		s.Level("parked", float64(snap.Status.Parked))
		s.Level("dead", float64(snap.Status.Dead))
		s.Level("held", float64(heldShards(&snap.Status)))
		s.Level("shards", float64(snap.Description.Shards))
	}
	return nil
}

// seconds converts the buckets of a histogram of nanoseconds.
func seconds(h *batch.Histogram) iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		h.Buckets(func(low int64, count uint64) bool { return yield(float64(low)/1e9, count) })
	}
}

// Detail implements live.Source.
func (p *panels) Detail(context.Context) (live.Detail, error) {
	snap := p.s.Snapshot()
	st := &snap.Stats
	out := live.Detail{Facts: []string{"table " + p.s.Table(), "claim " + p.s.Claim()}}
	if !snap.CountedAt.IsZero() {
		out.Facts = append(out.Facts, snap.Description.Server, "layout "+snap.Description.Layout.String())
	}
	out.Facts = append(out.Facts, "weir "+version.Current().Version, "up "+live.Age(snap.At.Sub(p.s.began)))
	if err := p.s.Ready(); err != nil {
		out.Problems = append(out.Problems, "Not ready: "+err.Error())
	}
	if st.Blocked > 0 {
		out.Problems = append(out.Problems, fmt.Sprintf("%d destinations take no messages now.", st.Blocked))
	}
	if st.TailReason != "" && p.s.cfg.Relay.Claim != outbox.SkipLocked {
		out.Facts = append(out.Facts, "the log is not followed: "+st.TailReason)
	}

	shards := live.Table{Title: "Shards", Columns: live.Columns("Shard", ":Led by", "taken over", ":Held"), Empty: "No relay has led a shard yet."}
	for _, l := range snap.Status.Leases {
		held := "yes"
		if !l.Held {
			held = "no"
		}
		shards.Rows = append(shards.Rows, []live.Cell{live.Number(l.Shard), live.Text(l.Owner), live.Whole(l.Epoch), live.Text(held).Alarm(!l.Held)})
	}
	total := live.Table{Title: "Since the start", Columns: live.Columns(":", "")}
	add := func(what string, c live.Cell) { total.Rows = append(total.Rows, []live.Cell{live.Text(what), c}) }
	add("messages delivered", live.Number(st.Delivered))
	add("of them repeated", live.Number(st.Repeated))
	add("payloads delivered", live.Size(st.Bytes))
	add("deliveries recorded", live.Number(st.Acked))
	add("attempts repeated", live.Number(st.Retries))
	for _, reason := range slices.Sorted(maps.Keys(st.Buried)) {
		add("buried: "+reason, live.Number(st.Buried[reason]).Alarm(true))
	}
	add("batches that met no broker", live.Number(st.Outages))
	add("leaderships taken", live.Number(st.TakeOvers))
	add("reads of the table", live.Number(st.Rounds))
	add("rows only the sweep found", live.Number(st.Stray))
	add("rows outside the window", live.Number(st.Outside))
	add("times it stopped following the log", live.Number(st.LogDrops).Alarm(st.LogDrops > 0))
	p.recent = slices.DeleteFunc(p.recent, func(old Snapshot) bool { return snap.At.Sub(old.At) > stale })
	earlier := &snap
	if len(p.recent) > 0 {
		earlier = &p.recent[0]
	}
	out.Tables = []live.Table{destinations(earlier, &snap), shards, total}
	p.recent = append(p.recent, snap)
	p.recent = p.recent[max(0, len(p.recent)-rateSnapshots):]
	return out, nil
}

// destinations is the table of destinations, with rates since an earlier snapshot.
func destinations(earlier, now *Snapshot) live.Table {
	t := live.Table{
		Title: "Destinations", Wide: true, Empty: "No message yet, since this relay began.",
		Columns: live.Columns(":Destination", "/s", "delivered", "payloads", "lag", "failing", "attempts failed", "dead letters made", ":State", ":Last error"),
	}
	before := make(map[string]uint64, len(earlier.Stats.Destinations))
	for i := range earlier.Stats.Destinations {
		before[earlier.Stats.Destinations[i].Name] = earlier.Stats.Destinations[i].Delivered
	}
	seconds := now.At.Sub(earlier.At).Seconds()
	for i := range now.Stats.Destinations {
		d := &now.Stats.Destinations[i]
		rate := live.Cell{}
		if seconds > 0 {
			rate = live.Number(float64(d.Delivered-before[d.Name]) / seconds)
		}
		state := "takes messages"
		switch {
		case d.Blocked:
			state = "takes none"
		case d.Failing > 0:
			state = "some fail"
		}
		lag := d.Lag(now.At)
		t.Rows = append(t.Rows, []live.Cell{
			live.Text(destinationName(d)), rate, live.Number(d.Delivered), live.Size(d.Bytes),
			live.Duration(lag).Alarm(lag > time.Minute), live.Number(d.Failing).Alarm(d.Failing > 0), live.Number(d.Failed),
			live.Number(d.Buried).Alarm(d.Buried > 0), live.Text(state).Alarm(d.Blocked), live.Text(d.LastError),
		})
	}
	return t
}

// destinationName returns the name of a destination for people and metrics.
func destinationName(d *outbox.DestinationStats) string {
	return cmp.Or(d.Name, "(all others)")
}

// failing counts the messages that have failed and wait for a retry.
func failing(all []outbox.DestinationStats) (n int) {
	for i := range all {
		n += all[i].Failing
	}
	return n
}
