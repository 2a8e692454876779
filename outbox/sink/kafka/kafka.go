// Package kafka publishes messages to Kafka, and to other servers that speak
// its protocol.
//
// A message goes to the topic of its name, after [Options.TopicPrefix], with its
// key, which also chooses the partition as Kafka's own clients choose it. The
// identity is the header weir-id; headers are carried under their names. Kafka
// keeps no list of identities: a message that is sent again after a crash is
// stored twice, and consumers recognize it by weir-id.
//
// All messages of a call are on their way at once: the producer is idempotent, so the
// broker accepts those of one partition in their order or not at all. The sink checks
// beforehand what could make the broker accept a later message and refuse an earlier one:
// size, and a topic that requires keys. If weir may not read a topic's settings,
// [Options.MaxBytes] must be right. Messages of one key for different topics wait for
// each other.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// Sink publishes with one producer.
type Sink struct {
	opts   Options
	client *kgo.Client
	topics *topics
}

// Open is New with the options of an address: see [ParseURL].
func Open(ctx context.Context, address string) (*Sink, error) {
	o, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New connects. After an error marked by [outbox.Unavailable] it may be called again.
func New(ctx context.Context, o Options) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &tlsDialer{}
	t := &topics{tlsDialer: h, create: o.Create, maxBytes: o.MaxBytes, timeout: o.Timeout, known: map[string]topic{}, parts: map[string]partitions{}}
	opts, err := o.client(t.limitOf, h)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	t.client = client
	s := &Sink{opts: o, client: client, topics: t}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, outbox.Unavailable(fmt.Errorf("connect to %v: %w", o, h.explain(err)))
	}
	return s, nil
}

// String returns the address without a login.
func (s *Sink) String() string { return s.opts.String() }

// Close closes the connections, which ends the calls in flight.
func (s *Sink) Close() error {
	s.client.Close()
	return nil
}

// Part implements [outbox.Parter]: a partition may have no leader while others have one.
// Messages without a key go to partitions that have one.
func (s *Sink) Part(m *outbox.Message) string {
	return s.topics.partition(s.opts.TopicPrefix+m.Topic, m.Key)
}

// Publish implements [outbox.Sink].
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	if len(msgs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return sink.All(len(msgs), err)
	}
	c := &call{sink: s, msgs: msgs, errs: make([]error, len(msgs)), failed: map[string]bool{}}
	for _, round := range c.rounds() {
		c.publish(ctx, round)
	}
	return sink.Result(c.errs)
}

// call is one call of Publish.
type call struct {
	sink   *Sink
	msgs   []outbox.Message
	errs   []error
	failed map[string]bool // keys of which a message failed
	stop   error           // ends the call
}

// rounds splits the messages into those that may be in flight at once: a message waits for the
// previous one of its key if that has another topic.
func (c *call) rounds() [][]int {
	type place struct {
		round int
		topic string
	}
	last := map[string]place{}
	var rounds [][]int
	for i := range c.msgs {
		m := &c.msgs[i]
		at := place{topic: m.Topic}
		if before, ok := last[m.Key]; ok && m.Key != "" {
			at.round = before.round
			if before.topic != m.Topic {
				at.round++
			}
		}
		last[m.Key] = at
		for at.round >= len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[at.round] = append(rounds[at.round], i)
	}
	return rounds
}

// answer is the outcome of a message.
type answer struct {
	i   int
	err error
}

// publish sends a round and waits for the answers.
func (c *call) publish(ctx context.Context, round []int) {
	send := c.sendable(ctx, round)
	if len(send) == 0 {
		return
	}
	// Messages that are still in flight when this returns are given up.
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(send))
	for n, r := range c.records(send) {
		c.sink.client.Produce(inner, r, func(_ *kgo.Record, err error) { answers <- answer{send[n], err} })
	}
	c.sink.flush()
	open := map[int]bool{}
	for _, i := range send {
		open[i] = true
	}
	timer := time.NewTimer(c.sink.opts.Timeout + time.Second) // the producer's own comes first
	defer timer.Stop()
	var refused []int
	remade := map[string]bool{} // topics
	defer func() {
		// The producer fails all messages of a topic that was deleted and recreated until it
		// is told to forget the old one.
		c.sink.client.PurgeTopicsFromProducing(slices.Collect(maps.Keys(remade))...)
	}()
	for len(open) > 0 {
		var err error
		select {
		case a := <-answers:
			delete(open, a.i)
			if isOfBatch(a.err) {
				refused = append(refused, a.i)
			}
			if errors.Is(a.err, kerr.UnknownTopicID) {
				remade[c.sink.opts.TopicPrefix+c.msgs[a.i].Topic] = true
			}
			if a.err != nil {
				c.fail(a.i, c.sink.classify(ctx, a.err))
			}
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			err = outbox.Unavailable(fmt.Errorf("kafka: no confirmation within %v", c.sink.opts.Timeout))
		}
		for i := range open {
			c.fail(i, err)
		}
		c.stop = err
		return
	}
	if len(refused) > 0 && len(send) > 1 {
		c.publishSingly(ctx, refused)
	}
}

