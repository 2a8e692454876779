package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirdb/weir/outbox"
)

// topic describes an existing topic.
type topic struct {
	limit   int32 // bytes of the largest batch
	compact bool  // it takes no message without a key
}

// topics caches descriptions of topics. They are queried before the first message of a topic,
// and again after one has failed: when the producer notices a problem, later messages are
// already in flight.
type topics struct {
	*tlsDialer

	client   *kgo.Client
	create   bool
	maxBytes int32
	timeout  time.Duration

	mu    sync.Mutex
	known map[string]topic
	parts map[string]partitions // of topics that were asked for
}

// partitions are those of a topic.
type partitions struct {
	names []string
	by    kgo.TopicPartitioner // as the producer's; keys alone may be asked for at once
}

// limitOf returns the largest batch of a topic, for the client library.
func (t *topics) limitOf(name string) int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.known[name]; ok {
		return known.limit
	}
	return t.maxBytes
}

func (t *topics) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, name)
}

// get returns the description of a topic, and queries it if it is not cached.
func (t *topics) get(ctx context.Context, name string) (topic, error) {
	t.mu.Lock()
	known, ok := t.known[name]
	t.mu.Unlock()
	if ok {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if err := t.exists(ctx, name); err != nil {
		return topic{}, err
	}
	known, err := t.describe(ctx, name)
	if err != nil {
		return topic{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[name] = known
	return known, nil
}

// newTopic is how long brokers may take to know a topic that was just created.
const newTopic = time.Second

// exists checks that a topic exists. It retries for newTopic if the topic is missing.
func (t *topics) exists(ctx context.Context, name string) error {
	began := time.Now()
	for {
		err := t.ask(ctx, name)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return outbox.Unavailable(fmt.Errorf("kafka: look for topic %q: %w", name, t.explain(err)))
		case errors.Is(err, kerr.UnknownTopicOrPartition) && time.Since(began) > newTopic:
			return fmt.Errorf("kafka: there is no topic %q", name)
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			return outbox.Doubtful(fmt.Errorf("kafka: topic %q: %w", name, err))
		case errors.Is(err, kerr.InvalidTopicException):
			return outbox.Invalid(fmt.Errorf("kafka: topic %q: %w", name, err))
		case !kerr.IsRetriable(err):
			return outbox.Unavailable(fmt.Errorf("kafka: look for topic %q: %w", name, t.explain(err)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (t *topics) ask(ctx context.Context, name string) error {
	req := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, wanted)
	req.AllowAutoTopicCreation = t.create
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return err
	}
	if len(resp.Topics) != 1 {
		return fmt.Errorf("kafka: %d topics in the answer for one", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return err
	}
	t.notePartitions(name, len(resp.Topics[0].Partitions))
	return nil
}

func (t *topics) notePartitions(name string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.parts[name].names) == n {
		return
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s[%d]", name, i)
	}
	t.parts[name] = partitions{names, partitioner().ForTopic(name)}
}

// partition returns the name of the partition of a key. It is empty if the topic is not cached or
// has a single partition.
func (t *topics) partition(name, key string) string {
	t.mu.Lock()
	p := t.parts[name]
	t.mu.Unlock()
	if len(p.names) < 2 || key == "" {
		return ""
	}
	return p.names[p.by.Partition(&kgo.Record{Key: []byte(key)}, len(p.names))]
}

// describe reads the settings that limit a topic's messages, or returns the defaults if it is not
// authorized.
func (t *topics) describe(ctx context.Context, name string) (topic, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, name
	r.ConfigNames = []string{"max.message.bytes", "cleanup.policy"}
	req.Resources = append(req.Resources, r)
	known := topic{limit: t.maxBytes}
	resp, err := req.RequestWith(ctx, t.client)
	if err != nil {
		return known, outbox.Unavailable(fmt.Errorf("kafka: read the settings of topic %q: %w", name, err))
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			switch {
			case c.Value == nil:
			case c.Name == "max.message.bytes":
				if n, err := strconv.ParseInt(*c.Value, 10, 32); err == nil {
					known.limit = int32(min(max(n, 512), 1<<30))
				}
			case c.Name == "cleanup.policy":
				known.compact = slices.Contains(strings.Split(*c.Value, ","), "compact")
			}
		}
	}
	return known, nil
}
