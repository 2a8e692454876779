package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// given is the value of an option and where it was found, in words that its
// user recognises: "--pool-size", "WEIR_POOL_SIZE", "weir.yaml:3: pool_size".
type given struct {
	value  string
	source string
	apply  func(*proxyConfig) error // instead of option.set, where value is no plain text
}

// sources are the places where options are looked for, first one first.
type sources struct {
	flags  map[string]string // by flag name, only those given
	getenv func(string) string
	file   string // path; "" for none
}

// load adds up the configuration: flag, else environment, else file, else
// default. Its errors are the user's to correct.
func (s sources) load(options []option) (proxyConfig, error) {
	inFile := map[string]given{}
	if s.file != "" {
		text, err := os.ReadFile(s.file)
		if err != nil {
			return proxyConfig{}, fmt.Errorf("read configuration: %w", err)
		}
		if inFile, err = readConfigFile(s.file, text, options); err != nil {
			return proxyConfig{}, err
		}
	}
	c := proxyConfig{texts: make(map[string]string)}
	for i := range options {
		o := &options[i]
		g, ok := given{value: s.flags[o.name], source: "--" + o.name}, false
		if _, ok = s.flags[o.name]; !ok {
			if g = (given{value: s.getenv(o.env()), source: o.env()}); g.value != "" {
				ok = true
			} else if g, ok = inFile[o.key()]; !ok {
				g = given{value: o.def, source: "default of --" + o.name}
				ok = o.def != ""
			}
		}
		if !ok {
			continue
		}
		c.texts[o.name] = g.value
		switch o.name {
		case "postgres":
			c.pgDSN.source = g.source
		case "mysql":
			c.myDSN.source = g.source
		}
		if err := g.set(&c, o); err != nil {
			return proxyConfig{}, err
		}
	}
	return c, c.complete(s.getenv)
}

func (g given) set(c *proxyConfig, o *option) error {
	if g.apply != nil {
		return g.apply(c)
	}
	err := o.set(c, g.value)
	switch {
	case err == nil:
		return nil
	case o.secret:
		return fmt.Errorf("%s: %w", g.source, err)
	}
	return fmt.Errorf("%s %q: %w", g.source, g.value, err)
}

// complete turns what the options name into what the proxy needs: the servers'
// addresses from their DSNs, users and certificates from their files.
func (c *proxyConfig) complete(getenv func(string) string) error {
	c.pgDSN.wanted, c.myDSN.wanted = c.pgDSN.text != "", c.myDSN.text != ""
	if !c.pgDSN.wanted && !c.myDSN.wanted {
		c.pgDSN.wanted = cmp.Or(getenv("PGHOST"), getenv("PGHOSTADDR")) != ""
		c.myDSN.wanted = cmp.Or(getenv("MYSQL_HOST"), getenv("MYSQL_UNIX_PORT")) != ""
	}
	if !c.pgDSN.wanted && !c.myDSN.wanted {
		return errors.New("no server: give --postgres or --mysql a connection string, such as postgres://user@host:5432/database or mysql://user@host:3306/database")
	}
	cert, err := c.tls.load()
	if err != nil {
		return err
	}
	c.pg.Options, c.my.Options = c.shared, c.shared
	c.pg.AdminUsers, c.my.AdminUsers = c.admins, c.admins
	c.pg.ClientTLS, c.my.ClientTLS = cert, cert
	if c.pgDSN.wanted {
		if err := c.completePostgres(); err != nil {
			return err
		}
	}
	if c.myDSN.wanted {
		return c.completeMySQL()
	}
	return nil
}

func (c *proxyConfig) completePostgres() (err error) {
	if hasScheme(c.pgDSN.text, "mysql", "mariadb") {
		return fmt.Errorf("%s: that is a server of MySQL or MariaDB: name it with --mysql", cmp.Or(c.pgDSN.source, "--postgres"))
	}
	if c.pg.Postgres, err = pgwire.ParseDSN(c.pgDSN.text); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(c.pgDSN.source, "server from PG* variables"), err)
	}
	c.pgDSN.visible = c.pgDSN.source == "--postgres" && showsPassword(c.pgDSN.text, c.pg.Postgres.Password)
	if c.pg.Users, err = readUserList(c.pgUsers, postgresUser); err != nil {
		return fmt.Errorf("--auth-file: %w", err)
	}
	return c.pg.Validate()
}

func (c *proxyConfig) completeMySQL() (err error) {
	if hasScheme(c.myDSN.text, "postgres", "postgresql") {
		return fmt.Errorf("%s: that is a server of PostgreSQL: name it with --postgres", cmp.Or(c.myDSN.source, "--mysql"))
	}
	if c.my.MySQL, err = mywire.ParseDSN(c.myDSN.text); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(c.myDSN.source, "server from MYSQL_* variables"), err)
	}
	c.myDSN.visible = c.myDSN.source == "--mysql" && showsPassword(c.myDSN.text, c.my.MySQL.Password)
	if c.my.Users, err = readUserList(c.myUsers, mysqlUser); err != nil {
		return fmt.Errorf("--mysql-auth-file: %w", err)
	}
	return c.my.Validate()
}

// hasScheme tells whether a DSN is a URL of one of the given schemes.
func hasScheme(dsn string, schemes ...string) bool {
	scheme, _, found := strings.Cut(dsn, "://")
	return found && slices.Contains(schemes, strings.ToLower(scheme))
}