// flush makes the producer send its batches now. It does not wait for the answers.
func (s *Sink) flush() {
	over, end := context.WithCancel(context.Background())
	end()
	_ = s.client.Flush(over) // always the context's error
}

// isOfBatch reports whether the broker refused a whole batch, because of the batch or of one
// message in it; it does not say which.
func isOfBatch(err error) bool {
	for _, code := range []*kerr.Error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.PolicyViolation,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// publishSingly sends the messages of refused batches one by one: all of them, or all but one,
// may be accepted.
func (c *call) publishSingly(ctx context.Context, refused []int) {
	again := map[int]bool{}
	for _, i := range refused {
		again[i] = true
		delete(c.failed, c.msgs[i].Key)
	}
	for i := range c.msgs { // in the order of keys
		switch {
		case again[i]:
			c.errs[i] = nil
			c.publish(ctx, []int{i})
		case c.errs[i] != nil: // failed for another reason, and holds back the later ones of its key
			c.failed[c.msgs[i].Key] = true
		}
	}
}

// sendable returns the messages of a round that can be sent now.
func (c *call) sendable(ctx context.Context, round []int) []int {
	var send []int
	for _, i := range round {
		m := &c.msgs[i]
		switch {
		case c.stop != nil:
			c.errs[i] = sink.Unsent(c.stop)
			continue
		case m.Key != "" && c.failed[m.Key]:
			c.errs[i] = outbox.ErrHeldBack
			continue
		}
		if err := c.sink.check(ctx, m); err != nil {
			c.fail(i, err)
			continue
		}
		send = append(send, i)
	}
	return send
}

func (c *call) fail(i int, err error) {
	c.errs[i] = err
	c.failed[c.msgs[i].Key] = true
	if outbox.IsUnavailable(err) {
		c.stop = err
	}
	c.sink.topics.forget(c.sink.opts.TopicPrefix + c.msgs[i].Topic)
}

// check returns an error for a message that the broker would refuse.
func (s *Sink) check(ctx context.Context, m *outbox.Message) error {
	name := s.opts.TopicPrefix + m.Topic
	t, err := s.topics.get(ctx, name)
	switch size := sizeOf(m); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case size > int(t.limit):
		return outbox.Invalid(fmt.Errorf("kafka: the message takes %d bytes, topic %q takes %d", size, name, t.limit))
	case t.compact && m.Key == "":
		return outbox.Reject(fmt.Errorf("kafka: topic %q is compacted and takes no message without a key", name))
	}
	return nil
}

// sizeOf returns an upper bound of the uncompressed size of a batch of this message alone: 61
// bytes for the batch, at most 31 for numbers, 10 for the two lengths of each header.
func sizeOf(m *outbox.Message) int {
	size := 61 + 31 + len(m.Key) + len(m.Payload) + 10 + len(sink.HeaderID) + len(m.Identity())
	for name, value := range m.Headers {
		size += 10 + len(name) + len(value)
	}
	return size
}

// records converts messages. It copies them, because the producer may keep them longer than the
// caller waits.
func (c *call) records(send []int) []*kgo.Record {
	size := 0
	for _, i := range send {
		size += len(c.msgs[i].Payload)
	}
	arena := make([]byte, 0, size)
	records := make([]*kgo.Record, len(send))
	for n, i := range send {
		m := &c.msgs[i]
		from := len(arena)
		arena = append(arena, m.Payload...)
		r := &kgo.Record{Topic: c.sink.opts.TopicPrefix + m.Topic, Value: arena[from:len(arena):len(arena)]}
		if m.Key != "" {
			r.Key = []byte(m.Key)
		}
		r.Headers = make([]kgo.RecordHeader, 0, 1+len(m.Headers))
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: sink.HeaderID, Value: []byte(m.Identity())})
		for name, value := range m.Headers {
			if name != sink.HeaderID {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
			}
		}
		records[n] = r
	}
	return records
}

// classify converts an error of the producer to the error of its message.
func (s *Sink) classify(ctx context.Context, err error) error {
	wrapped := fmt.Errorf("kafka: produce: %w", err)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var code *kerr.Error
	if errors.Is(err, kerr.UnknownTopicID) { // it was made again: publish lets go of the old one
		return outbox.Doubtful(wrapped)
	}
	if !errors.As(err, &code) || code.Retriable && code != kerr.UnknownTopicOrPartition {
		return outbox.Unavailable(s.topics.explain(wrapped)) // connections, time-outs, the end of the client
	}
	switch code {
	case kerr.InvalidTopicException, kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return outbox.Invalid(wrapped)
	case kerr.InvalidRecord, kerr.PolicyViolation, kerr.UnsupportedForMessageFormat:
		return outbox.Reject(wrapped)
	case kerr.TopicAuthorizationFailed, kerr.InvalidTimestamp: // a list of access, a clock: rather not the message
		return outbox.Doubtful(wrapped)
	case kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState:
		return outbox.Unavailable(wrapped)
	}
	return wrapped // also if the topic does not exist: it may still be created
}
