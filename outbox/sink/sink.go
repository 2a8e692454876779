// Package sink has what the sinks below it share: publishing in the order of keys to a
// broker that answers messages one by one ([Waves]), addresses with parameters
// ([ParseAddress]), templates for topics and keys ([Template]), names of headers, and
// CloudEvents ([Event]). It imports no broker's client: packages nats, kafka, amqp,
// redis, http and stdout do, and package open chooses among them by the scheme of an
// address.
package sink

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

// Names of headers for a message's fields, for brokers that have no field for them. They
// replace the application's headers of the same name.
const (
	HeaderID    = "weir-id"    // Message.Identity: what an inbox recognises
	HeaderKey   = "weir-key"   // Message.Key, when there is one
	HeaderTopic = "weir-topic" // Message.Topic, where the address does not say it

	HeaderContentType = "content-type" // of Message.Headers
	HeaderType        = "type"         // of Message.Headers
)

// Send publishes the messages whose indexes are in wave, no two of which have the same
// key, and sets the error of each that was not confirmed.
type Send func(ctx context.Context, wave []int, errs []error)

// Waves publishes msgs in rounds. Each round has the next message of every key, and starts
// when all messages of the previous one have been answered, so that messages of one key
// are sent one after the other and those of different keys concurrently. Messages without
// a key are in the first round.
//
//	key a: a1 a2 a3        wave 1: a1 b1 x
//	key b: b1 b2           wave 2: a2 b2        (b1 failed: b2 is held back)
//	none:  x               wave 3: a3
//
// If a message fails, the later ones of its key are held back. If the broker is
// unavailable or ctx ends, no further round starts, and the remaining messages get
// [Unsent]. The result is that of [outbox.Sink]'s Publish.
func Waves(ctx context.Context, msgs []outbox.Message, send Send) []error {
	errs := make([]error, len(msgs))
	failed := map[string]bool{}
	var stop error
	for _, wave := range waves(msgs) {
		ready := wave[:0]
		for _, i := range wave {
			switch key := msgs[i].Key; {
			case stop != nil:
				errs[i] = Unsent(stop)
			case key != "" && failed[key]:
				errs[i] = outbox.ErrHeldBack
			default:
				ready = append(ready, i)
			}
		}
		if stop == nil {
			stop = ctx.Err()
		}
		if stop != nil {
			for _, i := range ready {
				errs[i] = Unsent(stop)
			}
			continue
		}
		if len(ready) == 0 {
			continue
		}
		send(ctx, ready, errs)
		for _, i := range ready {
			if errs[i] == nil {
				continue
			}
			failed[msgs[i].Key] = true
			if outbox.IsUnavailable(errs[i]) {
				stop = errs[i]
			}
		}
		if err := ctx.Err(); err != nil {
			stop = err
		}
	}
	return Result(errs)
}

// Unsent returns the error of a message that was not sent because of stop, which is the
// error of another message or of the context. If the other one reached no broker, that
// says nothing about this one, which may have another destination.
func Unsent(stop error) error {
	if outbox.IsUnavailable(stop) {
		return outbox.ErrHeldBack
	}
	return stop
}

// waves returns the indexes of each round.
func waves(msgs []outbox.Message) [][]int {
	var rounds [][]int
	had := map[string]int{}
	for i := range msgs {
		round := 0
		if key := msgs[i].Key; key != "" {
			round = had[key]
			had[key]++
		}
		if round == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[round] = append(rounds[round], i)
	}
	return rounds
}

// Chains returns the indexes of the messages of each key, in order, and of each message
// without a key separately. A sink may publish chains concurrently, and the messages of
// each one by one.
func Chains(msgs []outbox.Message) [][]int {
	var chains [][]int
	at := map[string]int{}
	for i := range msgs {
		key := msgs[i].Key
		c, ok := at[key]
		if key == "" || !ok {
			c = len(chains)
			chains = append(chains, nil)
			at[key] = c
		}
		chains[c] = append(chains[c], i)
	}
	return chains
}

// Result returns errs, or nil if all of them are nil.
func Result(errs []error) []error {
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

// All returns n times the same error.
func All(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
