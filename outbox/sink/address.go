package sink

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Address is where a broker is, written as a URL:
//
//	scheme://user:password@host:port,host:port/path?name=value&…
//
// Unlike package net/url it allows several hosts, and rejects unknown and repeated
// parameters. Its errors never contain a password.
type Address struct {
	Scheme string
	Hosts  []string // "host" or "host:port", as written; at least one
	Path   string   // decoded, without the first slash
	Params *Params

	user     string
	password string
	hasUser  bool
}

// errSecret is the error for an address that cannot be parsed. It quotes nothing of the
// address, since any part of it might be a password.
var errSecret = errors.New("it is not scheme://user:password@host:port/path?name=value " +
	"(special characters in a password must be percent-encoded)")

// ParseAddress parses an address with one of the schemes.
func ParseAddress(raw string, schemes ...string) (*Address, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return nil, fmt.Errorf("address: want %s://…", strings.Join(schemes, ":// or "))
	}
	if strings.Contains(rest, "#") {
		return nil, fmt.Errorf("address: %w", errSecret)
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	a := &Address{Scheme: scheme}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, password, _ := strings.Cut(authority[:at], ":")
		var errName, errPassword error
		a.user, errName = url.PathUnescape(name)
		a.password, errPassword = url.PathUnescape(password)
		if errName != nil || errPassword != nil {
			return nil, fmt.Errorf("address: %w", errSecret)
		}
		a.hasUser = true
		authority = authority[at+1:]
	}
	var err error
	if a.Path, err = url.PathUnescape(path); err != nil || strings.Contains(path, "@") {
		return nil, fmt.Errorf("address: %w", errSecret)
	}
	for _, host := range strings.Split(authority, ",") {
		if !validHost(host) {
			return nil, fmt.Errorf("address: %w", errSecret)
		}
		a.Hosts = append(a.Hosts, host)
	}
	a.Params, err = ParseParams(query)
	return a, err
}

// validHost reports whether s is a host name or address, with or without a port.
func validHost(s string) bool {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		return ok && net.ParseIP(inner) != nil
	}
	return host != "" && strings.IndexFunc(host, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._", r))
	}) < 0
}

// HostPorts returns Hosts, with the given port where there is none.
func (a *Address) HostPorts(port int) []string {
	all := make([]string, len(a.Hosts))
	for i, h := range a.Hosts {
		if u := (&url.URL{Host: h}); u.Port() == "" {
			h = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
		}
		all[i] = h
	}
	return all
}

// Login returns the user and password of the address. The parameter password-file
// names a file with the password instead, so that no process list shows it. given is
// false if there is neither.
func (a *Address) Login() (user, password string, given bool, err error) {
	user, password, given = a.user, a.password, a.hasUser
	if file := a.Params.Text("password-file", ""); file != "" {
		if password != "" {
			return "", "", false, errors.New("address: a password and a password-file: want one of them")
		}
		if password, err = ReadSecret(file); err != nil {
			return "", "", false, err
		}
		given = true
	}
	return user, password, given, nil
}

// ReadSecret reads a secret from a file, without one trailing line end.
func ReadSecret(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if s == "" {
		return "", fmt.Errorf("read secret: %s is empty", file)
	}
	return s, nil
}

// Params are the parameters of an address. Each method takes one by name; Err then
// returns the first error, or one for a parameter that no method has taken.
type Params struct {
	left url.Values
	err  error
}

// ParseParams parses name=value&… . A repeated name is an error.
func ParseParams(query string) (*Params, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("address: its parameters are not name=value&…, percent-encoded")
	}
	for name, v := range values {
		if len(v) > 1 {
			return nil, fmt.Errorf("address: parameter %q comes %d times", name, len(v))
		}
	}
	return &Params{left: values}, nil
}

// take returns the value of a parameter, and whether it is set.
func (p *Params) take(name string) (string, bool) {
	v, ok := p.left[name]
	if !ok {
		return "", false
	}
	delete(p.left, name)
	return v[0], true
}

func (p *Params) mistake(name, value, want string) {
	if p.err == nil {
		p.err = fmt.Errorf("address: parameter %s=%q: want %s", name, value, want)
	}
}

// Has reports whether a parameter is set and not yet taken.
func (p *Params) Has(name string) bool { return p.left.Has(name) }

// Text returns a parameter, or missing if it is not set.
func (p *Params) Text(name, missing string) string {
	if v, ok := p.take(name); ok {
		return v
	}
	return missing
}

// Choice returns a parameter that must be one of the choices; the first is the default.
func (p *Params) Choice(name string, choices ...string) string {
	v, ok := p.take(name)
	if !ok {
		return choices[0]
	}
	if !slices.Contains(choices, v) {
		p.mistake(name, v, strings.TrimPrefix(strings.Join(choices, " or "), " or ")) // the first may be "", for none
		return choices[0]
	}
	return v
}

// Bool returns a parameter that is true or false, by default false.
func (p *Params) Bool(name string) bool {
	return p.Choice(name, "false", "true") == "true"
}

// Int returns an integer from least to most, or missing if it is not set.
func (p *Params) Int(name string, missing, least, most int64) int64 {
	v, ok := p.take(name)
	if !ok {
		return missing
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		p.mistake(name, v, fmt.Sprintf("a number from %d to %d", least, most))
		return missing
	}
	return n
}

// Duration returns a positive duration, such as 5s, or missing if it is not set.
func (p *Params) Duration(name string, missing time.Duration) time.Duration {
	v, ok := p.take(name)
	if !ok {
		return missing
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		p.mistake(name, v, "a time such as 500ms or 5s")
		return missing
	}
	return d
}

// Err returns the first error of the parameters taken, or one that names those not taken.
func (p *Params) Err() error {
	if p.err != nil {
		return p.err
	}
	names := make([]string, 0, len(p.left))
	for name := range p.left {
		names = append(names, strconv.Quote(name))
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("address: unknown parameter %s", strings.Join(names, ", "))
}
