package outboxcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

// outboxConfig is the parsed configuration.
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

// outboxLoader reads the options of one verb of `weir outbox`.
func outboxLoader(verb string) *cli.Loader[outboxConfig] {
	return &cli.Loader[outboxConfig]{
		Options: outboxOptions(), Groups: outboxGroups, Prefix: "WEIR_OUTBOX_", Verb: verb, Getenv: os.Getenv,
		FileHelp: "YAML file with options of all verbs; WEIR_OUTBOX_CONFIG names one too",
	}
}

// loadOutbox loads the configuration. Its errors are usage errors.
func loadOutbox(l *cli.Loader[outboxConfig]) (c outboxConfig, err error) {
	found, err := l.Load(&c)
	if err != nil {
		return c, err
	}
	c.dbSource, c.sinkSource = found["db"].Source, found["sink"].Source
	return c, c.complete(l)
}

// complete checks combinations of options.
func (c *outboxConfig) complete(l *cli.Loader[outboxConfig]) (err error) {
	if c.db, err = outboxctl.ParseDatabase(c.dbText, l.Getenv); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(c.dbSource, "--db"), err)
	}
	r := &c.relay
	switch {
	case l.Verb == "relay" && c.sink == "":
		return errors.New("no sink: give --sink an address, such as stdout:, nats://host:4222 or https://host/path")
	case r.Window > 0 && r.Claim != outbox.SkipLocked:
		return fmt.Errorf("--window needs --claim skip-locked: %s reads no history that it could leave out", r.Claim)
	case r.MinPoll > r.MaxPoll:
		return fmt.Errorf("--min-poll %v is more than --max-poll %v", r.MinPoll, r.MaxPoll)
	case r.Retry.Base > r.Retry.Max:
		return fmt.Errorf("--retry-base %v is more than --retry-cap %v", r.Retry.Base, r.Retry.Max)
	case c.partitions.Keep > 0 && c.partitions.Lookback > c.partitions.Keep:
		return fmt.Errorf("--partition-lookback %v creates partitions that --partition-keep %v drops", c.partitions.Lookback, c.partitions.Keep)
	}
	period := c.maintenance.Partitions.Period
	c.maintenance.Partitions = c.partitions
	c.maintenance.Partitions.Period = period
	return nil
}

// sinkPassword matches an address with a password or a NATS token.
var sinkPassword = regexp.MustCompile(`^(nats|tls)://[^/?@]+@|^[a-z]+://[^/?@]*:[^/?@]+@`)

// warnOfPasswords warns about passwords on the command line, which every user of the machine can
// read.
func (c *outboxConfig) warnOfPasswords(log *slog.Logger) {
	if c.dbSource == "--db" && c.db.ShowsPassword {
		log.Warn("the password in --db can be read by every user of this machine; use PGPASSWORD, the password file, MYSQL_PWD, WEIR_OUTBOX_DB or --config")
	}
	if c.sinkSource == "--sink" && sinkPassword.MatchString(c.sink) {
		log.Warn("the password in --sink can be read by every user of this machine; use its parameter password-file, WEIR_OUTBOX_SINK or --config")
	}
}

// log returns the verb's logger.
func (c *outboxConfig) log(w io.Writer) *slog.Logger { return cli.NewLog(w, c.logFormat, c.logLevel) }

func checkSink(c *outboxConfig, v string) error {
	if err := open.Check(v); err != nil {
		return err
	}
	c.sink = v
	return nil
}
