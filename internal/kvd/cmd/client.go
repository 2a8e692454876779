package kvcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/kv"
)

// kvClient has the flags of verbs that talk to a cluster.
type kvClient struct {
	endpoints  string
	cluster    string
	secretFile string
	tls        tlsFiles
	timeout    time.Duration // for the whole command or, if it is patient, for each answer
	patient    bool
}

// defaultEndpoints are those of the example in docs/kv-operating.md: three replicas on one
// machine.
const defaultEndpoints = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"

// add defines the flags, and a usage that shows them after the verb's own. The help of a flag
// with an argument is "ARGUMENT|text".
func (k *kvClient) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&k.endpoints, "endpoints", "", "LIST|replicas, HOST:PORT,HOST:PORT,…; also WEIR_KV_ENDPOINTS (default "+defaultEndpoints+")")
	f.StringVar(&k.cluster, "cluster", "", "NAME|refuse a cluster with another name")
	f.StringVar(&k.secretFile, "secret-file", "", "FILE|the secret that the replicas share with their clients; also WEIR_KV_SECRET_FILE")
	f.StringVar(&k.tls.cert, "tls-cert", "", "FILE|certificate of this client, PEM")
	f.StringVar(&k.tls.key, "tls-key", "", "FILE|its private key, PEM")
	f.StringVar(&k.tls.ca, "tls-ca", "", "FILE|authority of the replicas' certificates, PEM")
	f.DurationVar(&k.timeout, "timeout", 5*time.Second, "DURATION|give up after this long")
	shared := []string{"endpoints", "cluster", "secret-file", "tls-cert", "tls-key", "tls-ca", "timeout", "json", "help"}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error { return kvClientUsage(cmd, shared) })
}

// kvClientUsage shows the flags of a verb, and then the shared ones.
func kvClientUsage(cmd *cobra.Command, shared []string) error {
	args := make(map[string]string)
	own, common := pflag.NewFlagSet("own", pflag.ContinueOnError), pflag.NewFlagSet("shared", pflag.ContinueOnError)
	own.SortFlags, common.SortFlags = false, false
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		shown := *flag
		if arg, text, ok := strings.Cut(flag.Usage, "|"); ok {
			args[flag.Name], shown.Usage = arg, text
		}
		if slices.Contains(shared, flag.Name) {
			common.AddFlag(&shown)
		} else {
			own.AddFlag(&shown)
		}
	})
	w := cmd.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if own.HasFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", cli.FlagTable(own, args))
	}
	fmt.Fprintf(w, "\nThe cluster, and how to print:\n%s", cli.FlagTable(common, args))
	return nil
}

// open connects. The returned context ends with the timeout, unless the command is patient.
func (k *kvClient) open(ctx context.Context) (context.Context, *kv.Client, func() error, error) {
	addrs := strings.FieldsFunc(firstOf(k.endpoints, os.Getenv("WEIR_KV_ENDPOINTS"), defaultEndpoints), func(r rune) bool { return r == ',' || r == ' ' })
	for _, addr := range addrs {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return nil, nil, nil, cli.UsageError(fmt.Errorf("endpoint %q: want HOST:PORT, the address in --peers", addr))
		}
	}
	if t := k.tls; (t.cert == "" || t.key == "" || t.ca == "") && t.cert+t.key+t.ca != "" {
		return nil, nil, nil, cli.UsageError(errors.New("--tls-cert, --tls-key and --tls-ca go together: clients have certificates, too"))
	}
	o := kv.Options{Cluster: k.cluster, Certificate: k.tls.cert, Key: k.tls.key, Authority: k.tls.ca}
	if file := firstOf(k.secretFile, os.Getenv("WEIR_KV_SECRET_FILE")); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("read the secret: %w", err)
		}
		if o.Secret = bytes.TrimSpace(b); len(o.Secret) == 0 {
			return nil, nil, nil, fmt.Errorf("the secret in %s is empty", file)
		}
	}
	life, whole := context.WithoutCancel(ctx), ctx
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	c, err := kv.Open(ctx, addrs, o)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	if k.patient {
		cancel()
		ctx, cancel = context.WithCancel(whole)
	}
	return ctx, c, func() error { cancel(); return endSession(life, c) }, nil
}

// endPatience is how long a command waits at its end for the cluster to remove its session.
// Without an answer, the cluster does so when the session has been idle for long.
const endPatience = 500 * time.Millisecond

// endSession closes a client and its session.
func endSession(ctx context.Context, c *kv.Client) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	err := c.Session.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, c.Close())
}

