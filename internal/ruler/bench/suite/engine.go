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

// The engines, by the names that the command line has for them.
const (
	PostgreSQL Engine = "postgres"
	MariaDB    Engine = "mariadb"
	MySQL      Engine = "mysql"
	SQLite     Engine = "sqlite"
)

// Title is the engine's own name.
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

// EngineOfDSN returns the one of some engines that a URL is for, "" for none. A
// server of the MySQL family says by itself which of the two it is.
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

// Server is a database server that a suite has started, or that was there before.
type Server interface {
	DSN(database string) string
	PID() int // 0: nothing is known of its process
	// Flushes counts what the disk was asked to flush since the start;
	// errors.ErrUnsupported where nobody counts.
	Flushes() (uint64, error)
	Stop(ctx context.Context) error
}

// Meter reads what a server says of itself, over a session of its own.
type Meter interface {
	Server(ctx context.Context) (measure.Server, error)
	Counters(ctx context.Context) (bench.ServerCounters, error)
	Close(ctx context.Context) error
}

// Counters is what a server and the disk below it have counted so far.
type Counters struct {
	Server  bench.ServerCounters
	flushes uint64
	counted bool // flushes were
}

// ReadCounters reads what a server has counted; m is nil for one that says nothing.
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

// Since returns the difference to an earlier reading, for a number of operations. Where
// flushes are counted at the disk, the server's own count is not asked: it comes late from
// sessions that a proxy keeps, and MariaDB's holds flushes of data files.
func (c Counters) Since(before Counters, ops int64) *bench.ServerCounters {
	out := c.Server.Since(before.Server, ops)
	if c.counted {
		out.Fsyncs = int64(c.flushes - before.flushes)
	}
	return out
}

// Foreign is a server that was there before. Nothing is known of its process.
type Foreign string

func (f Foreign) DSN(string) string        { return string(f) }
func (Foreign) PID() int                   { return 0 }
func (Foreign) Flushes() (uint64, error)   { return 0, errors.ErrUnsupported }
func (Foreign) Stop(context.Context) error { return nil }

// ServerFlags choose a private server of an engine, or one that is there already.
type ServerFlags struct {
	Engine Engine
	DSN    string
	// Engines are those to choose from, the default first; Flag is the name of the
	// flag for the DSN.
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

// Words gives --engine the words that shells complete.
func (s *ServerFlags) Words(cmd *cobra.Command) {
	cli.Words(cmd, "engine", strings.Split(s.names(), ", ")...)
}

func (s *ServerFlags) names() string {
	var out []string
	for _, e := range s.Engines {
		out = append(out, string(e))
	}
	return strings.Join(out, ", ")
}

// Complete makes the flags agree. changed reports whether a flag was given.
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
		return fmt.Errorf("--%s names a server that --engine %s does not speak to", s.Flag, s.engine)
	}
	return nil
}
