// Package open opens a sink by the scheme of an address. It imports the clients of all brokers;
// a program that needs only one imports that sink's package.
package open

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/amqp"
	"github.com/weirdb/weir/outbox/sink/http"
	"github.com/weirdb/weir/outbox/sink/kafka"
	"github.com/weirdb/weir/outbox/sink/nats"
	"github.com/weirdb/weir/outbox/sink/redis"
	"github.com/weirdb/weir/outbox/sink/stdout"
)

// Sink is a sink that prints its address without a login.
type Sink interface {
	outbox.Sink
	fmt.Stringer
}

// kinds are the sinks. A new one gets a line here.
var kinds = []kind{
	of(nats.Open, nats.ParseURL, "nats", "tls"),
	of(kafka.Open, kafka.ParseURL, "kafka"),
	of(amqp.Open, amqp.ParseURL, "amqp", "amqps"),
	of(redis.Open, redis.ParseURL, "redis", "rediss"),
	of(http.Open, http.ParseURL, "http", "https"),
	of(stdout.Open, stdout.ParseURL, "stdout"),
}

// kind is a package of sinks, with the schemes of its addresses.
type kind struct {
	schemes []string
	open    func(ctx context.Context, address string) (Sink, error)
	check   func(address string) error
}

// of returns a kind whose open returns a nil Sink for an error, rather than one that holds a nil
// pointer.
func of[S Sink, O any](open func(context.Context, string) (S, error), parse func(string) (O, error), schemes ...string) kind {
	return kind{
		schemes: schemes,
		open: func(ctx context.Context, address string) (Sink, error) {
			s, err := open(ctx, address)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		check: func(address string) error {
			_, err := parse(address)
			return err
		},
	}
}

// Schemes are the schemes that Open supports.
var Schemes = schemes()

func schemes() (all []string) {
	for _, k := range kinds {
		all = append(all, k.schemes...)
	}
	return all
}

// Open opens the sink of an address and connects. See ParseURL of each package for the addresses.
// After an error marked by [outbox.Unavailable] it may be called again.
func Open(ctx context.Context, address string) (Sink, error) {
	k, err := kindOf(address)
	if err != nil {
		return nil, err
	}
	return k.open(ctx, address)
}

// Check parses an address as Open does, without connecting.
func Check(address string) error {
	k, err := kindOf(address)
	if err != nil {
		return err
	}
	return k.check(address)
}

func kindOf(address string) (kind, error) {
	scheme, _, _ := strings.Cut(address, ":")
	i := slices.IndexFunc(kinds, func(k kind) bool { return slices.Contains(k.schemes, scheme) })
	if i < 0 {
		return kind{}, fmt.Errorf("sink: unknown kind of address: want one that begins with %s", strings.Join(Schemes, ":, ")+":")
	}
	return kinds[i], nil
}
