package nats

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox/sink"
)

// Options say where JetStream is and where messages go.
type Options struct {
	// Servers are "host:port", any of one cluster. Required.
	Servers []string

	// User and Password log in; a User without a Password is a token.
	// CredentialsFile holds a JWT and its key instead. Default: no login.
	User, Password  string
	CredentialsFile string

	// TLS is used when Secure is set.
	Secure bool
	TLS    sink.TLS

	// Subject of a message. Default: "{topic}".
	Subject sink.Template

	// Stream must exist when the sink is opened and must store each message: a
	// subject of another stream is refused. Default: any stream.
	Stream string

	// Create creates Stream if it does not exist, with file storage, Subjects
	// (default: derived from Subject, if that is more than the topic alone) and
	// Replicas (default: 1). DedupWindow is how long it remembers identities
	// (default: the server's, 2 minutes).
	Create      bool
	Subjects    []string
	Replicas    int
	DedupWindow time.Duration

	// Domain of JetStream. Default: the account's.
	Domain string

	// Timeout is how long to wait for a connection, and for the confirmation of
	// a message. Default: 5 s.
	Timeout time.Duration
}

// DefaultPort is the port of a server without one.
const DefaultPort = 4222

// ParseURL reads nats://user:password@host:4222,host2?name=value&… (tls:// for
// encryption). The parameters are subject, stream, create, subjects (separated
// by commas), replicas, dedup-window, domain, creds, password-file, tls,
// ca-file, cert-file, key-file, server-name and timeout.
func ParseURL(raw string) (Options, error) {
	a, err := sink.ParseAddress(raw, "nats", "tls")
	if err != nil {
		return Options{}, fmt.Errorf("nats: %w", err)
	}
	p := a.Params
	o := Options{
		Servers: a.HostPorts(DefaultPort),
		Secure:  p.Bool("tls") || a.Scheme == "tls", TLS: p.TLS(),
		Subject: sink.Template(p.Text("subject", "")), Stream: p.Text("stream", ""),
		Create: p.Bool("create"), Replicas: int(p.Int("replicas", 0, 1, 5)), DedupWindow: p.Duration("dedup-window", 0),
		CredentialsFile: p.Text("creds", ""), Domain: p.Text("domain", ""), Timeout: p.Duration("timeout", 0),
	}
	if s := p.Text("subjects", ""); s != "" {
		o.Subjects = strings.Split(s, ",")
	}
	if o.User, o.Password, _, err = a.Login(); err != nil {
		return Options{}, fmt.Errorf("nats: %w", err)
	}
	if a.Path != "" {
		return Options{}, errors.New("nats: address: want no path (the stream is ?stream=…)")
	}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("nats: %w", err)
	}
	_, err = o.withDefaults()
	return o, err
}

func (o Options) withDefaults() (Options, error) {
	o.Subject = cmp.Or(o.Subject, "{topic}")
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Replicas = cmp.Or(o.Replicas, 1)
	if len(o.Servers) == 0 {
		return o, errors.New("nats: no server is given")
	}
	if err := o.Subject.Check(); err != nil {
		return o, fmt.Errorf("nats: subject %w", err)
	}
	if !o.Secure && !o.TLS.IsZero() {
		return o, errors.New("nats: certificates without tls=true")
	}
	if !o.Create {
		return o, nil
	}
	if o.Stream == "" {
		return o, errors.New("nats: create=true needs stream=NAME")
	}
	if len(o.Subjects) == 0 {
		wide := strings.TrimSuffix(string(o.Subject), "{topic}")
		if wide == "" || strings.ContainsAny(wide, "{}") {
			return o, fmt.Errorf("nats: create=true needs subjects=… for the stream: subject %q does not say which", string(o.Subject))
		}
		if wide != string(o.Subject) {
			wide += ">"
		}
		o.Subjects = []string{wide}
	}
	return o, nil
}

// String returns the address without a login.
func (o Options) String() string { return "nats://" + strings.Join(o.Servers, ",") }
