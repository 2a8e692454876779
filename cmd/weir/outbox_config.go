package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

// outboxOption is one thing about an outbox or its relay that can be set: as a
// flag --max-in-flight, in the environment as WEIR_OUTBOX_MAX_IN_FLIGHT, in the
// file as max_in_flight. One file serves all verbs: each takes what it knows.
type outboxOption struct {
	option
	// verbs have the option as a flag; none: all have.
	verbs []string
	put   func(c *outboxConfig, value string) error
}

func (o *outboxOption) env() string { return "WEIR_OUTBOX_" + strings.ToUpper(o.key()) }

func (o *outboxOption) of(verb string) bool { return o.verbs == nil || slices.Contains(o.verbs, verb) }

// outboxConfig is what the options add up to.
type outboxConfig struct {
	dbText, dbSource, sinkSource string
	db                           outboxctl.Database
	store                        outboxctl.StoreOptions
	sink                         string

	relay       outbox.Config
	maintenance outboxctl.Maintenance
	partitions  outbox.PartitionSpec // of migrate and partitions; Period of migrate
	statusEvery time.Duration

	admin     string // address; "": no admin server
	logLevel  slog.Level
	logFormat string
}

// outboxSources are the places where the options of one verb are looked for.
type outboxSources struct {
	verb   string
	flags  map[string]string // by flag name, only those given
	getenv func(string) string
	file   string
}

// load adds up the configuration: flag, else environment, else file, else
// default. Its errors are the user's to correct.
func (s *outboxSources) load(options []outboxOption) (outboxConfig, error) {
	var c outboxConfig
	inFile := map[string]given{}
	if file := cmp.Or(s.file, s.getenv("WEIR_OUTBOX_CONFIG")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		names := make([]option, len(options))
		for i := range options {
			names[i] = options[i].option
		}
		if inFile, err = readConfigFile(file, text, names); err != nil {
			return c, err
		}
	}
	for i := range options {
		o := &options[i]
		g, ok := s.find(o, inFile)
		if !ok {
			continue
		}
		switch o.name {
		case "db":
			c.dbSource = g.source
		case "sink":
			c.sinkSource = g.source
		}
		var err error
		if g.apply != nil { // a list, which only the proxy's file has
			err = errors.New("want a single value")
		} else {
			err = o.put(&c, g.value)
		}
		switch {
		case err == nil:
		case o.secret:
			return c, fmt.Errorf("%s: %w", g.source, err)
		default:
			return c, fmt.Errorf("%s %q: %w", g.source, g.value, err)
		}
	}
	return c, c.complete(s)
}

// find returns the value that counts. What is in the file is read for options of
// other verbs, too, so that a mistake does not wait for that verb.
func (s *outboxSources) find(o *outboxOption, inFile map[string]given) (given, bool) {
	if v, ok := s.flags[o.name]; ok {
		return given{value: v, source: "--" + o.name}, true
	}
	if v := s.getenv(o.env()); v != "" && o.of(s.verb) {
		return given{value: v, source: o.env()}, true
	}
	if g, ok := inFile[o.key()]; ok {
		return g, true
	}
	return given{value: o.def, source: "default of --" + o.name}, o.def != ""
}

// complete checks what several options say together.
func (c *outboxConfig) complete(s *outboxSources) (err error) {
	if c.db, err = outboxctl.ParseDatabase(c.dbText, s.getenv); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(c.dbSource, "--db"), err)
	}
	r := &c.relay
	switch {
	case s.verb == "relay" && c.sink == "":
		return errors.New("no sink: give --sink an address, such as stdout:, nats://host:4222 or https://host/path")
	case r.Window > 0 && r.Claim != outbox.SkipLocked:
		return fmt.Errorf("--window needs --claim skip-locked: %s reads no history that it could leave out", r.Claim)
	case r.MinPoll > r.MaxPoll:
		return fmt.Errorf("--min-poll %v is more than --max-poll %v", r.MinPoll, r.MaxPoll)
	case r.Retry.Base > r.Retry.Max:
		return fmt.Errorf("--retry-base %v is more than --retry-cap %v", r.Retry.Base, r.Retry.Max)
	case c.partitions.Keep > 0 && c.partitions.Lookback > c.partitions.Keep:
		return fmt.Errorf("--partition-lookback %v makes partitions that --partition-keep %v drops", c.partitions.Lookback, c.partitions.Keep)
	}
	period := c.maintenance.Partitions.Period
	c.maintenance.Partitions = c.partitions
	c.maintenance.Partitions.Period = period
	return nil
}

