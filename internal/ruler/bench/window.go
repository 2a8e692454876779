package bench

import (
	"cmp"
	"context"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Window leads a closed loop through its phases:
//
//	| warm-up | window | drain |
//
// Without a warm-up the window opens before the first operation, so that it includes all of
// them.
type Window struct {
	// Warmup and Drain may be 0. Without a Duration the window ends when the loop does.
	Warmup, Duration, Drain time.Duration
	// Watch reads the usage of each role's processes at both ends of the window.
	Watch map[string]func() (measure.Usage, error)
	Clock measure.Clock
	// Start starts the loop. Open and Close tell it the time at which the window opens and
	// closes; after Close it starts no operation.
	Start       func()
	Open, Close func(now int64)
	// Done is closed when the loop has ended.
	Done <-chan struct{}
}

// Run returns when the loop has ended or the time to drain is over. It fills in what a sample
// says about the window, and returns the cause of a ctx that ends.
func (w *Window) Run(ctx context.Context, s *Sample) error {
	if w.Warmup > 0 {
		w.Start()
		if err := w.pause(ctx, w.Warmup); err != nil {
			return err
		}
	}
	used, err := measure.Usages(w.Watch)
	if err != nil {
		return err
	}
	machine := measure.ReadMachine()
	from := w.Clock.Now()
	w.Open(from)
	if w.Warmup == 0 {
		w.Start()
	}
	if err := w.pause(ctx, cmp.Or(w.Duration, 24*time.Hour)); err != nil {
		return err
	}
	to := w.Clock.Now()
	w.Close(to)
	s.Seconds = float64(to-from) / 1e9
	activity := measure.ReadMachine().Since(machine)
	s.Machine = &activity
	if s.Processes, err = used(); err != nil {
		return err
	}
	return w.pause(ctx, w.Drain)
}

// pause waits for d or until the loop has ended, or returns the cause of ctx's end.
func (w *Window) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.Done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
