package pgbouncer

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/ldap"
)

// An HBA has the rules of auth_hba_file: which users may connect from where, and how they
// authenticate. The first rule that matches decides.
type HBA struct{ Rules []Rule }

// A Rule is one line of auth_hba_file.
type Rule struct {
	Line   int
	Kind   string // local, host, hostssl or hostnossl
	DBs    Names
	Users  Names
	From   netip.Prefix  // of host rules, unless they take all
	Method string        // as auth_type has it: trust, reject, md5, plain, peer, cert, ldap, scram-sha-256
	Map    string        // of auth_ident_file, "" for none
	LDAP   *ldap.Options // of method ldap
}

// Names are the databases or users of a rule.
type Names struct {
	All, SameUser, Replication bool
	List                       []string
}

func (n *Names) match(name, pair string) bool {
	return n.All || n.SameUser && name == pair || slices.Contains(n.List, name)
}

// A Login has the properties of a connection that rules match.
type Login struct {
	Addr           netip.Addr // not valid: a Unix socket
	TLS            bool
	Database, User string
	Physical       bool // physical replication
}

// Match returns the first rule that matches a login, nil if there is none.
func (h *HBA) Match(l Login) *Rule {
	for i := range h.Rules {
		if h.Rules[i].match(l) {
			return &h.Rules[i]
		}
	}
	return nil
}

func (r *Rule) match(l Login) bool {
	if (r.Kind == "local") == l.Addr.IsValid() {
		return false
	}
	switch {
	case r.Kind == "hostssl" && !l.TLS, r.Kind == "hostnossl" && l.TLS:
		return false
	case r.From.IsValid() && !r.From.Contains(l.Addr.Unmap()):
		return false
	case l.Physical && !r.DBs.Replication, !l.Physical && !r.DBs.match(l.Database, l.User):
		return false
	}
	return r.Users.match(l.User, l.Database)
}

// A hbaToken is a word of the file. A word in quotation marks is never a keyword.
type hbaToken struct {
	text   string
	quoted bool
	comma  bool
	rest   string // of the line
}

// hbaTokens splits a line into words. ok is false if a quotation mark is not closed.
func hbaTokens(line string) (list []hbaToken, ok bool) {
	for {
		line = strings.TrimLeft(line, " \t\r\n\v\f")
		if line == "" || line[0] == '#' {
			return list, true
		}
		switch line[0] {
		case ',':
			list, line = append(list, hbaToken{comma: true, rest: line[1:]}), line[1:]
		case '"':
			var b strings.Builder
			i := 1
			for ; i < len(line); i++ {
				if line[i] == '"' {
					if i+1 == len(line) || line[i+1] != '"' {
						break
					}
					i++
				}
				b.WriteByte(line[i])
			}
			if i == len(line) {
				return nil, false
			}
			list, line = append(list, hbaToken{text: b.String(), quoted: true, rest: line[i+1:]}), line[i+1:]
		default:
			end := strings.IndexAny(line[1:], ",#\" \t\r\n\v\f") + 1
			if end == 0 {
				end = len(line)
			}
			list, line = append(list, hbaToken{text: line[:end], rest: line[end:]}), line[end:]
		}
	}
}

// readHBA reads auth_hba_file. PgBouncer ignores lines that it cannot read; here they
// are an error, because the ignored line may be the one that rejects.
func readHBA(file string, maps IdentMaps) (*HBA, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseHBA(file, string(text), maps)
}

func parseHBA(file, text string, maps IdentMaps) (*HBA, error) {
	h := new(HBA)
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		tokens, ok := hbaTokens(line)
		if !ok {
			return nil, fmt.Errorf("%s: a quotation mark is not closed", Place{file, number})
		}
		if len(tokens) == 0 {
			continue
		}
		r, err := parseRule(tokens, filepath.Dir(file))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Place{file, number}, err)
		}
		if r.Map != "" && maps[r.Map] == nil {
			return nil, fmt.Errorf("%s: map %q is not in auth_ident_file", Place{file, number}, r.Map)
		}
		r.Line = number
		h.Rules = append(h.Rules, r)
	}
	return h, nil
}

// hbaMethods are the names in auth_type of the methods of the file.
var hbaMethods = map[string]string{
	"trust": "trust", "reject": "reject", "md5": "md5", "password": "plain", "peer": "peer", "cert": "cert", "scram-sha-256": "scram-sha-256",
	"ldap": "ldap",
}

func parseRule(t []hbaToken, dir string) (r Rule, err error) {
	r.Kind = t[0].text
	if t[0].quoted || !slices.Contains([]string{"local", "host", "hostssl", "hostnossl"}, r.Kind) {
		return r, fmt.Errorf("%q: want local, host, hostssl or hostnossl", t[0].text)
	}
	if r.DBs, t, err = parseNames(t[1:], true, dir); err != nil {
		return r, fmt.Errorf("databases: %w", err)
	}
	if r.Users, t, err = parseNames(t, false, dir); err != nil {
		return r, fmt.Errorf("users: %w", err)
	}
	if r.Kind != "local" {
		if r.From, t, err = parseFrom(t); err != nil {
			return r, err
		}
	}
	if len(t) == 0 {
		return r, fmt.Errorf("the method is missing")
	}
	method, ok := hbaMethods[t[0].text]
	if !ok || t[0].quoted {
		return r, fmt.Errorf("method %q: weir has trust, reject, md5, password, peer, cert, ldap and scram-sha-256", t[0].text)
	}
	r.Method = method
	if method == "ldap" {
		r.LDAP, err = ldap.Parse(uncommented(t[0].rest))
		return r, err
	}
	if t = t[1:]; len(t) > 0 {
		name, ok := strings.CutPrefix(t[0].text, "map=")
		if !ok || name == "" || t[0].quoted {
			return r, fmt.Errorf("option %q: want map=NAME", t[0].text)
		}
		r.Map, t = name, t[1:]
	}
	if len(t) > 0 {
		return r, fmt.Errorf("%q is one word too many", t[0].text)
	}
	return r, nil
}

