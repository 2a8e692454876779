package peer

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// BenchmarkStream sends messages of 120 bytes from one replica to another, so
// many a turn, as fast as the queue takes them.
func BenchmarkStream(b *testing.B) {
	ca := newAuthority(b)
	certs := ca.issue(b, "bench", ca)
	for _, secure := range []bool{false, true} {
		for _, turn := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("tls=%v/turn=%d", secure, turn), func(b *testing.B) {
				nodes := mesh(b, 2, func(o *Options) {
					if o.QueueBytes = 1 << 20; secure {
						o.TLS = certs
					}
				})
				arrived, target := 0, turn*b.N
				done := make(chan struct{})
				sink := &counting{count: func(n int) {
					if arrived += n; arrived == target {
						close(done)
					}
				}}
				nodes[1].replace(sink)
				ms := make([]wire.Message, turn)
				for i := range ms {
					ms[i] = wire.Message{Kind: wire.Weak, View: 3, Session: 1e6, Seq: 1e6, Data: make([]byte, 110)}
				}
				before := nodes[0].Stats().Peers[0].Sent
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					for rest := ms; len(rest) > 0; {
						n, err := nodes[0].Send(2, rest)
						if rest = rest[n:]; err != nil {
							time.Sleep(50 * time.Microsecond) // the queue is full
						}
					}
				}
				<-done
				b.StopTimer()
				sent := nodes[0].Stats().Peers[0].Sent
				b.ReportMetric(float64(target)/b.Elapsed().Seconds(), "msgs/s")
				b.ReportMetric(float64(sent.Messages-before.Messages)/float64(sent.Calls-before.Calls), "msgs/write")
			})
		}
	}
}

// counting takes messages and forgets them.
type counting struct{ count func(int) }

// replace has the recorder only pass on how many messages came.
func (r *recorder) replace(c *counting) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.counting = c
}

// BenchmarkRoundTrip has one message at a time go to and fro.
func BenchmarkRoundTrip(b *testing.B) {
	for _, tt := range []struct {
		name  string
		tweak func(*Options)
	}{
		{"plain", nil},
		{"delay=25us", func(o *Options) { o.Delay = 25 * time.Microsecond }},
		{"delay=150us", func(o *Options) { o.Delay = 150 * time.Microsecond }},
		{"latency=1ms", func(o *Options) { o.Latency = func(uint64, uint64) time.Duration { return time.Millisecond } }},
		{"latency=25ms", func(o *Options) { o.Latency = func(uint64, uint64) time.Duration { return 25 * time.Millisecond } }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			nodes := mesh(b, 2, tt.tweak)
			back := make(chan struct{}, 1)
			nodes[0].replace(&counting{func(int) { back <- struct{}{} }})
			m := numbered(100, 1)
			nodes[1].replace(&counting{func(int) { _, _ = nodes[1].Send(1, m) }})
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := nodes[0].Send(2, m); err != nil {
					b.Fatal(err)
				}
				<-back
			}
		})
	}
}
