package sinktest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/weirdb/weir/outbox"
)

// Bench measures calls of 500 messages of 512 bytes, with 500 keys, and with one key, where most
// brokers need a round trip per message. It reports messages per second and reads nothing back.
func Bench(b *testing.B, s Subject) {
	const call = 500
	for _, c := range []struct {
		name string
		key  func(i int) string
	}{
		{"many keys", func(i int) string { return fmt.Sprint("key ", i) }},
		{"one key", func(int) string { return "key" }},
	} {
		b.Run(c.name, func(b *testing.B) {
			snk := s.open(b)
			topic := s.Topic(b)
			msgs := make([]outbox.Message, call)
			for i := range msgs {
				msgs[i] = outbox.Message{Topic: topic, Key: c.key(i), Payload: bytes.Repeat([]byte("x"), 512)}
			}
			sent := 0
			for b.Loop() {
				for i := range msgs {
					msgs[i].ID = outbox.NewID()
				}
				if errs := snk.Publish(b.Context(), msgs); errs != nil {
					b.Fatal(errs)
				}
				sent += call
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
