// Package sink has what the sinks below it share: the order of keys in front of
// a broker that answers messages one by one ([Waves]), addresses with
// parameters ([ParseAddress]), where topics and keys go ([Template]), names of
// headers, and CloudEvents ([Event]). It knows no broker and imports none:
// packages nats, kafka, amqp, redis, http and stdout each bring their own, and
// package open chooses among them by the scheme of an address.
package sink

import (
	"context"

	"github.com/weirdb/weir/outbox"
)

// Names under which a message's own fields travel where a broker has no field
// of its own for them. An application's header of the same name gives way.
const (
	HeaderID    = "weir-id"    // Message.Identity: what an inbox recognises
	HeaderKey   = "weir-key"   // Message.Key, when there is one
	HeaderTopic = "weir-topic" // Message.Topic, where the address does not say it

	HeaderContentType = "content-type" // of Message.Headers
	HeaderType        = "type"         // of Message.Headers
)

// Send publishes the messages of msgs that wave names by index, of which no two
// have the same key, and sets the error of each that was not confirmed.
type Send func(ctx context.Context, wave []int, errs []error)

// Waves publishes msgs in rounds: each holds the next message of every key, and
// begins when all of the one before have been answered, so that a broker that
// takes any number of messages at once still gets those of one key one after
// the other. Messages without a key are in the first round.
//
//	key a: a1 a2 a3        wave 1: a1 b1 x
//	key b: b1 b2           wave 2: a2 b2        (b1 failed: b2 is held back)
//	none:  x               wave 3: a3
//
// When a message fails those behind it are held back. When the broker turns out
// to be unavailable, or ctx ends, no further round begins, and its messages get
// [Unsent]. The result is what [outbox.Sink] wants.
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

// Unsent is the error of a message that was not sent because of stop, the error of
// another one or of the context. That one met no broker says nothing of this one, which
// may have another destination.
func Unsent(stop error) error {
	if outbox.IsUnavailable(stop) {
		return outbox.ErrHeldBack
	}
	return stop
}

// waves lists the indexes of each round.
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

// Chains lists the indexes of the messages of each key, in their order, and of
// each message without a key alone: what a sink may publish side by side when
// it goes through each chain one by one.
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

// Result is errs, or nil when every one is nil.
func Result(errs []error) []error {
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

// All is a result of n times the same error.
func All(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
