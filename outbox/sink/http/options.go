package http

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox/sink"
)

// Options say where messages are posted and how they are written.
type Options struct {
	// URL is http or https, without a login. In its path {topic} and {key} are
	// replaced by those of the message. Required.
	URL string

	// User and Password are sent as Basic authorization. Authorization is the
	// complete header instead, such as "Bearer …". Default: none.
	User, Password string
	Authorization  string

	// TLS is used with https.
	TLS sink.TLS

	// Structured sends CloudEvents as one JSON object. Default: in binary mode,
	// the attributes as headers and the payload as it is.
	Structured bool

	// Source is the attribute source of messages without a header of that name.
	// Default: "/weir/outbox".
	Source string

	// Secrets sign requests by Standard Webhooks, with one signature each, so
	// that a secret can be replaced. Default: none, nothing is signed.
	Secrets [][]byte

	// Timeout of a request, including its answer. Default: 15 s.
	Timeout time.Duration

	// Concurrency is the most requests in flight, plus as many again for keys whose last
	// request was not answered within Timeout. Default: 16.
	Concurrency int
}

// ParseURL parses http(s)://user:password@host/path?name=value&… . Its parameters are not part
// of the URL of requests, except query, which is the query string of that URL. The others are
// mode (binary or structured), source, timeout, concurrency, secret-file or secret-env (see
// ParseSecrets), authorization-file, password-file, ca-file, cert-file, key-file, server-name.
func ParseURL(raw string) (Options, error) {
	a, err := sink.ParseAddress(raw, "http", "https")
	if err != nil {
		return Options{}, fmt.Errorf("http: %w", err)
	}
	if len(a.Hosts) > 1 {
		return Options{}, errors.New("http: address: want one host")
	}
	p := a.Params
	target := url.URL{Scheme: a.Scheme, Host: a.Hosts[0], Path: "/" + a.Path, RawQuery: p.Text("query", "")}
	o := Options{
		// The path was decoded and is encoded again, except the placeholders.
		URL:        strings.NewReplacer("%7B", "{", "%7D", "}").Replace(target.String()),
		Structured: p.Choice("mode", "binary", "structured") == "structured",
		Source:     p.Text("source", ""), TLS: p.TLS(),
		Timeout: p.Duration("timeout", 0), Concurrency: int(p.Int("concurrency", 0, 1, 10000)),
	}
	if o.User, o.Password, _, err = a.Login(); err != nil {
		return Options{}, fmt.Errorf("http: %w", err)
	}
	if file := p.Text("authorization-file", ""); file != "" {
		if o.Authorization, err = sink.ReadSecret(file); err != nil {
			return Options{}, fmt.Errorf("http: %w", err)
		}
	}
	if err := o.readSecrets(p.Text("secret-file", ""), p.Text("secret-env", "")); err != nil {
		return Options{}, fmt.Errorf("http: %w", err)
	}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("http: %w", err)
	}
	_, err = o.withDefaults()
	return o, err
}

func (o *Options) readSecrets(file, env string) error {
	var text string
	switch {
	case file != "" && env != "":
		return errors.New("address: secret-file and secret-env: want one of them")
	case file != "":
		var err error
		if text, err = sink.ReadSecret(file); err != nil {
			return err
		}
	case env != "":
		if text = os.Getenv(env); text == "" {
			return fmt.Errorf("address: secret-env: the variable %s is empty", env)
		}
	default:
		return nil
	}
	var err error
	o.Secrets, err = ParseSecrets(text)
	return err
}

// ParseSecrets parses secrets, one per line. One that begins with whsec_ is base64 after that,
// as in Standard Webhooks; any other is used unchanged.
func ParseSecrets(text string) ([][]byte, error) {
	var secrets [][]byte
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		secret := []byte(line)
		if encoded, ok := strings.CutPrefix(line, "whsec_"); ok {
			var err error
			if secret, err = base64.StdEncoding.DecodeString(encoded); err != nil || len(secret) == 0 {
				return nil, errors.New("read secret: what follows whsec_ is not base64")
			}
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, errors.New("read secret: there is none")
	}
	return secrets, nil
}

func (o Options) withDefaults() (Options, error) {
	o.Source = cmp.Or(o.Source, "/weir/outbox")
	o.Timeout = cmp.Or(o.Timeout, 15*time.Second)
	o.Concurrency = cmp.Or(o.Concurrency, 16)
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return o, errors.New("http: want a URL of http or https")
	case u.User != nil:
		return o, errors.New("http: the URL must not contain a login")
	case u.Scheme == "http" && !o.TLS.IsZero():
		return o, errors.New("http: certificates without https://")
	case o.Authorization != "" && o.User+o.Password != "":
		return o, errors.New("http: a login and an authorization: want one of them")
	case strings.ContainsAny(o.Authorization, "\r\n"):
		return o, errors.New("http: the authorization has line ends")
	}
	if err := sink.Template(u.Path).Check(); err != nil {
		return o, fmt.Errorf("http: path %w", err)
	}
	if strings.ContainsAny(u.RawQuery, "{}") {
		return o, errors.New("http: placeholders in the query")
	}
	return o, nil
}

// String returns the URL without a login and query.
func (o Options) String() string {
	address, _, _ := strings.Cut(o.URL, "?")
	return address
}
