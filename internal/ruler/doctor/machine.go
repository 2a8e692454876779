package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// The checks of this file examine the machine itself: its resources, and the cost of the
// simplest operations.

func (e *examiner) processors(context.Context) Check {
	env := measure.ReadEnvironment()
	c := Check{Name: "processors", State: Yes, For: "everything", Detail: fmt.Sprintf("%d of %s, %s", env.Cores, env.CPU, env.Virtualisation)}
	if env.Cores < 4 {
		c.State = Limited
		c.Hint = "load, proxy and server share these: compare CPU time per operation before throughput"
	}
	return c
}

func (e *examiner) memory(context.Context) Check {
	c := Check{Name: "memory", For: "servers and their caches"}
	s, err := e.read("proc/meminfo")
	total, free := measure.Meminfo(s, "MemTotal"), measure.Meminfo(s, "MemAvailable")
	if err != nil || total == 0 {
		c.State, c.Detail = No, "cannot be found out"
		return c
	}
	c.State, c.Detail = Yes, fmt.Sprintf("%.1f GiB, %.1f GiB available", gib(total), gib(free))
	if free < 1<<30 {
		c.State, c.Hint = Limited, "less than 1 GiB is left: figures will show the kernel making room"
	}
	return c
}

func gib(n int64) float64 { return float64(n) / (1 << 30) }

// quota looks for a limit on CPU time, which would stop a process during a measurement.
func (e *examiner) quota(context.Context) Check {
	c := Check{Name: "cgroups", For: "limits on what is measured"}
	s, err := e.read("proc/self/cgroup")
	if err != nil {
		c.State, c.Detail = No, "the kernel has none"
		return c
	}
	version, path := cgroupPath(s)
	c.State, c.Detail = Yes, "version "+version+", no limit on CPU time"
	quota := ""
	if version == "2" {
		v, _ := e.read("sys/fs/cgroup/" + path + "/cpu.max") // missing in the root group
		if f := strings.Fields(v); len(f) == 2 && f[0] != "max" {
			quota = f[0] + " of each " + f[1] + " us"
		}
	} else if v, err := e.read("sys/fs/cgroup/cpu/" + path + "/cpu.cfs_quota_us"); err == nil && v != "-1" {
		quota = v + " us of each period"
	}
	if quota != "" {
		c.State, c.Detail = Limited, "version "+version+", CPU time limited to "+quota
		c.Hint = "a process that reaches the limit is stopped until the next period: latencies will show it"
	}
	return c
}

// cgroupPath returns the cgroup version that limits CPU time, and the group of this process in
// it.
func cgroupPath(s string) (version, path string) {
	version = "2"
	for line := range strings.Lines(s) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if name == "cpu" {
				return "1", strings.Trim(f[2], "/")
			}
		}
		if f[0] == "0" {
			path = strings.Trim(f[2], "/")
		}
	}
	return version, path
}

func (e *examiner) clock(context.Context) Check {
	c := Check{Name: "clock", State: Yes, For: "every figure"}
	source, err := e.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil {
		source = "unknown source"
	}
	const n = 20_000
	clock := measure.NewClock()
	best := int64(1 << 62)
	for range 5 { // the fastest of five
		start := clock.Now()
		for range n {
			clock.Now()
		}
		best = min(best, (clock.Now()-start)/n)
	}
	c.Detail = fmt.Sprintf("%s, %d ns a reading", source, best)
	if best > 200 {
		c.State = Limited
		c.Hint = "a reading that enters the kernel costs as much as a system call: marks within an operation show themselves"
	}
	return c
}