// with calls do with a connected client.
func (k *kvClient) with(cmd *cobra.Command, do func(ctx context.Context, c *kv.Client) error) (err error) {
	ctx, c, end, err := k.open(cmd.Context())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err = do(ctx, c); errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w after %v: no majority is up, or its leader cannot be reached (weir kv status)", err, k.timeout)
	}
	return err
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// kvItem is an item in JSON. A key or a value that is not valid UTF-8 is in base64.
type kvItem struct {
	Change   string `json:"change,omitempty"`       // of watch: put, delete or expire
	Key      string `json:"key"`                    // if it is valid UTF-8
	KeyBytes []byte `json:"key_base64,omitempty"`   // a key that is not valid UTF-8
	Value    string `json:"value,omitempty"`        // if it is valid UTF-8
	Base64   []byte `json:"value_base64,omitempty"` // a value that is not valid UTF-8
	Revision uint64 `json:"revision,omitempty"`     // at which the key was last written
	Lease    uint64 `json:"lease,omitempty"`        // the lease with which the key ends
}

// kvItems is the output of weir kv range --json.
type kvItems struct {
	Items    []kvItem `json:"items"`               // in the order of keys
	More     bool     `json:"more"`                // there are more keys than --limit
	KeysOnly bool     `json:"keys_only,omitempty"` // values were not asked for
}

// kvDeleted is the output of weir kv del --json.
type kvDeleted struct {
	Deleted int64 `json:"deleted"` // how many of the keys existed
}

// kvSum is the output of weir kv incr --json.
type kvSum struct {
	Value int64 `json:"value"` // the value after the increment
}

// kvLease is the output of the verbs of weir kv lease with --json.
type kvLease struct {
	Lease uint64 `json:"lease"` // its id, a fencing token
}

func jsonItem(i kv.Item) kvItem {
	j := kvItem{Key: i.Key, Revision: i.Revision, Lease: i.Lease}
	if !utf8.ValidString(i.Key) {
		j.KeyBytes = []byte(i.Key)
	}
	if utf8.Valid(i.Value) {
		j.Value = string(i.Value)
	} else {
		j.Base64 = i.Value
	}
	return j
}

func newKVGet() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvItem]
	var weak bool
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key",
		Long:  "Print the value of a key, followed by a newline. The exit code is 1 if there is\nno such key.",
		Example: `  weir kv get greeting
  weir kv get greeting --weak --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				item, err := c.Get(ctx, args[0], weakOption(weak)...)
				switch {
				case err != nil:
					return err
				case asJSON.Given():
					return asJSON.Print(cmd.OutOrStdout(), jsonItem(item))
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", item.Value)
				return err
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	cmd.Flags().BoolVar(&weak, "weak", false, "ask the nearest replica, which may be behind")
	return cmd
}

func weakOption(weak bool) []kv.Option {
	if weak {
		return []kv.Option{kv.Weak()}
	}
	return nil
}

func newKVPut() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvItem]
	var weak, absent bool
	var ttl time.Duration
	var lease uint64
	var revision int64
	cmd := &cobra.Command{
		Use:   "put KEY VALUE",
		Short: "Set a key",
		Long: `Set a key and print the revision of the write, which is its place among all writes.
