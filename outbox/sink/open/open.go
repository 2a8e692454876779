// Package open opens a sink by the scheme of an address. It imports the clients of all brokers;
// a program that needs only one imports that sink's package.
package open

import (
	"context"
	"fmt"
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

// Schemes are the schemes that Open supports.
var Schemes = []string{"nats", "tls", "kafka", "amqp", "amqps", "redis", "rediss", "http", "https", "stdout"}

// Open opens the sink of an address and connects. See ParseURL of each package for the addresses.
// After an error marked by [outbox.Unavailable] it may be called again.
func Open(ctx context.Context, address string) (Sink, error) {
	scheme, _, _ := strings.Cut(address, ":")
	switch scheme {
	case "nats", "tls":
		return as(nats.Open(ctx, address))
	case "kafka":
		return as(kafka.Open(ctx, address))
	case "amqp", "amqps":
		return as(amqp.Open(ctx, address))
	case "redis", "rediss":
		return as(redis.Open(ctx, address))
	case "http", "https":
		return as(http.Open(ctx, address))
	case "stdout":
		return as(stdout.Open(ctx, address))
	}
	return nil, fmt.Errorf("sink: unknown kind of address: want one that begins with %s", strings.Join(Schemes, ":, ")+":")
}

// Check parses an address as Open does, without connecting.
func Check(address string) error {
	scheme, _, _ := strings.Cut(address, ":")
	var err error
	switch scheme {
	case "nats", "tls":
		_, err = nats.ParseURL(address)
	case "kafka":
		_, err = kafka.ParseURL(address)
	case "amqp", "amqps":
		_, err = amqp.ParseURL(address)
	case "redis", "rediss":
		_, err = redis.ParseURL(address)
	case "http", "https":
		_, err = http.ParseURL(address)
	case "stdout":
		_, err = stdout.ParseURL(address)
	default:
		return fmt.Errorf("sink: unknown kind of address: want one that begins with %s", strings.Join(Schemes, ":, ")+":")
	}
	return err
}

// as returns a nil Sink for an error, rather than one that holds a nil pointer.
func as[S Sink](s S, err error) (Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
