package redis

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weirdb/weir/outbox/sink"
)

// Options say where the server is and how streams are written.
type Options struct {
	// Server is "host:port". Required.
	Server string

	// User and Password log in. Default: no login; the user "default" if there
	// is only a password.
	User, Password string

	// DB is the number of the database. Default: 0.
	DB int

	// TLS is used when Secure is set.
	Secure bool
	TLS    sink.TLS

	// StreamPrefix is prepended to the topic for the name of a stream. Default: none.
	StreamPrefix string

	// MaxLen is about how many entries a stream keeps; Redis removes the oldest,
	// read or not. Default: 0, all.
	MaxLen int64

	// Replicas must have an entry before it counts as confirmed. Default: 0.
	Replicas int

	// Timeout is how long to wait for a connection, for an answer and for
	// replicas. Default: 5 s.
	Timeout time.Duration

	// Connections is the most concurrent calls of Publish. Default: 8.
	Connections int
}

// DefaultPort is the port of a server without one.
const DefaultPort = 6379

// ParseURL reads redis://user:password@host:6379/db?name=value&… (rediss:// for
// encryption). The parameters are stream-prefix, maxlen, wait (the number of
// replicas), connections, password-file, ca-file, cert-file, key-file,
// server-name and timeout.
func ParseURL(raw string) (Options, error) {
	a, err := sink.ParseAddress(raw, "redis", "rediss")
	if err != nil {
		return Options{}, fmt.Errorf("redis: %w", err)
	}
	p := a.Params
	o := Options{
		Server: a.HostPorts(DefaultPort)[0], Secure: a.Scheme == "rediss", TLS: p.TLS(),
		StreamPrefix: p.Text("stream-prefix", ""), MaxLen: p.Int("maxlen", 0, 1, 1<<53), Replicas: int(p.Int("wait", 0, 0, 100)),
		Timeout: p.Duration("timeout", 0), Connections: int(p.Int("connections", 0, 1, 1000)),
	}
	if len(a.Hosts) > 1 {
		return Options{}, errors.New("redis: address: want one host")
	}
	if a.Path != "" {
		if o.DB, err = strconv.Atoi(a.Path); err != nil || o.DB < 0 {
			return Options{}, fmt.Errorf("redis: address: database %q: want a number", a.Path)
		}
	}
	if o.User, o.Password, _, err = a.Login(); err != nil {
		return Options{}, fmt.Errorf("redis: %w", err)
	}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("redis: %w", err)
	}
	_, err = o.withDefaults()
	return o, err
}

func (o Options) withDefaults() (Options, error) {
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Connections = cmp.Or(o.Connections, 8)
	switch {
	case o.Server == "":
		return o, errors.New("redis: no server is given")
	case !o.Secure && !o.TLS.IsZero():
		return o, errors.New("redis: certificates without rediss://")
	case o.User != "" && o.Password == "":
		return o, errors.New("redis: a user without a password")
	}
	return o, nil
}

// String returns the address without a login.
func (o Options) String() string {
	scheme := "redis"
	if o.Secure {
		scheme = "rediss"
	}
	return fmt.Sprintf("%s://%s/%d", scheme, o.Server, o.DB)
}