// showsPassword tells whether the password stands in the DSN, rather than in
// the environment or the password file.
func showsPassword(dsn, password string) bool {
	return password != "" && (strings.Contains(dsn, password) || strings.Contains(dsn, url.PathEscape(password)) ||
		strings.Contains(dsn, url.QueryEscape(password)))
}

// readConfigFile reads the YAML file: a mapping of option keys to values. All
// mistakes are reported at once, each with its line.
func readConfigFile(path string, text []byte, options []option) (map[string]given, error) {
	f := &configFile{name: filepath.Base(path), found: map[string]given{}, options: options}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return f.found, nil
	case err != nil:
		return nil, f.syntax(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		f.fail(&more, "a second document; want one")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntax(err)
	}
	if root := resolve(doc.Content[0]); root.Kind == yaml.MappingNode {
		f.pairs(root, f.option)
	} else if root.Tag != "!!null" {
		f.fail(root, "want lines of the form key: value")
	}
	return f.found, errors.Join(f.mistakes...)
}

// configFile is one file being read.
type configFile struct {
	name     string
	options  []option
	found    map[string]given
	mistakes []error
}

func (f *configFile) fail(n *yaml.Node, format string, args ...any) {
	f.mistakes = append(f.mistakes, fmt.Errorf("%s:%d: %s", f.name, n.Line, fmt.Sprintf(format, args...)))
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntax rewrites an error of the YAML library to the form of all others.
func (f *configFile) syntax(err error) error {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		what := err.Error()[len(m[0]):]
		if what == "mapping values are not allowed in this context" {
			what += " (a value such as \"stdout:\", in which a colon ends it or precedes a space, needs quotes)"
		}
		return fmt.Errorf("%s:%s: %s", f.name, m[1], what)
	}
	return fmt.Errorf("%s: %s", f.name, strings.TrimPrefix(err.Error(), "yaml: "))
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// pairs calls put for each key of a mapping, once per key.
func (f *configFile) pairs(n *yaml.Node, put func(key, value *yaml.Node)) {
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if line, twice := seen[key.Value]; twice {
			f.fail(key, "%s is already set in line %d", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		put(key, resolve(n.Content[i+1]))
	}
}

// option records the value of one option.
func (f *configFile) option(key, value *yaml.Node) {
	i := slices.IndexFunc(f.options, func(o option) bool { return o.key() == key.Value })
	if i < 0 {
		names := make([]string, len(f.options))
		for i := range f.options {
			names[i] = f.options[i].key()
		}
		f.fail(key, "unknown key %q%s", key.Value, suggest(key.Value, names))
		return
	}
	g := given{source: fmt.Sprintf("%s:%d: %s", f.name, key.Line, key.Value)}
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		f.fail(key, "%s has no value", key.Value)
		return
	case value.Kind == yaml.ScalarNode:
		g.value = value.Value
	case value.Kind == yaml.SequenceNode && key.Value == "batch":
		rules := f.batchRules(value)
		g.value = fmt.Sprint(rules)
		g.apply = func(c *proxyConfig) error { c.shared.Batch = rules; return nil }
	case value.Kind == yaml.SequenceNode && key.Value == "admin_users":
		var names []string
		for _, n := range value.Content {
			if n = resolve(n); n.Kind != yaml.ScalarNode {
				f.fail(n, "admin_users: want names")
				return
			}
			names = append(names, n.Value)
		}
		g.value = fmt.Sprint(names)
		g.apply = func(c *proxyConfig) error { c.admins = names; return nil }
	default:
		f.fail(key, "%s: want a single value", key.Value)
		return
	}
	f.found[key.Value] = g
}

// batchRules reads the list under batch: which writes without a hint join a
// group; the first rule that fits decides.
func (f *configFile) batchRules(list *yaml.Node) []session.BatchRule {
	var rules []session.BatchRule
	for _, n := range list.Content {
		if n = resolve(n); n.Kind != yaml.MappingNode {
			f.fail(n, "batch: want rules of the form {database: NAME, user: NAME, batch: off|auto|DURATION}")
			continue
		}
		var r session.BatchRule
		decided := false
		f.pairs(n, func(key, value *yaml.Node) {
			if value.Kind != yaml.ScalarNode {
				f.fail(key, "%s: want a single value", key.Value)
				return
			}
			switch key.Value {
			case "database":
				r.Database = value.Value
			case "user":
				r.User = value.Value
			case "batch":
				b, err := parseBatch(value.Value)
				if err != nil {
					f.fail(key, "batch %q: %v", value.Value, err)
				}
				r.Batch, r.Window, decided = b.Batch, b.Window, true
			default:
				f.fail(key, "unknown key %q of a batch rule%s", key.Value, suggest(key.Value, []string{"database", "user", "batch"}))
			}
		})
		if !decided {
			f.fail(n, "a batch rule says nothing: add batch: off, auto or a duration")
		}
		rules = append(rules, r)
	}
	return rules
}

// suggest names what was probably meant, or lists nothing.
func suggest(word string, names []string) string {
	best, least := "", 3
	for _, n := range names {
		if d := editDistance(word, n); d < least {
			best, least = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// editDistance is Levenshtein's: insertions, deletions and replacements of one
// byte each.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