// timer measures how late short sleeps end, which start the operations of an open loop.
func (e *examiner) timer(ctx context.Context) Check {
	c := Check{Name: "timer", State: Yes, For: "open loops, delays of a relay"}
	const n, pause = 40, 200_000
	var precise, plain measure.Hist
	done := make(chan error)
	go func() { // a goroutine of its own, because its thread ends with it
		s, clock := measure.NewSleeper(), measure.NewClock()
		var err error
		for range n {
			until := clock.Now() + pause
			if err = s.Until(ctx, clock, until); err != nil {
				break
			}
			precise.Record(clock.Now() - until)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		c.State, c.Detail = No, err.Error()
		return c
	}
	clock := measure.NewClock()
	for range n {
		until := clock.Now() + pause
		time.Sleep(pause)
		plain.Record(clock.Now() - until)
	}
	c.Detail = fmt.Sprintf("a sleep of 200 us ends %s late at the median and %s at p90; Go's own %s and %s",
		micros(precise.Quantile(.5)), micros(precise.Quantile(.9)), micros(plain.Quantile(.5)), micros(plain.Quantile(.9)))
	if precise.Quantile(.5) > 500_000 {
		c.State, c.Hint = Limited, "open loops above 1000 starts a second come in bursts; give them a free processor"
	}
	return c
}

// loopback measures a round trip of a byte over TCP, with both ends in this process.
func (e *examiner) loopback(ctx context.Context) Check {
	c := Check{Name: "loopback", For: "the cost of a round trip without a network"}
	h, err := pingPong(ctx, 200, e.Patience)
	if err != nil {
		c.State, c.Detail = No, err.Error()
		return c
	}
	c.State, c.Detail = Yes, fmt.Sprintf("a round trip over TCP takes %s at the median, %s at p99", micros(h.Quantile(.5)), micros(h.Quantile(.99)))
	return c
}

// pingPong makes n round trips, or as many as a busy machine makes in a second. A single one
// may take as long as patience.
func pingPong(ctx context.Context, n int, patience time.Duration) (_ *measure.Hist, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		conn, err := l.Accept()
		if err != nil {
			return // the listener was closed: the other side reports why
		}
		defer conn.Close()
		// It ends with the connection; the other side notices what was not echoed.
		_, _ = io.Copy(conn, conn)
	}()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { conn.Close(); <-echoed }()
	h := &measure.Hist{}
	clock := measure.NewClock()
	one := []byte{1}
	for begun := time.Now(); n > 0 && (h.Count() == 0 || time.Since(begun) < time.Second); n-- {
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, fmt.Errorf("bound a round trip: %w", err)
		}
		start := clock.Now()
		if _, err := conn.Write(one); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		h.Record(clock.Now() - start)
	}
	return h, nil
}

func (e *examiner) disk(ctx context.Context) Check {
	c := Check{Name: "fsync", For: "durable commits"}
	f, err := measure.CalibrateFlush(ctx, e.Dir, 300*time.Millisecond, 500)
	if err != nil {
		c.State, c.Detail = No, err.Error()
		return c
	}
	c.State = Yes
	c.Detail = fmt.Sprintf("8 KiB are on the disk of %s after %s at the median, %s at p99", e.Dir, micros(f.P50Ns), micros(f.P99Ns))
	switch {
	case f.P50Ns < 10_000:
		c.State, c.Hint = Limited, "faster than any disk: memory, or a disk that answers before the data is safe; name another with --dir"
	case f.P99Ns > 20*f.P50Ns:
		c.State, c.Hint = Limited, "it varies much: a disk behind a token bucket, or others use it; look at the calibrations beside each round"
	}
	return c
}

func (e *examiner) pressure(context.Context) Check {
	c := Check{Name: "pressure", For: "telling disturbed rounds"}
	if !e.exists("proc/pressure/cpu") {
		c.State, c.Detail, c.Hint = No, "the kernel keeps no pressure figures", "boot with psi=1"
		return c
	}
	s, err := e.read("proc/pressure/cpu")
	if err != nil {
		c.State, c.Detail, c.Hint = No, permitted(err), "boot with psi=1"
		return c
	}
	c.State, c.Detail = Yes, "kept"
	if m := lastTen.FindStringSubmatch(s); m != nil {
		c.Detail = fmt.Sprintf("kept; processors were waited for during %s %% of the last ten seconds", m[1])
	}
	return c
}

// lastTen finds the average of ten seconds in a pressure file.
var lastTen = regexp.MustCompile(`^some avg10=(\S+)`)

func (e *examiner) processCounters(context.Context) Check {
	c := Check{Name: "process counters", State: Yes, For: "CPU time, switches and calls of client and server"}
	var without []string
	for _, f := range []string{"stat", "status", "io", "schedstat"} {
		if _, err := e.read("proc/self/" + f); err != nil {
			without = append(without, f)
		}
	}
	switch {
	case len(without) == 0:
		c.Detail = "stat, status, io, schedstat"
	case without[0] == "stat":
		c.State, c.Detail = No, "no /proc/self/stat on "+runtime.GOOS
	default:
		c.State, c.Detail = Limited, "without "+strings.Join(without, ", ")
	}
	return c
}
