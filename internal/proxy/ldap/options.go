package ldap

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	goldap "github.com/go-ldap/ldap/v3"
)

// Options say where the LDAP server is and how to find users there.
type Options struct {
	// Servers are addresses host:port, tried one after the other. Required.
	Servers []string
	// TLS means LDAPS; StartTLS upgrades a plain connection.
	TLS, StartTLS bool

	// Prefix and Suffix surround the user name in a simple bind.
	Prefix, Suffix string

	// BaseDN is the base of the search for users in a search+bind; "" selects a simple bind.
	BaseDN string
	// BindDN and BindPassword are for the search. Default: an anonymous bind.
	BindDN, BindPassword string
	// Filter is the search filter for a user, in which $username stands for the name.
	Filter string
	// Scope is the scope of the search, a constant of package goldap. Default: only the base
	// itself.
	Scope int
}

// placeholder stands for the user's name in a filter.
const placeholder = "$username"

// Parse parses options as in pg_hba.conf and PgBouncer: words of the form name=value, separated
// by spaces or commas; values with such characters are quoted.
func Parse(text string) (*Options, error) {
	words, err := split(text)
	if err != nil {
		return nil, err
	}
	p := parser{port: 0}
	p.o.Scope = goldap.ScopeWholeSubtree
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			// The word may be the rest of a password with a space.
			return nil, errors.New("a word without \"=\": want NAME=VALUE, and quotation marks around a value with spaces or commas")
		}
		if err := p.take(name, value); errors.Is(err, errNoOption) {
			return nil, err // what stands before the "=" may be of a password, too
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return p.finish()
}

// split splits options into words, and removes the quotation marks. Two quotation marks in
// quoted text stand for one.
func split(text string) (words []string, err error) {
	var b strings.Builder
	begun, quoted := false, false
	end := func() {
		if begun {
			words = append(words, b.String())
		}
		b.Reset()
		begun = false
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' && quoted && i+1 < len(text) && text[i+1] == '"':
			b.WriteByte('"')
			i++
		case c == '"':
			quoted, begun = !quoted, true
		case !quoted && strings.IndexByte(" \t\r\n,", c) >= 0:
			end()
		default:
			b.WriteByte(c)
			begun = true
		}
	}
	if quoted {
		return nil, errors.New("a quotation mark is not closed")
	}
	end()
	return words, nil
}

type parser struct {
	o         Options
	hosts     []string // without ports
	port      int      // 0: the default of the scheme
	attribute string
}

var errNoOption = errors.New("an option that LDAP does not have, or a value with spaces or commas that is not in quotation marks")

func (p *parser) take(name, value string) (err error) {
	switch name {
	case "ldapserver":
		p.hosts = strings.Fields(value)
	case "ldapport":
		p.port, err = parsePort(value)
	case "ldapscheme":
		p.o.TLS, err = parseScheme(value)
	case "ldaptls":
		if value != "0" && value != "1" {
			return errors.New("want 0 or 1")
		}
		p.o.StartTLS = value == "1"
	case "ldapprefix":
		p.o.Prefix = value
	case "ldapsuffix":
		p.o.Suffix = value
	case "ldapbasedn":
		p.o.BaseDN = value
	case "ldapbinddn":
		p.o.BindDN = value
	case "ldapbindpasswd":
		p.o.BindPassword = value
	case "ldapsearchattribute":
		p.attribute = value
	case "ldapsearchfilter":
		p.o.Filter = value
	case "ldapurl":
		err = p.takeURL(value)
	default:
		err = errNoOption
	}
	return err
}

func parsePort(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > 65535 {
		return 0, errors.New("want a port from 1 to 65535")
	}
	return n, nil
}

func parseScheme(value string) (tls bool, err error) {
	if value != "ldap" && value != "ldaps" {
		return false, errors.New("want ldap or ldaps")
	}
	return value == "ldaps", nil
}

