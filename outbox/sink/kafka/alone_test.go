package kafka

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/weirdb/weir/outbox"
)

// A message that failed for itself holds back those behind it, also when they are
// sent alone because their batches were refused. (The client library of today fails
// all that a partition waits for with one error, so this is made by hand.)
func TestSentAloneStaysInOrder(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	s, err := Open(t.Context(), "kafka://"+strings.Join(cluster.ListenAddrs(), ","))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	failed := errors.New("for another reason")
	c := &call{sink: s, errs: []error{kerr.InvalidRecord, failed, kerr.InvalidRecord}, failed: map[string]bool{"a": true}}
	for range c.errs {
		c.msgs = append(c.msgs, outbox.Message{ID: outbox.NewID(), Topic: "t", Key: "a"})
	}
	c.publishSingly(t.Context(), []int{0, 2})
	if c.errs[0] != nil || c.errs[1] != failed || c.errs[2] != outbox.ErrHeldBack {
		t.Errorf("sent alone: %v, want the first taken and the third held back", c.errs)
	}
}
