//go:build linux

package proxycmd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/proxy/session"
)

// This file is the limits that may be others for a user or a database.

// limitOptions lists them.
func limitOptions() []cli.Option[proxyConfig] {
	return []cli.Option[proxyConfig]{
		{
			Group: groupSharing, Name: "pool-size", Arg: "N|auto", Default: "auto", Words: []string{"auto"}, Reload: true,
			Help: "maximum server connections per user and database; auto starts with 20 and adds more while they increase the server's throughput",
			Set:  poolSize,
		},
		{
			Group: groupSharing, Name: "min-pool-size", Arg: "N", Default: cli.None, Reload: true,
			Help: "server connections per user and database to keep open even when idle, after the first login",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MinPoolSize }),
		},
		{
			Group: groupSharing, Name: "reserve-pool-size", Arg: "N", Default: cli.None, Reload: true,
			Help: "additional server connections for statements that have waited for --reserve-pool-timeout",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.ReservePoolSize }),
		},
		{
			Group: groupSharing, Name: "reserve-pool-timeout", Arg: "DURATION", Default: "5s", Reload: true,
			Help: "how long a statement waits before the reserve is used, and how long the reserve stays open afterwards",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ReservePoolTimeout }),
		},
		{
			Group: groupLimits, Name: "max-db-connections", Arg: "N", Default: cli.None, Reload: true,
			Help: "maximum server connections per database; if they do not suffice, its users get equal shares",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MaxDBConnections }),
		},
		{
			Group: groupLimits, Name: "max-user-connections", Arg: "N", Default: cli.None, Reload: true,
			Help: "maximum server connections per user, in all databases",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MaxUserConnections }),
		},
		{
			Group: groupLimits, Name: "max-db-client-connections", Arg: "N", Default: cli.None, Reload: true,
			Help: "maximum client sessions per database",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MaxDBClients }),
		},
		{
			Group: groupLimits, Name: "max-user-client-connections", Arg: "N", Default: cli.None, Reload: true,
			Help: "maximum client sessions per user",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MaxUserClients }),
		},
		{
			Group: groupLimits, Name: "max-waiting", Arg: "N", Default: cli.None, Reload: true,
			Help: "maximum statements that wait for a server connection in one pool; more are refused",
			Set:  numberOrNone(func(c *proxyConfig) *int { return &c.shared.MaxWaiting }),
		},
		{
			Group: groupLimits, Name: "queue-timeout", Arg: "DURATION", Default: "30s", Reload: true,
			Help: "longest wait of a statement for a server connection",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.QueueTimeout }),
		},
		{
			Group: groupLimits, Name: "query-timeout", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "cancel statements that run longer than this on the server, and close the connection if that does not end them",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.QueryTimeout }),
		},
		{
			Group: groupLimits, Name: "transaction-timeout", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "disconnect clients whose transaction takes longer than this",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.TransactionTimeout }),
		},
		{
			Group: groupLimits, Name: "idle-in-transaction-timeout", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "disconnect clients that are idle for this long in a transaction",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.IdleInTransactionTimeout }),
		},
		{
			Group: groupLimits, Name: "client-idle-timeout", Arg: "DURATION", Default: cli.None, Reload: true,
			Help: "disconnect clients that are idle for this long",
			Set:  durationOrNone(func(c *proxyConfig) *time.Duration { return &c.shared.ClientIdleTimeout }),
		},
		{
			Group: groupLimits, Name: "server-idle-timeout", Arg: "DURATION", Default: "10m", Reload: true,
			Help: "close server connections that were idle for this long",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ServerIdleTimeout }),
		},
		{
			Group: groupLimits, Name: "server-lifetime", Arg: "DURATION", Default: "1h", Reload: true,
			Help: "close server connections that are older than this, once they are free",
			Set:  duration(func(c *proxyConfig) *time.Duration { return &c.shared.ServerLifetime }),
		},
	}
}

// poolSize takes a number of connections, or auto.
func poolSize(c *proxyConfig, v string) error {
	if v == "auto" {
		c.shared.PoolSize, c.shared.AutoPool = session.DefaultPoolSize, true
		return nil
	}
	c.shared.AutoPool = false
	if err := cli.Number(1, func(c *proxyConfig) *int { return &c.shared.PoolSize })(c, v); err != nil {
		return fmt.Errorf("%w, or auto", err)
	}
	return nil
}

