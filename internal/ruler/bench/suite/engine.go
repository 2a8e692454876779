package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Engine names a database system that a suite can be run on.
type Engine string

// The engines, by their names on the command line.
const (
	PostgreSQL Engine = "postgres"
	MariaDB    Engine = "mariadb"
	MySQL      Engine = "mysql"
	SQLite     Engine = "sqlite"
)

// Title is the engine's official name.
func (e Engine) Title() string {
	return map[Engine]string{PostgreSQL: "PostgreSQL", MariaDB: "MariaDB", MySQL: "MySQL", SQLite: "SQLite"}[e]
}

// family is the engine whose protocol e speaks.
func (e Engine) family() Engine {
	if e == MariaDB {
		return MySQL
	}
	return e
}

// EngineOfDSN returns the engine among engines that a DSN is for, "" for none. MySQL and
// MariaDB share a protocol; the server reports which one it is.
func EngineOfDSN(dsn string, engines []Engine) Engine {
	scheme, rest, _ := strings.Cut(dsn, ":")
	of := map[string]Engine{"postgres": PostgreSQL, "postgresql": PostgreSQL, "mysql": MySQL, "mariadb": MariaDB, "file": SQLite, "sqlite": SQLite}[scheme]
	if of != SQLite && !strings.HasPrefix(rest, "//") {
		return ""
	}
	if slices.Contains(engines, of) {
		return of
	}
	if i := slices.IndexFunc(engines, func(e Engine) bool { return e.family() == of.family() }); i >= 0 {
		return engines[i]
	}
	return ""
}

// Server is a database server that a suite started, or an existing one.
type Server interface {
	DSN(database string) string
	PID() int // 0 if its process is unknown
	// Flushes counts the flushes that the disk was asked for since the start;
	// errors.ErrUnsupported if they are not counted.
	Flushes() (uint64, error)
	Stop(ctx context.Context) error
}

// Meter reads a server's own counters, over its own session.
type Meter interface {
	Server(ctx context.Context) (measure.Server, error)
	Counters(ctx context.Context) (bench.ServerCounters, error)
	Close(ctx context.Context) error
}

// Counters are the counters of a server and of the disk below it.
type Counters struct {
	Server  bench.ServerCounters
	flushes uint64
	counted bool // whether flushes were counted
}

// ReadCounters reads a server's counters; m is nil for a server that has none.
func ReadCounters(ctx context.Context, m Meter, s Server) (c Counters, err error) {
	if m != nil {
		if c.Server, err = m.Counters(ctx); err != nil {
			return c, err
		}
	}
	c.flushes, err = s.Flushes()
	if c.counted = err == nil; errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return c, err
}

// Since returns the difference from an earlier reading, for a number of operations. If the
// disk's flushes are counted, they replace the server's own count: that comes late from
// sessions that a proxy keeps open, and MariaDB's includes flushes of data files.
func (c Counters) Since(before Counters, ops int64) *bench.ServerCounters {
	out := c.Server.Since(before.Server, ops)
	if c.counted {
		out.Fsyncs = int64(c.flushes - before.flushes)
	}
	return out
}

// Foreign is an existing server. Nothing is known of its process.
type Foreign string

func (f Foreign) DSN(string) string        { return string(f) }
func (Foreign) PID() int                   { return 0 }
func (Foreign) Flushes() (uint64, error)   { return 0, errors.ErrUnsupported }
func (Foreign) Stop(context.Context) error { return nil }

// ServerFlags choose a private server of an engine, or an existing server.
type ServerFlags struct {
	Engine Engine
	DSN    string
	// Engines are the engines to choose from, the default first; Flag is the name of the DSN
	// flag.
	Engines []Engine
	Flag    string

	engine string
	lab    bool
}

// Add defines the flags.
func (s *ServerFlags) Add(f *pflag.FlagSet) {
	f.StringVar(&s.engine, "engine", string(s.Engines[0]), "database system: "+s.names())
	f.BoolVar(&s.lab, "lab", true, "start a private server")
	f.StringVar(&s.DSN, s.Flag, "", "`DSN` of a server and a database to use instead of a private one")
}

// Completions gives --engine its shell completions.
func (s *ServerFlags) Completions(cmd *cobra.Command) {
	cli.Words(cmd, "engine", strings.Split(s.names(), ", ")...)
}

func (s *ServerFlags) names() string {
	var out []string
	for _, e := range s.Engines {
		out = append(out, string(e))
	}
	return strings.Join(out, ", ")
}

// Complete makes the flags consistent. changed reports whether a flag was given.
func (s *ServerFlags) Complete(changed func(flag string) bool) error {
	s.Engine = Engine(s.engine)
	if !slices.Contains(s.Engines, s.Engine) {
		return fmt.Errorf("--engine %q: want one of %s", s.engine, s.names())
	}
	switch {
	case s.DSN == "" && !s.lab:
		return fmt.Errorf("--lab=false: name the server with --%s", s.Flag)
	case s.DSN == "":
		return nil
	case changed("lab") && s.lab:
		return fmt.Errorf("--%s contradicts --lab", s.Flag)
	}
	speaks := EngineOfDSN(s.DSN, s.Engines)
	switch {
	case speaks == "" && slices.Contains(s.Engines, SQLite):
		return fmt.Errorf("--%s: want a URL that begins with postgres://, mysql:// or mariadb://, or file:PATH", s.Flag)
	case speaks == "":
		return fmt.Errorf("--%s: want a URL that begins with postgres://, mysql:// or mariadb://", s.Flag)
	case !changed("engine"):
		s.Engine = speaks
	case speaks.family() != s.Engine.family():
		return fmt.Errorf("--%s names a server of another kind than --engine %s", s.Flag, s.engine)
	}
	return nil
}