VALUE - reads standard input. The exit code is 1 if a condition does not hold.`,
		Example: `  weir kv put greeting hello
  weir kv put lock me --if-absent --ttl 30s
  weir kv put config - < config.yaml`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			value := []byte(args[1])
			if args[1] == "-" {
				var err error
				if value, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return fmt.Errorf("read the value: %w", err)
				}
			}
			options := weakOption(weak)
			if cmd.Flags().Changed("ttl") {
				if ttl < time.Millisecond {
					return cli.UsageError(fmt.Errorf("--ttl %v: want a duration of at least 1ms, such as 30s", ttl))
				}
				options = append(options, kv.TTL(ttl))
			}
			if cmd.Flags().Changed("lease") {
				if lease == 0 {
					return cli.UsageError(errors.New("--lease 0: want the number that grant printed"))
				}
				options = append(options, kv.WithLease(lease))
			}
			if absent {
				options = append(options, kv.IfAbsent())
			}
			if revision >= 0 {
				options = append(options, kv.IfRevision(uint64(revision)))
			}
			if weak && (absent || revision >= 0) {
				return cli.UsageError(errors.New("a write with a condition cannot be --weak: it has an answer"))
			}
			if absent && revision >= 0 {
				return cli.UsageError(errors.New("give --if-absent or --if-revision, not both"))
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				rev, err := c.Put(ctx, args[0], value, options...)
				switch {
				case errors.Is(err, kv.ErrNotFound):
					return fmt.Errorf("%w: there is no lease %d; nothing was written", err, lease)
				case err != nil:
					return err
				case asJSON.Given():
					return asJSON.Print(cmd.OutOrStdout(), kvItem{Key: args[0], Revision: rev})
				case rev == 0:
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
				default:
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "revision", rev)
				}
				return err
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	f := cmd.Flags()
	f.BoolVar(&weak, "weak", false, "return as soon as the cluster's preset lets a weak write be acknowledged")
	f.BoolVar(&absent, "if-absent", false, "only if the key does not exist")
	f.Int64Var(&revision, "if-revision", -1, "N|only if the key was last written at revision N; 0: if it does not exist")
	f.Lookup("if-revision").DefValue = ""
	f.DurationVar(&ttl, "ttl", 0, "DURATION|delete the key after this long")
	f.Lookup("ttl").DefValue = ""
	f.Uint64Var(&lease, "lease", 0, "ID|delete the key when this lease ends")
	f.Lookup("lease").DefValue = ""
	return cmd
}

func newKVDel() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvDeleted]
	cmd := &cobra.Command{
		Use:     "del KEY…",
		Short:   "Delete keys",
		Long:    "Delete keys, all at once, and print how many of them existed.",
		Example: "  weir kv del greeting farewell",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				r, err := c.Do(ctx, kv.Delete(args))
				if err != nil {
					return err
				}
				return asJSON.PrintOr(cmd.OutOrStdout(), kvDeleted{r.Number()}, r.Number())
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func newKVIncr() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvSum]
	cmd := &cobra.Command{
		Use:     "incr KEY [DELTA]",
		Short:   "Add to an integer",
		Long:    "Add DELTA (default 1, may be negative) to the integer at KEY, 0 if absent, and print the sum.",
		Example: "  weir kv incr visits\n  weir kv incr stock -- -3",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			delta := int64(1)
			if len(args) == 2 {
				var err error
				if delta, err = strconv.ParseInt(args[1], 10, 64); err != nil {
					return cli.UsageError(fmt.Errorf("DELTA %q: want a whole number", args[1]))
				}
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				sum, err := c.Increment(ctx, args[0], delta)
				if err != nil {
					return err
				}
				return asJSON.PrintOr(cmd.OutOrStdout(), kvSum{sum}, sum)
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

// kvKeys selects the keys of range and watch.
type kvKeys struct{ prefix string }

func (s *kvKeys) keys(args []string) (from, to string, err error) {
	if s.prefix != "" {
		if len(args) > 0 {
			return "", "", cli.UsageError(errors.New("give FROM and TO, or --prefix, not both"))
		}
		return s.prefix, kv.PrefixEnd(s.prefix), nil
	}
	if len(args) > 0 {
		from = args[0]
	}
	if len(args) > 1 {
		to = args[1]
	}
	return from, to, nil
}

func newKVRange() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvItems]
	var s kvKeys
	var weak, reverse, keys bool
	var limit int
	cmd := &cobra.Command{
		Use:   "range [FROM [TO]]",
		Short: "List keys in order",
		Long: `List the keys from FROM (default: the first) on, before TO (default: to the end), a
line each: key, tab, value. One answer holds at most 16 MB and is a snapshot;
--limit none asks again until there are no more.`,
		Example: `  weir kv range --prefix user:
  weir kv range a m --limit 100 --json`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to, err := s.keys(args)
			if err != nil {
				return err
			}
			if limit < 0 {
				return cli.UsageError(fmt.Errorf("--limit %d: want how many keys, or none for all", limit))
			}
			options := append(weakOption(weak), kv.Limit(limit))
			if reverse {
				options = append(options, kv.Reverse())
			}
			if keys {
				options = append(options, kv.KeysOnly())
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				items, more, err := c.Range(ctx, from, to, options...)
				for err == nil && more && limit == 0 {
					var rest []kv.Item
					if last := items[len(items)-1].Key; reverse {
						to = last
					} else {
						from = last + "\x00"
					}
					rest, more, err = c.Range(ctx, from, to, options...)
					items = append(items, rest...)
				}
				if err != nil {
					return err
				}
				return printItems(cmd, items, more, &asJSON, keys)
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	f := cmd.Flags()
	f.StringVar(&s.prefix, "prefix", "", "TEXT|the keys that begin with this")
	f.IntVar(&limit, "limit", 1000, "N|at most this many; none for all")
	cli.OrNone(f, "limit", "0")
	f.BoolVar(&reverse, "reverse", false, "from the end")
	f.BoolVar(&keys, "keys-only", false, "without values")
	f.BoolVar(&weak, "weak", false, "ask the nearest replica, which may be behind")
	return cmd
}

func printItems(cmd *cobra.Command, items []kv.Item, more bool, asJSON *cli.JSON[kvItems], keysOnly bool) error {
	out := cmd.OutOrStdout()
	if asJSON.Given() {
		list := kvItems{[]kvItem{}, more, keysOnly}
		for _, i := range items {
			list.Items = append(list.Items, jsonItem(i))
		}
		return asJSON.Print(out, list)
	}
	for _, i := range items {
		var err error
		if keysOnly {
			_, err = fmt.Fprintln(out, i.Key)
		} else {
			_, err = fmt.Fprintf(out, "%s\t%s\n", i.Key, i.Value)
		}
		if err != nil {
			return err
		}
	}
	if more {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "there are more after %q; --limit none lists all\n", items[len(items)-1].Key)
		return err
	}
	return nil
}

func newKVWatch() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvItem]
	var s kvKeys
	var since uint64
	cmd := &cobra.Command{
		Use:   "watch [FROM [TO]]",
		Short: "Print changes as they are committed",
		Long: `Print the changes of the keys from FROM on, before TO, as they are committed, a
