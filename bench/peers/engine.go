package main

import (
	"context"
	"sync"
)

// engine is a relay that is started and stopped: Pause stops it, Resume starts it
// again, so the time that it takes to start is in the time that it takes to
// deliver. It implements outboxload.Relay.
type engine struct {
	start func(context.Context) (stop func(context.Context) error, err error)

	mu   sync.Mutex
	stop func(context.Context) error // nil while stopped
}

// Run waits for ctx to end and stops the engine.
func (e *engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return e.Pause(context.WithoutCancel(ctx))
}

// Ready starts it.
func (e *engine) Ready(ctx context.Context) error { return e.Resume(ctx) }

// Resume starts it.
func (e *engine) Resume(ctx context.Context) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop == nil {
		e.stop, err = e.start(context.WithoutCancel(ctx))
	}
	return err
}

// Pause stops it.
func (e *engine) Pause(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop == nil {
		return nil
	}
	stop := e.stop
	e.stop = nil
	return stop(ctx)
}

// Acked is not known.
func (*engine) Acked() int64 { return -1 }
