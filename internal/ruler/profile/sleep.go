package profile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// sleepConfig describes a simulated database: a pool, and operations that take a while. It
// shows the cost of the pool and of this process's scheduler alone.
type sleepConfig struct {
	latency, jitter time.Duration
	connect         time.Duration
	errorRate       float64
}

// errInjected is the error of an operation that fails by error-rate.
var errInjected = errors.New("failure asked for by error-rate")

// parseSleep parses sleep://?latency=5ms&jitter=3ms&connect=2ms&error-rate=0.01.
func parseSleep(dsn string) (sleepConfig, error) {
	c := sleepConfig{latency: 5 * time.Millisecond}
	u, err := parseURL(dsn)
	if err != nil {
		return c, err
	}
	for name, values := range u.Query() {
		value := values[len(values)-1]
		var into *time.Duration
		switch name {
		case "latency":
			into = &c.latency
		case "jitter":
			into = &c.jitter
		case "connect":
			into = &c.connect
		case "error-rate":
			c.errorRate, err = strconv.ParseFloat(value, 64)
			if err != nil || !(c.errorRate >= 0 && c.errorRate <= 1) {
				return c, fmt.Errorf("error-rate %q: want a share from 0 to 1", value)
			}
			continue
		default:
			return c, fmt.Errorf("no parameter %q: sleep has latency, jitter, connect and error-rate", name)
		}
		if *into, err = time.ParseDuration(value); err != nil || *into < 0 {
			return c, fmt.Errorf("%s %q: want a duration such as 5ms", name, value)
		}
	}
	if c.jitter > c.latency {
		return c, fmt.Errorf("jitter %v is longer than latency %v", c.jitter, c.latency)
	}
	return c, nil
}

// sleepPool holds idle connections, and permits to open further ones. Idle connections are
// preferred.
type sleepPool struct {
	config sleepConfig
	clock  clock
	idle   chan struct{}
	unmade chan struct{}
	max    int
}

func openSleepPool(dsn string, c poolConfig) (*sleepPool, error) {
	cfg, err := parseSleep(dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	p := &sleepPool{config: cfg, clock: c.dial.clock, idle: make(chan struct{}, c.max), unmade: make(chan struct{}, c.max), max: c.max}
	for range c.max {
		p.unmade <- struct{}{}
	}
	return p, nil
}

func (p *sleepPool) client() client {
	return &sleepClient{pool: p, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
}

func (p *sleepPool) opened() int64 { return int64(p.max - len(p.unmade)) }
func (p *sleepPool) close()        {}

func (p *sleepPool) fill(ctx context.Context, n int) error {
	clients := make([]client, n)
	for i := range clients {
		clients[i] = p.client()
		if err := clients[i].acquire(ctx, nil); err != nil {
			return err
		}
	}
	for _, c := range clients {
		c.release(ctx)
	}
	return nil
}

type sleepClient struct {
	pool *sleepPool
	rng  *rand.Rand
	t    *timeline
}

func (c *sleepClient) acquire(ctx context.Context, t *timeline) error {
	c.t = t
	select {
	case <-c.pool.idle:
		return nil
	default:
	}
	select {
	case <-c.pool.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.pool.unmade:
	}
	if t != nil {
		t.connectBegins(c.pool.clock.Now())
	}
	time.Sleep(c.pool.config.connect)
	if t != nil {
		t.connectEnds(c.pool.clock.Now())
	}
	return nil
}

// run sleeps in the segment server. A delay of the timer counts as the segment wake.
func (c *sleepClient) run(context.Context, *statement, []any) error {
	d := c.pool.config.latency
	if j := c.pool.config.jitter; j > 0 {
		d += time.Duration(c.rng.Int64N(int64(2*j)+1)) - j
	}
	begin := c.pool.clock.Now()
	if c.t != nil {
		c.t.writeBegins(begin)
		c.t.writeEnds(begin)
	}
	time.Sleep(d)
	if c.t != nil {
		now := c.pool.clock.Now()
		c.t.readEnds(min(begin+int64(d), now), now)
	}
	if e := c.pool.config.errorRate; e > 0 && c.rng.Float64() < e {
		return errInjected
	}
	return nil
}

func (c *sleepClient) release(context.Context) {
	c.pool.idle <- struct{}{}
	c.t = nil
}