line each: revision, what happened (put, delete or expire), key, value. If its replica
fails, it continues with another one, without gaps or repeats; if the replicas no longer
have the changes since then, it says so and exits with code 3. Interrupt it to
end.`,
		Example: `  weir kv watch --prefix user:
  weir kv watch --since 1200 --json`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to, err := s.keys(args)
			if err != nil {
				return err
			}
			return k.with(cmd, func(_ context.Context, c *kv.Client) error {
				w, err := c.Watch(from, to, since)
				if err != nil {
					return err
				}
				return errors.Join(followChanges(cmd, w, &asJSON), w.Close())
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print a line of JSON for each change")
	cmd.Flags().StringVar(&s.prefix, "prefix", "", "TEXT|the keys that begin with this")
	cmd.Flags().Uint64Var(&since, "since", 0, "REVISION|begin with this revision; default: from now on")
	cmd.Flags().Lookup("since").DefValue = ""
	return cmd
}

// followChanges prints changes until the context ends.
func followChanges(cmd *cobra.Command, w *kv.Watcher, asJSON *cli.JSON[kvItem]) error {
	names := map[kv.ChangeKind]string{kv.Changed: "put", kv.Deleted: "delete", kv.Expired: "expire"}
	for {
		changes, err := w.Next(cmd.Context())
		switch {
		case errors.Is(err, kv.ErrMissed):
			return cli.Shortfall(fmt.Errorf("%w: read what you watch again, then watch from its revision", err))
		case err != nil && cmd.Context().Err() != nil:
			return nil // interrupted: the usual end
		case err != nil:
			return err
		}
		for _, g := range changes {
			if asJSON.Given() {
				j := jsonItem(g.Item)
				j.Change = names[g.Kind]
				err = asJSON.Line(cmd.OutOrStdout(), j)
			} else {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d\t%s\t%s\t%s\n", g.Revision, names[g.Kind], g.Key, g.Value)
			}
			if err != nil {
				return err
			}
		}
	}
}

func newKVLease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Grant, keep and end leases",
		Long: `A lease ends when it is not kept (weir kv lease keep) within its time to live, and the
keys attached to it (weir kv put --lease) are deleted. Its id is a fencing token: a later
lease has a larger id.`,
	}
	cmd.AddCommand(newKVLeaseGrant(),
		newKVLeaseVerb("keep", "Renew a lease: its time to live starts again", (*kv.Session).Keep),
		newKVLeaseVerb("revoke", "End a lease and delete its keys", (*kv.Session).Revoke))
	return cmd
}

func newKVLeaseGrant() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvLease]
	cmd := &cobra.Command{
		Use:     "grant TTL",
		Short:   "Grant a lease and print its id",
		Example: "  weir kv lease grant 30s",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := time.ParseDuration(args[0])
			if err != nil || ttl < time.Millisecond {
				return cli.UsageError(fmt.Errorf("TTL %q: want a duration of at least 1ms, such as 30s", args[0]))
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				id, err := c.Grant(ctx, ttl)
				if err != nil {
					return err
				}
				return asJSON.PrintOr(cmd.OutOrStdout(), kvLease{id}, id)
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func newKVLeaseVerb(name, short string, do func(*kv.Session, context.Context, uint64) error) *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvLease]
	cmd := &cobra.Command{
		Use:   name + " ID",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return cli.UsageError(fmt.Errorf("lease %q: want the number that grant printed", args[0]))
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				err := do(c.Session, ctx, id)
				if errors.Is(err, kv.ErrNotFound) {
					return fmt.Errorf("there is no lease %d: it has ended, or never existed", id)
				}
				if err != nil {
					return fmt.Errorf("lease %d: %w", id, err)
				}
				return asJSON.PrintOr(cmd.OutOrStdout(), kvLease{id}, "ok")
			})
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}