// sinkPassword finds a login with a password, or a token of NATS, in an address.
var sinkPassword = regexp.MustCompile(`^(nats|tls)://[^/?@]+@|^[a-z]+://[^/?@]*:[^/?@]+@`)

// warnOfPasswords says what every user of this machine can read.
func (c *outboxConfig) warnOfPasswords(log *slog.Logger) {
	if c.dbSource == "--db" && c.db.ShowsPassword {
		log.Warn("the password in --db can be read by every user of this machine; use PGPASSWORD, the password file, MYSQL_PWD, WEIR_OUTBOX_DB or --config")
	}
	if c.sinkSource == "--sink" && sinkPassword.MatchString(c.sink) {
		log.Warn("the password in --sink can be read by every user of this machine; use its parameter password-file, WEIR_OUTBOX_SINK or --config")
	}
}

// log is where the verb says what it does.
func (c *outboxConfig) log(w io.Writer) *slog.Logger { return newLog(w, c.logFormat, c.logLevel) }

// addOptions gives a verb the flags of its options and the usage that shows them
// in groups, behind its own. The help of those is "ARGUMENT|text" where there is
// an argument.
func (s *outboxSources) addOptions(cmd *cobra.Command, options []outboxOption) {
	f := cmd.Flags()
	f.SortFlags = false
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	args := map[string]string{"config": argFile}
	f.VisitAll(func(flag *pflag.Flag) {
		if arg, usage, ok := strings.Cut(flag.Usage, "|"); ok {
			args[flag.Name], flag.Usage = arg, usage
		}
		own.AddFlag(flag)
	})
	for i := range options {
		o := &options[i]
		if !o.of(s.verb) {
			continue
		}
		args[o.name] = o.arg
		flag := f.VarPF(&textFlag{o: &o.option, into: s.flags}, o.name, "", o.help)
		flag.DefValue = o.def
		if o.arg == "" {
			flag.NoOptDefVal = "true"
		}
	}
	f.StringVarP(&s.file, "config", "c", "", "YAML file with options of all verbs; WEIR_OUTBOX_CONFIG names one too")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // the flag exists
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		w := cmd.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, group := range outboxGroups {
			set := pflag.NewFlagSet(group, pflag.ContinueOnError)
			set.SortFlags = false
			if group == groupVerb {
				set.AddFlagSet(own)
			}
			for i := range options {
				if o := &options[i]; o.group == group && o.of(s.verb) {
					set.AddFlag(f.Lookup(o.name))
				}
			}
			if group == groupOps {
				set.AddFlag(f.Lookup("config"))
				if help := f.Lookup("help"); help != nil {
					set.AddFlag(help)
				}
			}
			if set.HasFlags() {
				fmt.Fprintf(w, "\n%s:\n%s", group, flagTable(set, args))
			}
		}
		return nil
	})
}

func outboxNumber(least int, field func(*outboxConfig) *int) func(*outboxConfig, string) error {
	return func(c *outboxConfig, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("want a whole number, at least %d", least)
		}
		*field(c) = n
		return nil
	}
}

// span takes a duration above zero, also in days and weeks, or, where zero has a
// word, that word.
func span(zero string, field func(*outboxConfig) *time.Duration) func(*outboxConfig, string) error {
	return func(c *outboxConfig, v string) error {
		if zero != "" && (v == zero || v == "0") {
			*field(c) = 0
			return nil
		}
		d, err := parseSpan(v)
		if err != nil {
			if zero != "" {
				return fmt.Errorf("%w, or %s", err, zero)
			}
			return err
		}
		*field(c) = d
		return nil
	}
}

var errSpan = errors.New("want a duration above zero such as 250ms, 30s, 12h or 7d")

func parseSpan(v string) (time.Duration, error) {
	for suffix, unit := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, err := strconv.Atoi(strings.TrimSuffix(v, suffix)); err == nil && strings.HasSuffix(v, suffix) {
			if n < 1 || n > 36500 {
				return 0, errSpan
			}
			return time.Duration(n) * unit, nil
		}
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, errSpan
	}
	return d, nil
}

func checkSink(c *outboxConfig, v string) error {
	if err := open.Check(v); err != nil {
		return err
	}
	c.sink = v
	return nil
}
