package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
)

// panelsOf describes the demo's page.
func panelsOf() live.Page {
	p := live.Page{
		Title: "weir demo --stack",
		Series: live.Keys([]string{"pending", "quiet"},
			"orders", "events", "increments", "locks", "unanswered", "repeated", "acked", "seen", "disorder", "twice", "overlaps", "counter", "held"),
		Tiles: []live.Tile{
			{Label: "Orders", Key: "orders", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "acked", Format: live.Count, Label: "acknowledged"}}},
			{Label: "Without an order", Key: "quiet", Format: live.Seconds, Note: "since the last one", Alarm: 2},
			{Label: "Events", Key: "events", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "seen", Format: live.Count, Label: "delivered"}}},
			{Label: "On the way", Key: "pending", Format: live.Count, Note: "orders without their event yet"},
			{Label: "Out of order", Key: "disorder", Format: live.Count, Note: "events of a customer", Alarm: 0.5},
			{Label: "Counter", Key: "counter", Format: live.Count, Parts: []live.Part{{Key: "twice", Format: live.Count, Label: "values twice"}}},
			{Label: "Lock held twice", Key: "overlaps", Format: live.Count, Parts: []live.Part{{Key: "held", Format: live.Count, Label: "times held"}}, Alarm: 0.5},
		},
		Charts: []live.Chart{
			{Title: "Orders and events", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("orders", "orders acknowledged", 1), live.Draw("events", "events delivered", 3), live.Draw("unanswered", "without an answer", 2)}},
			{Title: "On the way", Unit: "orders without their event", Format: live.Count, Lines: []live.Line{live.Draw("pending", "orders", 4)}},
			{Title: "Store", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("increments", "increments", 1), live.Draw("locks", "locks", 3)}},
		},
	}
	for _, t := range troubles {
		p.Actions = append(p.Actions, live.Action{Path: t.path, Label: t.label})
	}
	return p
}

// Sample implements live.Source.
func (s *stack) Sample(_ context.Context, v *live.Sample) error {
	c := s.ledger.counts()
	v.Rate("orders", float64(c.acked))
	v.Rate("events", float64(c.seen))
	v.Rate("increments", float64(c.increments))
	v.Rate("locks", float64(c.locks))
	v.Rate("unanswered", float64(c.unknown))
	v.Rate("repeated", float64(c.repeated))
	v.Level("acked", float64(c.acked))
	v.Level("seen", float64(c.seen))
	v.Level("pending", float64(c.pending))
	v.Level("quiet", c.quiet.Seconds())
	v.Level("disorder", float64(c.disorder))
	v.Level("twice", float64(c.twice))
	v.Level("overlaps", float64(c.overlaps))
	v.Level("counter", float64(c.increments))
	v.Level("held", float64(c.locks))
	return nil
}

// Detail implements live.Source.
func (s *stack) Detail(context.Context) (live.Detail, error) {
	out := live.Detail{Facts: []string{"up " + live.Age(time.Since(s.began)), "logs and the report: " + s.cfg.Out}}
	procs := live.Table{Title: "Processes", Wide: true, Columns: live.Columns(":Name", ":Runs", "PID", "starts", ":Its live page")}
	add := func(name string, pid int, up bool, starts int, page string) {
		runs, id := "yes", live.Whole(pid)
		if !up {
			runs, id = "no", live.Text("")
		}
		began := live.Text("")
		if starts > 0 {
			began = live.Number(starts)
		}
		procs.Rows = append(procs.Rows, []live.Cell{live.Text(name), live.Text(runs).Alarm(!up), id, began, live.Link(page)})
	}
	if p := s.primary.Load(); p != nil {
		add("PostgreSQL, primary, "+p.Addr(), p.PID(), alive(p.Done()), 0, "")
	}
	if p := s.standby.Load(); p != nil {
		add("PostgreSQL, standby, "+p.Addr(), p.PID(), alive(p.Done()), 0, "")
	} else {
		add("PostgreSQL, standby", 0, false, 0, "")
	}
	for _, p := range append(append([]*process(nil), s.proxies...), s.relays...) {
		pid, up := p.running()
		p.mu.Lock()
		starts := p.starts
		p.mu.Unlock()
		add("weir "+p.name, pid, up, starts, "http://"+p.admin+"/")
	}
	for i, n := range s.kv.Nodes() {
		add(fmt.Sprintf("weir kv-%d", n.Number()), n.PID(), alive(n.Done()), 0, "http://"+s.kv.AdminAddrs()[i]+"/")
	}
	add("NATS, "+s.nats.Addr(), s.nats.PID(), alive(s.nats.Done()), 0, "")

	c := s.ledger.counts()
	judged := live.Table{Title: "Promises so far", Columns: live.Columns(":Promise", ":Found so far")}
	say := func(what, found string, bad bool) {
		judged.Rows = append(judged.Rows, []live.Cell{live.Text(what), live.Text(found).Alarm(bad)})
	}
	say("acknowledged orders are kept", fmt.Sprintf("%d acknowledged; compared at the end", c.acked), false)
	say("every order's event is delivered", fmt.Sprintf("%d delivered, %d repeated", c.seen, c.repeated), false)
	say("events of a customer arrive in order", fmt.Sprintf("%d out of order", c.disorder), c.disorder > 0)
	say("the counter is exact", fmt.Sprintf("%d answered, %d values twice", c.increments, c.twice), c.twice > 0)
	say("the lock has one holder at a time", fmt.Sprintf("%d overlaps", c.overlaps), c.overlaps > 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backup != "" {
		say("a backup restores exactly", s.backup, s.failed)
	}
	happened := live.Table{Title: "What happened", Columns: live.Columns(":At", ":What"), Empty: "Nothing yet."}
	for _, e := range slices.Backward(s.events[max(0, len(s.events)-30):]) {
		happened.Rows = append(happened.Rows, []live.Cell{live.Text(e.at.Format(time.TimeOnly)), live.Text(e.what)})
	}
	out.Tables = []live.Table{judged, happened, procs}
	return out, nil
}

func alive(done <-chan struct{}) bool {
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// serve serves the page until ctx ends, and then closes the channel.
func (s *stack) serve(ctx context.Context) <-chan struct{} {
	quiet := slog.New(slog.DiscardHandler)
	shown := live.New(live.Config{Page: panelsOf(), Source: s, Log: quiet})
	mux := admin.Mux(prometheus.NewRegistry())
	shown.Register(mux)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { admin.Plain(w, http.StatusOK, "ready") })
	for _, t := range troubles {
		mux.HandleFunc("POST /"+t.path, live.Acts(func(*http.Request) error {
			s.mu.Lock()
			busy := s.under
			s.mu.Unlock()
			if busy {
				return errUnderWay
			}
			go func() {
				if err := s.inject(ctx, t); err != nil && !errors.Is(err, errUnderWay) && ctx.Err() == nil {
					s.say("%s: %v", t.label, err)
				}
			}()
			return nil
		}))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		recorded := make(chan struct{})
		go func() {
			defer close(recorded)
			shown.Run(ctx)
		}()
		_ = admin.Serve(ctx, s.page, admin.Guard(mux, true, live.Policy), quiet) // fails only if the listener does
		<-recorded
	}()
	return done
}