// takeURL parses ldap[s]://host[:port]/basedn[?[attribute][?[scope][?[filter]]]], whose parts
// may be percent-encoded (RFC 4516).
func (p *parser) takeURL(value string) error {
	scheme, rest, ok := strings.Cut(value, "://")
	if !ok {
		return errors.New("want ldap://HOST/BASEDN?ATTRIBUTE?SCOPE?FILTER")
	}
	var err error
	if p.o.TLS, err = parseScheme(strings.ToLower(scheme)); err != nil {
		return err
	}
	host, rest, _ := strings.Cut(rest, "/")
	parts := strings.Split(rest, "?")
	for i := range parts {
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return errors.New("its escapes are broken")
		}
	}
	parts = append(parts, "", "", "", "")
	if strings.Contains(host, "@") {
		return errors.New("it must not contain a user: use ldapbinddn and ldapbindpasswd")
	}
	p.hosts, p.port = nil, 0
	if name, port, err := net.SplitHostPort(host); err == nil {
		if p.port, err = parsePort(port); err != nil {
			return err
		}
		p.hosts = []string{name}
	} else if host = strings.Trim(host, "[]"); host != "" {
		p.hosts = []string{host}
	}
	p.o.BaseDN = parts[0]
	p.attribute, _, _ = strings.Cut(parts[1], ",") // the first one, as in PostgreSQL
	scopes := map[string]int{"": goldap.ScopeBaseObject, "base": goldap.ScopeBaseObject, "one": goldap.ScopeSingleLevel, "sub": goldap.ScopeWholeSubtree}
	if p.o.Scope, ok = scopes[strings.ToLower(parts[2])]; !ok {
		return fmt.Errorf("scope %q: want base, one or sub", parts[2])
	}
	p.o.Filter = parts[3]
	if slices.ContainsFunc(parts[4:], func(s string) bool { return s != "" }) {
		return errors.New("it has extensions, which weir does not know")
	}
	return nil
}

// finish checks that the options are consistent.
func (p *parser) finish() (*Options, error) {
	o := &p.o
	port := strconv.Itoa(cmp.Or(p.port, map[bool]int{false: 389, true: 636}[o.TLS]))
	for _, h := range p.hosts {
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), port)
		}
		o.Servers = append(o.Servers, h)
	}
	searches := o.BaseDN != "" || o.BindDN != "" || o.BindPassword != "" || p.attribute != "" || o.Filter != ""
	switch {
	case len(o.Servers) == 0:
		return nil, errors.New("no LDAP server: add ldapserver or ldapurl")
	case o.TLS && o.StartTLS:
		return nil, errors.New("ldaps and ldaptls=1 exclude each other: ldaps is TLS already")
	case (o.Prefix != "" || o.Suffix != "") && searches:
		return nil, errors.New("options of a simple bind (ldapprefix, ldapsuffix) and of search+bind (ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter, ldapurl) exclude each other")
	case !searches && o.Prefix == "" && o.Suffix == "", searches && o.BaseDN == "":
		return nil, errors.New("add ldapbasedn, ldapprefix or ldapsuffix, which say who a user is at the LDAP server")
	case p.attribute != "" && o.Filter != "":
		return nil, errors.New("ldapsearchattribute and ldapsearchfilter exclude each other")
	case o.BindPassword != "" && o.BindDN == "":
		return nil, errors.New("ldapbindpasswd needs ldapbinddn")
	case !searches:
		return o, nil
	}
	if o.Filter == "" {
		o.Filter = cmp.Or(p.attribute, "uid") + "=" + placeholder
	}
	if !strings.HasPrefix(o.Filter, "(") {
		o.Filter = "(" + o.Filter + ")"
	}
	if !strings.Contains(o.Filter, placeholder) {
		return nil, fmt.Errorf("filter %q: it finds the same entry for everyone: $username stands for the user's name", o.Filter)
	}
	if _, err := goldap.CompileFilter(o.filter("x")); err != nil {
		return nil, fmt.Errorf("filter %q: not one of LDAP's (RFC 4515)", o.Filter)
	}
	return o, nil
}

// filter returns the filter that finds a user.
func (o *Options) filter(user string) string {
	return strings.ReplaceAll(o.Filter, placeholder, goldap.EscapeFilter(user))
}

// name returns the name of a user for a simple bind. Active Directory also accepts names that
// are not distinguished names, such as user@domain and DOMAIN\user, in which escapes have no
// meaning.
func (o *Options) name(user string) string {
	if strings.Contains(o.Prefix, "=") || strings.HasPrefix(strings.TrimLeft(o.Suffix, " "), ",") {
		user = strings.ReplaceAll(goldap.EscapeDN(user), "=", `\=`)
	}
	return o.Prefix + user + o.Suffix
}
