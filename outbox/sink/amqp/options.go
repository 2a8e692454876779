package amqp

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox/sink"
)

// Options say where the broker is and where messages go.
type Options struct {
	// Servers are "host:port", any of one cluster; they are tried in turn.
	// Required.
	Servers []string

	// User, Password and VHost log in. Default: guest, guest, "/".
	User, Password, VHost string

	// TLS is used when Secure is set.
	Secure bool
	TLS    sink.TLS

	// Exchange of a message. Default: "{topic}". DefaultExchange is the exchange
	// without a name, which routes to the queue named by the routing key.
	Exchange sink.Template

	// RoutingKey of a message. Default: "{key}" if Exchange contains the topic,
	// otherwise "{topic}".
	RoutingKey sink.Template

	// Declare creates missing exchanges, durable and of this type: "topic",
	// "direct", "fanout" or "headers"; with the default exchange, "queue"
	// creates the queue. Default: nothing is created.
	Declare string

	// Unroutable lets the broker drop messages that are routed to no queue.
	// Default: such a message is a failed attempt.
	Unroutable bool

	// Timeout is how long to wait for a connection, and for a confirmation.
	// Default: 10 s.
	Timeout time.Duration
}

// DefaultExchange is the exchange without a name.
const DefaultExchange sink.Template = "(default)"

// ParseURL reads amqp://user:password@host:5672/vhost?name=value&… (amqps:// for
// encryption). The parameters are exchange (empty: the default exchange),
// routing-key, declare, mandatory (default true), password-file, ca-file,
// cert-file, key-file, server-name and timeout.
func ParseURL(raw string) (Options, error) {
	a, err := sink.ParseAddress(raw, "amqp", "amqps")
	if err != nil {
		return Options{}, fmt.Errorf("amqp: %w", err)
	}
	p := a.Params
	o := Options{
		VHost: a.Path, Secure: a.Scheme == "amqps", TLS: p.TLS(),
		RoutingKey: sink.Template(p.Text("routing-key", "")),
		Declare:    p.Choice("declare", "", "topic", "direct", "fanout", "headers", "queue"),
		Unroutable: p.Choice("mandatory", "true", "false") == "false", Timeout: p.Duration("timeout", 0),
	}
	if p.Has("exchange") {
		o.Exchange = cmp.Or(sink.Template(p.Text("exchange", "")), DefaultExchange)
	}
	o.Servers = a.HostPorts(5672)
	if o.Secure {
		o.Servers = a.HostPorts(5671)
	}
	if o.User, o.Password, _, err = a.Login(); err != nil {
		return Options{}, fmt.Errorf("amqp: %w", err)
	}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("amqp: %w", err)
	}
	_, err = o.withDefaults()
	return o, err
}

func (o Options) withDefaults() (Options, error) {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.VHost = cmp.Or(o.VHost, "/")
	o.Exchange = cmp.Or(o.Exchange, "{topic}")
	if o.User == "" && o.Password == "" {
		o.User, o.Password = "guest", "guest"
	}
	if o.RoutingKey == "" {
		o.RoutingKey = "{topic}"
		if o.Exchange.Has("topic") {
			o.RoutingKey = "{key}"
		}
	}
	if len(o.Servers) == 0 {
		return o, errors.New("amqp: no server is given")
	}
	if err := cmp.Or(o.Exchange.Check(), o.RoutingKey.Check()); err != nil {
		return o, fmt.Errorf("amqp: exchange or routing key %w", err)
	}
	if !o.Secure && !o.TLS.IsZero() {
		return o, errors.New("amqp: certificates without amqps://")
	}
	if o.Declare != "" && (o.Declare == "queue") != (o.Exchange == DefaultExchange) {
		return o, errors.New("amqp: declare=queue goes with the default exchange (exchange=), the types of exchanges with all others")
	}
	return o, nil
}

// String is the address without a login.
func (o Options) String() string {
	scheme := "amqp"
	if o.Secure {
		scheme = "amqps"
	}
	return fmt.Sprintf("%s://%s/%s", scheme, strings.Join(o.Servers, ","), strings.TrimPrefix(o.VHost, "/"))
}