// uncommented returns a line without the comment at its end.
func uncommented(rest string) string {
	quoted := false
	for i := range len(rest) {
		switch {
		case rest[i] == '"':
			quoted = !quoted
		case rest[i] == '#' && !quoted:
			return rest[:i]
		}
	}
	return rest
}

// parseNames reads a list of names; @FILE has more of them.
func parseNames(t []hbaToken, db bool, dir string) (n Names, rest []hbaToken, err error) {
	for {
		if len(t) == 0 || t[0].comma {
			return n, nil, fmt.Errorf("a name is missing")
		}
		switch w := t[0]; {
		case w.quoted:
			n.List = append(n.List, w.text)
		case w.text == "all":
			n.All = true
		case db && w.text == "sameuser":
			n.SameUser = true
		case db && w.text == "replication":
			n.Replication = true
		case db && (w.text == "samerole" || w.text == "samegroup"), w.text[0] == '+':
			return n, nil, fmt.Errorf("%s: weir does not know the members of roles", w.text)
		case w.text[0] == '@':
			if err := n.readMore(filepath.Join(dir, w.text[1:]), w.text[1:], db); err != nil {
				return n, nil, err
			}
		default:
			n.List = append(n.List, w.text)
		}
		if t = t[1:]; len(t) == 0 || !t[0].comma {
			return n, t, nil
		}
		t = t[1:]
	}
}

func (n *Names) readMore(path, given string, db bool) error {
	if filepath.IsAbs(given) {
		path = given
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		t, ok := hbaTokens(line)
		if !ok {
			return fmt.Errorf("%s: a quotation mark is not closed", path)
		}
		for len(t) > 0 {
			// Nested files are not supported.
			more, rest, err := parseNames(t, db, string(filepath.Separator)+"nowhere")
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			n.All, n.SameUser, n.Replication = n.All || more.All, n.SameUser || more.SameUser, n.Replication || more.Replication
			n.List = append(n.List, more.List...)
			t = rest
		}
	}
	return nil
}

// parseFrom reads an address: all, address/bits, or address and mask.
func parseFrom(t []hbaToken) (from netip.Prefix, rest []hbaToken, err error) {
	if len(t) == 0 || t[0].comma {
		return from, nil, fmt.Errorf("the address is missing")
	}
	if t[0].text == "all" && !t[0].quoted {
		return from, t[1:], nil
	}
	if strings.Contains(t[0].text, "/") {
		from, err = netip.ParsePrefix(t[0].text)
		if err != nil {
			return from, nil, fmt.Errorf("address %q: want all, ADDRESS/BITS, or ADDRESS MASK", t[0].text)
		}
		return from.Masked(), t[1:], nil
	}
	addr, err := netip.ParseAddr(t[0].text)
	if err != nil || len(t) < 2 {
		return from, nil, fmt.Errorf("address %q: want all, ADDRESS/BITS, or ADDRESS MASK", t[0].text)
	}
	mask, err := netip.ParseAddr(t[1].text)
	if err != nil || mask.BitLen() != addr.BitLen() {
		return from, nil, fmt.Errorf("mask %q does not fit the address", t[1].text)
	}
	ones, bits := net.IPMask(mask.AsSlice()).Size()
	if bits == 0 {
		return from, nil, fmt.Errorf("mask %q: its bits are not together", t[1].text)
	}
	return netip.PrefixFrom(addr, ones).Masked(), t[2:], nil
}

// IdentMaps are the maps of auth_ident_file, by name.
type IdentMaps map[string][]Mapping

// A Mapping lets a user of the system, or of a certificate, be a user of the database.
type Mapping struct {
	System, User string
	All          bool // of the database
}

// Allows reports whether a map lets a system's user be a user.
func (m IdentMaps) Allows(name, system, user string) bool {
	for _, x := range m[name] {
		if x.System == system && (x.All || x.User == user) {
			return true
		}
	}
	return false
}

func readIdent(file string) (IdentMaps, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseIdent(file, string(text))
}

func parseIdent(file, text string) (IdentMaps, error) {
	maps := make(IdentMaps)
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		t, ok := hbaTokens(line)
		if ok && len(t) == 0 {
			continue
		}
		if !ok || len(t) != 3 || slices.ContainsFunc(t, func(t hbaToken) bool { return t.comma }) {
			return nil, fmt.Errorf("%s: want MAP SYSTEM-USER DATABASE-USER", Place{file, number})
		}
		maps[t[0].text] = append(maps[t[0].text], Mapping{System: t[1].text, User: t[2].text, All: t[2].text == "all" && !t[2].quoted})
	}
	return maps, nil
}
