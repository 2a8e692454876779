package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// show runs the load, the page and the kills, and judges at the end.
func (s *stack) show(ctx context.Context) (*Verdict, error) {
	pageCtx, closePage := context.WithCancel(context.WithoutCancel(ctx))
	defer closePage()
	shut := s.serve(pageCtx)
	defer func() {
		closePage()
		<-shut
	}()
	// The listener continues until all messages have been delivered.
	listening, deaf := context.WithCancel(context.WithoutCancel(ctx))
	heard := make(chan error, 1)
	go func() { heard <- s.listen(listening) }()
	defer deaf()

	redis.SetLogger(silent{})
	load, endLoad := context.WithCancel(ctx)
	defer endLoad()
	var workers sync.WaitGroup
	for i := range s.cfg.Workers {
		workers.Go(func() { s.sell(load, i) })
	}
	for i := range 3 {
		workers.Go(func() { s.count(load, i) })
	}
	s.say("the shop is running; the page: http://%s/", s.cfg.Listen)
	err := s.progress(load)
	if err == nil && s.cfg.Auto {
		err = s.auto(load)
	} else if err == nil {
		s.profile(load, 3*time.Second)
	}
	if err == nil && (!s.cfg.Auto || time.Since(s.began) < s.cfg.Duration) {
		s.rest(load, heard)
	}
	if ctx.Err() != nil {
		err = nil // ended on request
	}
	endLoad()
	workers.Wait()
	if err != nil {
		return nil, err
	}
	s.say("the load has ended; waiting for what is in flight")
	v, err := s.verdict(context.WithoutCancel(ctx))
	deaf()
	if failed := <-heard; err == nil {
		err = failed
	}
	return v, err
}

// auto does everything once, one after the other.
func (s *stack) auto(ctx context.Context) error {
	s.profile(ctx, time.Second)
	for _, t := range troubles {
		if err := s.inject(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.label, err)
		}
	}
	return nil
}

// rest lets the load run for the rest of the requested time.
func (s *stack) rest(ctx context.Context, heard <-chan error) {
	var over <-chan time.Time
	if s.cfg.Duration > 0 {
		over = time.After(max(0, s.cfg.Duration-time.Since(s.began)))
	}
	select {
	case <-ctx.Done():
	case <-over:
	case err := <-heard:
		s.say("the events cannot be read: %v", err)
	}
}

// verdict waits until everything is delivered, and compares.
func (s *stack) verdict(ctx context.Context) (*Verdict, error) {
	s.pg.Lock() // a standby may be about to be created
	defer s.pg.Unlock()
	rows := map[order]struct{}{}
	err := await(ctx, "the table can be read", func() (err error) {
		rows, err = stored(ctx, shopDSN(s.front.addr(), database))
		return err
	})
	if err != nil {
		return nil, err
	}
	_ = await(ctx, "all events are delivered", func() error { // if not, the verdict says so
		if n := s.ledger.undelivered(rows); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
	if err := s.readCounter(ctx); err != nil {
		return nil, err
	}
	v := &Verdict{Promises: s.ledger.judge(rows), Seconds: time.Since(s.began).Seconds(), Profiles: s.profiled, before: s.before}
	s.mu.Lock()
	if s.backup != "" {
		v.Promises = append(v.Promises, Promise{
			"a backup under load restores exactly", !s.failed, s.backup,
			"the copy's checksums must match the archive's, and it must have every order that was acknowledged before the backup began",
		})
	}
	for _, e := range s.events {
		v.Events = append(v.Events, Event{e.at.Sub(s.began).Seconds(), e.what})
	}
	s.mu.Unlock()
	c := s.ledger.counts()
	v.Orders, v.Longest = c.acked, c.slowest.Seconds()
	var broken error
	if !v.Held() {
		broken = errors.New("a promise was broken")
	}
	if err := v.save(s.cfg.Out); err != nil {
		return nil, errors.Join(err, broken)
	}
	v.print(s.cfg.Stdout, s.cfg.Out)
	return v, nil
}