// numberOrNone takes a whole number; none is 0.
func numberOrNone(field func(*proxyConfig) *int) setter {
	number := cli.Number(1, field)
	return func(c *proxyConfig, v string) error {
		if cli.IsNone(v) {
			*field(c) = 0
			return nil
		}
		if err := number(c, v); err != nil {
			return fmt.Errorf("%w, or none", err)
		}
		return nil
	}
}

// A limitRule is one that is being read.
type limitRule struct {
	session.LimitRule
	options []cli.Option[proxyConfig]
	given   []string // the keys and values of its limits, one after the other
}

// put takes one key of a rule and its value.
func (r *limitRule) put(key, value string) error {
	switch key {
	case "database":
		r.Database = value
		return nil
	case "user":
		r.User = value
		return nil
	}
	o := r.option(key)
	if o == nil {
		names := []string{"database", "user"}
		for i := range r.options {
			names = append(names, r.options[i].Key())
		}
		return fmt.Errorf("unknown key %q of a rule of limits%s", key, cli.Suggest(key, names))
	}
	if err := o.Set(new(proxyConfig), value); err != nil {
		return fmt.Errorf("%s %q: %w", key, value, err)
	}
	r.given = append(r.given, key, value)
	return nil
}

func (r *limitRule) option(key string) *cli.Option[proxyConfig] {
	i := slices.IndexFunc(r.options, func(o cli.Option[proxyConfig]) bool { return o.Key() == key })
	if i < 0 {
		return nil
	}
	return &r.options[i]
}

// rule is what has been read.
func (r *limitRule) rule() (session.LimitRule, error) {
	if len(r.given) == 0 {
		return session.LimitRule{}, errors.New("a rule of limits says nothing: add one of them, such as pool_size")
	}
	if r.Database == "" && r.User == "" {
		return session.LimitRule{}, errors.New("a rule of limits names neither a database nor a user: name one, or set the limit itself")
	}
	r.Set = func(l *session.Limits) {
		c := proxyConfig{shared: session.Options{Limits: *l}}
		for i := 0; i < len(r.given); i += 2 {
			_ = r.option(r.given[i]).Set(&c, r.given[i+1]) // which put has found right
		}
		*l = c.shared.Limits
	}
	if r.Database != "" {
		r.Text = "database=" + r.Database + " "
	}
	if r.User != "" {
		r.Text += "user=" + r.User + " "
	}
	for i := 0; i < len(r.given); i += 2 {
		r.Text += r.given[i] + "=" + r.given[i+1] + " "
	}
	r.Text = strings.TrimSpace(r.Text)
	return r.LimitRule, r.Check()
}

// parseLimits reads rules such as "user=importer pool_size=5; database=shop
// max_db_connections=60".
func parseLimits(text string) ([]session.LimitRule, error) {
	var rules []session.LimitRule
	for one := range strings.SplitSeq(text, ";") {
		r := &limitRule{options: limitOptions()}
		for field := range strings.FieldsSeq(one) {
			key, value, ok := strings.Cut(field, "=")
			if !ok {
				return nil, fmt.Errorf("%q: want key=value", field)
			}
			if err := r.put(strings.ReplaceAll(key, "-", "_"), value); err != nil {
				return nil, err
			}
		}
		rule, err := r.rule()
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// listLimits reads the list under limits. Of the rules that fit and name the same
// limit the first decides.
func listLimits(f *cli.File, list *yaml.Node) (string, func(*proxyConfig)) {
	var rules []session.LimitRule
	var text []string
	for _, n := range list.Content {
		if n = cli.Resolve(n); n.Kind != yaml.MappingNode {
			f.Fail(n, "limits: want rules of the form {database: NAME, user: NAME, pool_size: N}")
			continue
		}
		r, wrong := &limitRule{options: limitOptions()}, false
		f.Pairs(n, func(key, value *yaml.Node) {
			err := errors.New("want a single value")
			if value.Kind == yaml.ScalarNode {
				err = r.put(key.Value, value.Value)
			}
			if err != nil {
				wrong = true
				f.Fail(key, "limits: %v", err)
			}
		})
		rule, err := r.rule()
		if err != nil && !wrong {
			f.Fail(n, "limits: %v", err)
		}
		rules = append(rules, rule)
		text = append(text, rule.Text)
	}
	return strings.Join(text, "; "), func(c *proxyConfig) { c.shared.LimitRules = rules }
}
